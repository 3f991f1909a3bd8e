"""iat-table1: what it says of made-up curves, and a tiny run on scikit-learn's digits."""

import numpy as np
import pytest

from holdfast_papers.experiments.base import Unit
from holdfast_papers.experiments.iat import table1
from holdfast_papers.experiments.running import run_unit

CONFIG = {"seeds": 3, "states": 4, "dt": 0.1, "lr": 0.005, "batch": 8, "steps": 30, "rates": [0.1, 0.2], "short": 2}


def _run(*losses, finished=True, accuracy=0.8):
    return {
        "valid.curve": np.array(losses, dtype=np.float32), "valid.steps": 10 * np.arange(1, len(losses) + 1),
        "diverged": np.array(not finished), "test.loss": np.array(losses[-1]), "test.accuracy": np.array(accuracy),
        "ratio.max": np.array(1.0), "moved": np.array(0.5), "beyond": np.array(0.0), "margin.start": np.array(0.1),
        "margin.end": np.array(0.1), "rate": np.array(0.005),
    }  # fmt: skip


def _claims(direct, **others):
    stable = {f: others.get(f, [_run(1.5, 0.9, 0.8)] * 3) for f in table1.STABLE}
    units = [
        Unit({"f": f, "seed": seed, "rates": [0.1, 0.2], "images": "mnist"}, curve)
        for f, curves in {**stable, "direct": direct}.items()
        for seed, curve in enumerate(curves)
    ]
    return {claim.name: claim for claim in table1.conclude(CONFIG, units).claims}


def test_each_stable_one_has_to_reach_directs_final_loss_in_fewer_steps():
    late = [_run(1.5, 1.2, 1.0)] * 3
    found = _claims(late, exp=[_run(1.5, 1.4, 1.3)] * 3)
    assert (
        found["sooner, softplus"].status == "met" and found["sooner, softplus"].numbers["softplus less direct"] == -10
    )
    # one that never reaches it is later
    assert (
        found["sooner, exp"].status == "not met" and found["sooner, exp"].numbers["seeds in which it never does"] == 3
    )
    once = [_run(1.5, 1.4, 1.3), *[_run(1.5, 0.9, 0.8)] * 2]
    assert _claims(late, exp=once)["sooner, exp"].status == "undecided"
    assert found["test loss, softplus"].status == "met" and found["test loss, exp"].status == "not met"
    alike = _claims([_run(1.5, 1.2, 0.8)] * 3)
    assert alike["test loss, softplus"].status == "undecided"


def test_direct_is_given_the_step_at_which_it_was_first_there():
    early = [_run(1.0, 0.7, 1.0)] * 3
    assert _claims(early)["sooner, exp"].status == "not met"


def test_nothing_is_decided_where_nobody_learns_and_a_diverged_direct_is_beaten_by_what_ends():
    guess = {f: [_run(2.3, 2.3, 2.2, accuracy=0.1)] * 3 for f in table1.STABLE}
    assert _claims([_run(2.3, 2.3, 2.3, accuracy=0.1)] * 3, **guess)["sooner, exp"].status == "undecided"
    gone = [_run(1.5, finished=False)] * 3
    assert _claims(gone)["sooner, exp"].status == "met"


def test_a_tiny_unit_without_mnist_takes_the_digits(monkeypatch, tmp_path):
    pytest.importorskip("lightning_fabric")
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    changes = {"states": 4, "steps": 4, "evaluations": 2, "evaluated": 0, "short": 1, "rates": [0.01, 0.02], "seeds": 1}
    units = table1.units(table1.EXPERIMENT.config("quick", changes))
    assert len(units) == 5 and {u["images"] for u in units} == {"digits"}
    arrays = run_unit(table1.EXPERIMENT, units[-1]).arrays
    assert arrays["valid.steps"].tolist() == [2, 4] and arrays["short"].shape == (2,)
    assert table1.final(arrays) == pytest.approx(float(arrays["valid.loss"]), rel=1e-6)  # kept in float32
