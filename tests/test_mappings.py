"""`python -m fairseq_entmax mappings`."""

import pytest
import torch

from fairseq_entmax import mappings
from fairseq_entmax.__main__ import main


@pytest.mark.parametrize("ending, head", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_picture_in_the_format_of_its_name(ending, head, tmp_path, capsys):
    path = tmp_path / f"m.{ending}"
    assert main(["mappings", "--out", str(path)]) == 0
    assert path.read_bytes().startswith(head) and capsys.readouterr().out == f"{path}\n"


@pytest.mark.parametrize("name, says", [("m.txt", "wanted a name that ends with .png"), ("no/m.png", "does not exist")])
def test_mistakes_are_one_line(name, says, tmp_path):
    with pytest.raises(SystemExit, match=says) as stop:
        main(["mappings", "--out", str(tmp_path / name)])
    assert "\n" not in str(stop.value)


@pytest.mark.parametrize("alpha", mappings.ALPHAS)
def test_the_curve_saturates_where_the_paper_says(alpha):
    """Two scores (t, 0): all mappings but softmax reach 0 and 1 at t = -1/(alpha-1) and 1/(alpha-1)."""
    edge = 1 / (alpha - 1) if alpha > 1 else float("inf")
    scores = torch.tensor([-edge * 1.001, -edge * 0.9, 0.0, edge * 0.9, edge * 1.001], dtype=torch.float64)
    if alpha == 1:
        scores = torch.tensor([-3.0, 0.0, 3.0], dtype=torch.float64)
        assert torch.allclose(mappings.curve(alpha, scores), scores.sigmoid())
        return
    values = mappings.curve(alpha, scores).tolist()
    assert values[0] == 0 and values[4] == 1 and 0 < values[1] < values[2] < values[3] < 1
    assert abs(values[2] - 0.5) < 1e-12


def test_the_plane_is_laid_out_with_the_first_score_across():
    scores = torch.tensor([-3.0, 0.0, 3.0], dtype=torch.float64)
    values = mappings.plane(2.0, scores)
    assert values[0, 2] == 1 and values[2, 0] == 0  # [t2, t1]


def test_structured_mappings_show_what_they_are_for():
    weights = dict(mappings.structured())
    assert all(abs(w.sum() - 1) < 1e-9 for w in weights.values())
    fused = weights["fusedmax (0.4)"]
    assert fused[2] == fused[3] == fused[4] > 0  # neighbours
    assert (weights["softmax"] > 0).all() and (weights["sparsemax"] == 0).any()
