"""The same pictures as PNG and SVG files, by matplotlib."""

import os
import unicodedata
import warnings
from typing import Any, Dict, List, Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .figures import MASS_BINS, Figures, histogram
from .reading import Record, source_symbols
from .tree import MOST_OUTPUTS, Node, build_tree, outputs_of
from .words import KINDS, visible

COLOURS = ("#2a6fbb", "#d17a2b")
# Text in an SVG stays text, so that whoever shows it shapes scripts correctly and it can be searched and copied. `$` in
# data is no formula.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "fairseq-entmax", "font.size": 9, "text.parse_math": False}
_LETTER = 0.07  # width in inches of a letter of monospaced text at 8 points
_SHADES = ("#9dc1e6", "#dbe8f6")  # of neighbours
_CANDIDATES = 5.0  # width in inches of probability one
_MOST_STEPS = 80  # drawn of one output; the page shows all


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, outside pyplot: nothing global is touched and no window opens."""
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: str) -> List[str]:
    """Write `path`.png and `path`.svg; returns their names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the SVG and the page have every script
        figure.savefig(path + ".png", dpi=120)
        figure.savefig(path + ".svg", metadata={"Date": None})
    return [path + ".png", path + ".svg"]


def draw_corpus(figures: Sequence[Figures], folder: str) -> List[str]:
    """Histograms, certificates and, with references, accuracy against covered mass, for one run or two side by side."""
    written = []
    with matplotlib.rc_context(STYLE):
        shares = {"labels": list(KINDS), "series": [[share for _, share in f.shares()] for f in figures]}
        written += _bars(figures, shares, "certificate", "share of the sentences", folder, "certificates")
        support = histogram([f.support for f in figures])
        written += _bars(figures, support, "support size of a step", "share of the steps", folder, "support")
        if any(f.attention for f in figures):
            chart = histogram([f.attention for f in figures])
            written += _bars(figures, chart, "source words attended to", "share of the steps", folder, "attention")
        if figures[0].has_references:
            chart = {
                "labels": [f"{i / MASS_BINS:.1f}" for i in range(MASS_BINS)],
                "series": [[right / n if n else 0 for n, right in f.bins] for f in figures],
                "counts": [[n for n, _ in f.bins] for f in figures],
            }
            written += _bars(figures, chart, "covered mass, from", "share of right answers", folder, "accuracy")
    return written


def _bars(runs: Sequence[Figures], chart: Dict[str, Any], across: str, up: str, folder: str, name: str) -> List[str]:
    figure = new_figure(max(3.2, (0.2 + 0.3 * len(runs)) * len(chart["labels"]) + 1), 2.6)
    axes = figure.subplots()
    width = 0.8 / len(runs)
    for k, (run, values) in enumerate(zip(runs, chart["series"])):
        places = [i + (k - (len(runs) - 1) / 2) * width for i in range(len(values))]
        bars = axes.bar(places, values, width, color=COLOURS[k], label=run.name)
        if "counts" in chart:
            axes.bar_label(bars, [str(n) for n in chart["counts"][k]], fontsize=7)
    axes.set_xticks(range(len(chart["labels"])), chart["labels"])
    axes.set(xlabel=across, ylabel=up)
    axes.spines[["top", "right"]].set_visible(False)
    if len(runs) > 1:
        axes.legend(frameon=False, fontsize=8)
    return save(figure, os.path.join(folder, name))


def draw_sentence(record: Record, folder: str) -> List[str]:
    """Attention and candidates (where the record has them), support along the best output, the tree of all outputs."""
    name = os.path.join(folder, f"sentence-{record['id']}-")
    best, written = record["hypotheses"][0], []
    with matplotlib.rc_context(STYLE):
        if best.get("attention"):
            written += save(_attention(best, source_symbols(record)), name + "attention")
        written += save(_support(best), name + "support")
        if best.get("candidates"):
            written += save(_candidates(best), name + "candidates")
        outputs = outputs_of(record)
        if outputs:
            written += save(_tree(build_tree(outputs), 1 - sum(p for _, p in outputs[:MOST_OUTPUTS])), name + "tree")
    return written


