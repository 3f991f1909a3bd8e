"""iat-table1: what it says of made-up curves, and a tiny run on scikit-learn's digits."""

import numpy as np
import pytest

from holdfast_papers.experiments.base import Unit
from holdfast_papers.experiments.iat import table1
from holdfast_papers.experiments.running import run_unit

CONFIG = {"seeds": 3, "states": 4, "dt": 0.1, "lr": 0.005, "batch": 8, "steps": 30, "rates": [0.1, 0.2], "short": 2}


def _run(*losses, finished=True):
    return {
        "valid.curve": np.array(losses, dtype=np.float32), "valid.steps": 10 * np.arange(1, len(losses) + 1),
        "diverged": np.array(not finished), "test.loss": np.array(losses[-1]), "test.accuracy": np.array(0.5),
        "ratio.max": np.array(1.0), "moved": np.array(0.5), "beyond": np.array(0.0), "margin.start": np.array(0.1),
        "margin.end": np.array(0.1), "rate": np.array(0.005),
    }  # fmt: skip


def _claims(direct, **others):
    stable = {f: others.get(f, [_run(1.5, 0.9, 0.8)] * 3) for f in (*table1.STABLE, table1.HELD)}
    units = [
        Unit({"f": f, "seed": seed, "rates": rates, "images": "mnist"}, curve)
        for rates in ([0.005], [0.1, 0.2])
        for f, curves in {**stable, "direct": direct}.items()
        for seed, curve in enumerate(curves)
        if f != table1.HELD or len(rates) == 1
    ]
    return {claim.name: claim for claim in table1.conclude(CONFIG, units).claims}


def test_stable_runs_have_to_reach_directs_final_loss_in_fewer_steps():
    late = [_run(1.5, 1.2, 1.0)] * 3
    found = _claims(late)
    assert found[table1.PAPER].status == found[table1.CHOSEN].status == found["test loss"].status == "met"
    assert found[table1.PAPER].numbers["runs that are sooner"] == 9
    once = [_run(1.5, 1.4, 1.3), *[_run(1.5, 0.9, 0.8)] * 2]
    assert _claims(late, exp=once)[table1.PAPER].status == "met"  # 8 of 9
    assert _claims(late, exp=once, inverse=once)[table1.PAPER].status == "not met"


def test_direct_is_given_the_step_at_which_it_was_first_there():
    early = [_run(1.0, 0.7, 1.0)] * 3
    assert _claims(early)[table1.PAPER].status == "not met"


def test_direct_that_does_not_train_decides_nothing_and_one_that_diverges_is_beaten_by_what_ends():
    assert _claims([_run(2.3, 2.3, 2.3)] * 3)[table1.PAPER].status == "undecided"
    some = [_run(1.5, 1.2, 1.0), _run(1.5, finished=False), _run(1.5, 1.2, 1.0)]
    assert _claims(some)[table1.PAPER].status == "met"
    broken = [_run(0.1, finished=False)] * 3
    assert _claims(some, exp=broken)[table1.PAPER].status == "not met"


def test_a_tiny_unit_without_mnist_takes_the_digits(monkeypatch, tmp_path):
    pytest.importorskip("lightning_fabric")
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    changes = {"states": 4, "steps": 4, "evaluations": 2, "short": 1, "rates": [0.01, 0.02], "seeds": 1}
    units = table1.units(table1.EXPERIMENT.config("quick", changes))
    assert len(units) == 9 and {u["images"] for u in units} == {"digits"}
    arrays = run_unit(table1.EXPERIMENT, units[-1]).arrays
    assert arrays["valid.steps"].tolist() == [2, 4] and arrays["short"].shape == (2,)
    assert table1.final(arrays) == pytest.approx(float(arrays["valid.loss"]), rel=1e-6)  # kept in float32
