"""`python -m fairseq_entmax mappings`: pictures of the mappings from scores to probabilities; without fairseq."""

import os
from typing import List, Tuple

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from . import ops

FORMATS = (".png", ".svg", ".pdf")
ALPHAS = (1.0, 1.25, 1.5, 2.0, 4.0)
PLANES = (1.0, 1.5, 2.0)  # alphas that are drawn over three scores
REACH = 3.0  # scores go from -REACH to REACH

# Scores of eight neighbouring positions, two of them nearly as good as the best one next to them.
SCORES = (0.1, 0.3, 1.3, 1.2, 1.1, -0.2, 0.9, -0.4)


def draw_mappings(path: str) -> None:
    """Draw the probability of the first of two and of three scores, and the structured mappings of one row of scores.

    Args:
        path: file to write; its ending is one of `FORMATS`.

    Raises:
        ValueError: another ending, or no such folder.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in FORMATS:
        raise ValueError(f"--out: wanted a name that ends with {', '.join(FORMATS)}, got {path}")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ValueError(f"--out {path}: the folder {folder} does not exist")
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "fairseq-entmax"}):
        figure = Figure(figsize=(9, 6.2), layout="constrained")
        upper, lower = figure.subfigures(2, 1, height_ratios=(1.1, 1))
        axes = upper.subplots(1, 1 + len(PLANES), width_ratios=(1.5, *[1] * len(PLANES)))
        _draw_curves(axes[0])
        for ax, alpha in zip(axes[1:], PLANES):
            _draw_plane(ax, alpha)
        _draw_structured(lower.subplots(2, 4))
        figure.savefig(path, dpi=110, metadata={"CreationDate": None} if ending == ".pdf" else None)


def curve(alpha: float, scores: Tensor) -> Tensor:
    """Probability of the first of two scores `(t, 0)`, for each t."""
    return ops.entmax(torch.stack([scores, torch.zeros_like(scores)], dim=-1), alpha=alpha)[..., 0]


def plane(alpha: float, scores: Tensor) -> Tensor:
    """Probability of the first of three scores `(t1, t2, 0)`: `(t2, t1)`."""
    second, first = torch.meshgrid(scores, scores, indexing="ij")
    return ops.entmax(torch.stack([first, second, torch.zeros_like(first)], dim=-1), alpha=alpha)[..., 0]


def structured() -> List[Tuple[str, Tensor]]:
    """Name and weights of each mapping of the scores `SCORES`."""
    scores = torch.tensor(SCORES, dtype=torch.float64)
    return [
        ("softmax", torch.softmax(scores, dim=-1)),
        ("entmax15", ops.entmax15(scores)),
        ("sparsemax", ops.sparsemax(scores)),
        ("fusedmax (0.1)", ops.fusedmax(scores, strength=0.1)),
        ("fusedmax (0.4)", ops.fusedmax(scores, strength=0.4)),
        ("oscarmax (0.1)", ops.oscarmax(scores, strength=0.1)),
        ("pnormmax (p 1.5)", ops.pnormmax(scores, p=1.5)),
    ]


def _draw_curves(ax) -> None:
    scores = torch.linspace(-REACH, REACH, 601, dtype=torch.float64)
    for i, alpha in enumerate(ALPHAS):
        name = {1.0: "1 (softmax)", 2.0: "2 (sparsemax)"}.get(alpha, f"{alpha:g}")
        ax.plot(scores.tolist(), curve(alpha, scores).tolist(), label=name, color=f"C{i}", linewidth=1.4)
    ax.set(xlabel="t", title="first of two scores (t, 0)\nfor several alpha")
    ax.set(xlim=(-REACH, REACH), ylabel="probability")
    ax.legend(title="alpha", frameon=False, fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_plane(ax, alpha: float) -> None:
    scores = torch.linspace(-REACH, REACH, 121, dtype=torch.float64)
    probs = plane(alpha, scores)
    extent = (-REACH, REACH, -REACH, REACH)
    image = [[p if p > 0 else float("nan") for p in line] for line in probs.tolist()]  # exact zeros stay blank
    ax.imshow(image, origin="lower", extent=extent, cmap="Blues", vmin=-0.15, vmax=1)
    levels = [0.1, 0.3, 0.5, 0.7, 0.9]
    ax.contour(probs.tolist(), levels=levels, extent=extent, colors="#1b1f24", linewidths=0.6)
    ax.set(xlabel="t1", ylabel="t2", title=f"of three (t1, t2, 0):\nalpha {alpha:g}")


def _draw_structured(axes) -> None:
    panels = [("scores", torch.tensor(SCORES))] + structured()
    for ax, (name, values) in zip(axes.flat, panels):
        heights = values.tolist()
        ax.bar(range(len(heights)), heights, color="#7b8591" if name == "scores" else "#2a6fbb")
        zeros = [i for i, height in enumerate(heights) if height == 0]
        ax.plot(zeros, [0.015] * len(zeros), linestyle="", marker="x", markersize=4, color="#a31621")
        ax.set(title=name, xticks=[], ylim=(-0.5, 1.5) if name == "scores" else (0, 0.5))
        ax.axhline(0, color="#1b1f24", linewidth=0.6)
        ax.spines[["top", "right", "bottom"]].set_visible(False)
    axes.flat[-1].set_xlabel("x: exactly zero", color="#a31621")
