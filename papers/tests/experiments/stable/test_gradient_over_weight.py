"""stable-fig3: what it says of made-up runs, and a tiny run of it."""

import numpy as np
import pytest
import torch

from holdfast import parameterizations
from holdfast_papers.experiments.base import Unit
from holdfast_papers.experiments.running import run_unit
from holdfast_papers.experiments.stable import fig3

CONFIG = {"seeds": 5, "states": 4, "rates": [0.01, 0.02], "short": 1, "lr": 0.01}


def _run(ratio, crossed=0.0, finished=True):
    curve = np.array([ratio / 2, ratio], dtype=np.float32)
    return {
        "ratio": curve, "ratio.steps": np.arange(2), "steps": np.arange(2), "loss": curve, "ratio.start": np.array(ratio / 2),
        "ratio.max": np.array(ratio), "valid.loss": np.array(0.1), "margin.start": np.array(0.1), "margin.end": np.array(0.1),
        "moved": np.array(0.5), "crossed": np.array(crossed), "diverged": np.array(not finished), "rate": np.array(0.01),
    }  # fmt: skip


def _claims(seeds=5, **changes):
    """Best has the ratio 1 and the others 2, where `changes` by name and seed say nothing else."""
    units = []
    for rates in ([0.01], [0.01, 0.02]):
        for f in fig3.NAMES:
            for seed in range(seeds):
                made = changes.get(f, {}).get(seed, _run(1.0 if f in fig3.BEST else 2.0))
                units.append(Unit({"f": f, "seed": seed, "rates": rates}, made))
    return {claim.name: claim for claim in fig3.conclude({**CONFIG, "seeds": seeds}, units).claims}


def test_best_has_to_be_smallest_by_an_interval_that_excludes_equality():
    assert _claims()["best, b = 1"].status == "met"
    assert _claims()["best, b = 1"].numbers["best, b = 1 / direct"] == pytest.approx(0.5)
    # one seed of five on the other side: ratios of 2, 1/2, 1/2, 1/2, 1/2 leave it open
    assert _claims(softplus={0: _run(0.5)})["best, b = 1"].status == "undecided"
    assert _claims(softplus={s: _run(0.5) for s in range(5)})["best, b = 1"].status == "not met"
    assert _claims(seeds=2)["best, b = 1"].status == "undecided"


def test_exp_is_compared_apart_where_a_weight_of_it_crosses_zero():
    crossing = {seed: _run(0.5, crossed=0.25) for seed in range(5)}
    found = _claims(exp=crossing)
    assert found["best, b = 0.5"].status == "met"
    assert found["best, b = 0.5, exp apart"].status == "not met"
    assert _claims()["best, b = 0.5, exp apart"].status == "undecided"


def test_a_diverged_run_of_best_counts_as_a_ratio_without_bound():
    broken = {seed: _run(0.1, finished=False) for seed in range(5)}
    found = _claims(**{"best, b = 1": broken})
    assert found["best, b = 1"].status == "not met" and found["best, b = 0.5"].status == "met"


def test_a_student_notes_which_of_its_weights_changed_sign():
    model = fig3.Student(parameterizations.get("exp", time="discrete"), 3)
    with torch.no_grad():
        model.layer.w[1] = 0.5
    model(torch.zeros(1, 2, 1))
    with torch.no_grad():
        model.layer.w[1] = -0.5
    model(torch.zeros(1, 2, 1))
    assert model.crossed.tolist() == [0, 1, 0]


def test_all_students_start_from_one_functional():
    x = torch.randn(2, 9, 1)
    with torch.no_grad():
        outputs = [fig3._student({"states": 8, "seed": 0, "f": f})(x) for f in fig3.NAMES]
    for y in outputs:
        torch.testing.assert_close(y, outputs[0], rtol=1e-4, atol=1e-5)  # float32 weights of eigenvalues near 1


def test_a_unit_chooses_its_rate_on_short_runs_and_keeps_the_largest_ratio():
    pytest.importorskip("lightning_fabric")
    config = fig3.EXPERIMENT.config(
        "quick", {"samples": 32, "batch": 8, "length": 12, "states": 4, "short": 1, "rates": [0.0, 0.1], "seeds": 1}
    )
    (unit,) = [u for u in fig3.units(config) if u["f"] == "exp" and len(u["rates"]) == 2]
    arrays = run_unit(fig3.EXPERIMENT, unit).arrays
    assert float(arrays["rate"]) == unit["rates"][int(arrays["short"].argmin())]
    assert len(arrays["ratio"]) == 4 and float(arrays["ratio.max"]) == arrays["ratio"].max() > 0
    assert arrays["margin.start"] == pytest.approx(1 - np.exp(-0.001), rel=1e-3)  # float32