def _attention(best: Dict[str, Any], symbols) -> Figure:
    steps = best["attention"][:_MOST_STEPS]
    width = max([len(symbols or ())] + [i + 1 for step in steps for i, _ in step])
    weights = [[float("nan")] * width for _ in steps]  # not a number is drawn blank: exact zeros
    for line, step in zip(weights, steps):
        for i, weight in step:
            line[i] = weight
    figure = new_figure(0.28 * width + 1.6, 0.28 * len(steps) + 1.2)
    axes = figure.subplots()
    image = axes.imshow(weights, cmap="Blues", vmin=-0.15, vmax=1, aspect="equal")
    names = [visible(s) for s in symbols] if symbols else [str(i) for i in range(width)]
    long = any(len(name) > 3 for name in names)
    axes.set_xticks(range(width), names, rotation=90 if long else 0)
    axes.set_yticks(range(len(steps)), [visible(s) for s in best["tokens"][: len(steps)]])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xticks([i - 0.5 for i in range(1, width)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, len(steps))], minor=True)
    axes.grid(which="minor", color="#dddddd", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, boundaries=[i / 50 for i in range(51)], ticks=[0, 0.5, 1])
    bar.ax.set_ylabel("weight; blank is 0")
    return figure


def _support(best: Dict[str, Any]) -> Figure:
    support = best["support"][:_MOST_STEPS]
    figure = new_figure(max(2.5, 0.3 * len(support) + 1), 2.2)
    axes = figure.subplots()
    bars = axes.bar(range(len(support)), support, color=COLOURS[0])
    axes.bar_label(bars, fontsize=7)
    axes.set_xticks(range(len(support)), [visible(s) for s in best["tokens"][: len(support)]])
    if any(len(s) > 4 for s in best["tokens"]):
        axes.tick_params(axis="x", rotation=90)
    axes.set(ylabel="support size")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _candidates(best: Dict[str, Any]) -> Figure:
    """A line for each step of the best output: candidates as wide as their probability, named where there is room."""
    steps = best["candidates"][:_MOST_STEPS]
    figure = new_figure(_CANDIDATES + 1.5, 0.28 * len(steps) + 0.8)
    axes = figure.subplots()
    for line, step in enumerate(steps):
        left = 0.0
        for place, (symbol, probability) in enumerate(sorted(step, key=lambda candidate: -candidate[1])):
            room, name = int(probability * _CANDIDATES / _LETTER), visible(symbol)
            if room == 0:  # nor for those that follow
                axes.barh(line, 1 - left, 0.8, left, color="#cccccc")
                break
            axes.barh(line, probability, 0.8, left, color=_SHADES[place % 2], edgecolor="white", linewidth=0.5)
            if len(name) < room:
                axes.text(left + probability / 2, line, name, ha="center", va="center", fontsize=8)
            left += probability
    axes.set_yticks(range(len(steps)), [visible(s) for s in best["tokens"][: len(steps)]])
    axes.set(xlim=(0, 1), ylim=(len(steps) - 0.4, -0.6), xlabel="probability of the next symbol")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _tree(roots: List[Node], unlisted: float) -> Figure:
    """Columns are as wide as their longest label; a node stands in the middle of what follows it."""
    if unlisted > 5e-4:
        roots = [*roots, Node("not listed", unlisted)]
    widths: List[int] = []

    def measure(nodes: List[Node], depth: int) -> None:
        for node in nodes:
            if depth == len(widths):
                widths.append(0)
            widths[depth] = max(widths[depth], _width(node))
            measure(node.children, depth + 1)

    measure(roots, 0)
    starts = [sum(widths[:depth]) + 4 * depth for depth in range(len(widths))]
    leaves = sum(node.leaves() for node in roots)
    total = starts[-1] + widths[-1]
    figure = Figure(figsize=(_LETTER * (total + 2), 0.27 * leaves + 0.1))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.set(xlim=(-1, total + 1), ylim=(leaves - 0.4, -0.6))

    def draw(node: Node, depth: int, top: int) -> float:
        """Draws a node over `top` and the lines below it; returns its height."""
        middle = top + (node.leaves() - 1) / 2
        box = {"boxstyle": "round,pad=0.25", "facecolor": "#dbe8f6", "edgecolor": "#5b6470", "linewidth": 0.6}
        axes.text(starts[depth], middle, _node_text(node), va="center", family="monospace", fontsize=8, bbox=box)
        for child in node.children:
            height = draw(child, depth + 1, top)
            ends = ([starts[depth] + _width(node) + 0.7, starts[depth + 1] - 0.7], [middle, height])
            axes.plot(*ends, color="#5b6470", linewidth=0.4 + 2.5 * child.probability, zorder=0)
            top += child.leaves()
        return middle

    top = 0
    for node in roots:
        draw(node, 0, top)
        top += node.leaves()
    return figure


def _node_text(node: Node) -> str:
    nearly = 0.9995 <= node.probability < 1 - 1e-6
    return f"{node.label}  {'>0.999' if nearly else f'{node.probability:.3g}'}"


def _width(node: Node) -> int:
    """Letters of a node's text; marks take no room of their own."""
    return sum(1 for letter in _node_text(node) if not unicodedata.combining(letter))
