"""Experiments of one family share units: each is computed once, and every experiment draws its own conclusion."""

import sys
from types import ModuleType

import numpy as np
import pytest

from holdfast.errors import ArgumentError
from holdfast_papers.cli.progress import Estimate
from holdfast_papers.execution import Scheduler, Store
from holdfast_papers.execution.executor import Event
from holdfast_papers.execution.plan import missing_units, plan_one
from holdfast_papers.execution.task import perform_in
from holdfast_papers.experiments import Conclusion, Experiment, presets, split
from holdfast_papers.report import page
from holdfast_papers.results import Claim, Result


def _experiment(id, seeds, calls, **more):
    def run(config, work):
        calls.append(config["seed"])
        if config["seed"] == 13:
            raise RuntimeError("on purpose")
        return {"a": np.array([float(config["seed"])])}

    def conclude(config, units):
        total = float(sum(unit.arrays["a"].sum() for unit in units))
        return Conclusion([Claim.decide("total", "The total", None, {"total": total}, otherwise="")])

    return Experiment(
        id=id, where="nowhere", title="Own", summary="Own.", presets=presets({"seeds": seeds}), run=run, conclude=conclude,
        units=lambda config: split({}, seed=config["seeds"]), family="own-family", **more,
    )  # fmt: skip


class Here:
    """Performs tasks in this process."""

    slots = 1

    def __init__(self, store):
        self.store, self.events = store, []

    def submit(self, task):
        try:
            perform_in(self.store, task, lambda done, text: None)
            self.events.append(Event("finished", task))
        except RuntimeError as error:
            self.events.append(Event("failed", task, text=str(error)))

    def wait(self, seconds):
        events, self.events = self.events, []
        return events

    def stop(self):
        pass


class Silent:
    def __getattr__(self, name):
        return lambda *arguments: None


@pytest.fixture
def family(tmp_path, monkeypatch):
    """family(first, second): the jobs of two experiments with those seeds, their store, and what was computed."""
    store, calls = Store(tmp_path / "results"), []
    store.prepare()

    def jobs(first, second, **more):
        made = {
            "first": _experiment("own-first", first, calls),
            "second": _experiment("own-second", second, calls, **more),
        }
        for name, experiment in made.items():
            module = ModuleType(name)
            module.EXPERIMENT = experiment
            monkeypatch.setitem(sys.modules, name, module)
        return [plan_one(store, name, "quick", None, lambda text: None) for name in made]

    return jobs, store, calls


def _run(store, jobs):
    return Scheduler(store, Here(store), Silent(), jobs).run()


def _total(job):
    return Result.load(job.folder).claims[0].numbers["total"]


def test_shared_units_are_computed_and_counted_once_and_concluded_by_each(family):
    make, store, calls = family
    jobs = make([1, 2, 3], [2, 3, 4])
    estimate = Estimate()
    estimate.plan(jobs)
    assert estimate.units == len(missing_units(jobs)) == 4
    assert _run(store, jobs) == []
    assert sorted(calls) == [1, 2, 3, 4]
    assert [job.concluded for job in jobs] == [True, True] and [_total(job) for job in jobs] == [6, 9]
    assert len([*store.root.glob("own-family/*/result.json")]) == 4
    shared = [Result.load(job.folder).provenance.extra["shared_seconds"] for job in jobs]
    assert len(shared[0].keys() & shared[1].keys()) == 2
    again = make([1, 2, 3], [2, 3, 4])
    assert missing_units(again) == [] and all(job.concluded for job in again)


def test_a_later_experiment_finds_the_units_of_its_family(family):
    make, store, calls = family
    first, second = make([1, 2], [1, 2, 3])
    _run(store, [first])
    assert not second.concluded
    second = make([1, 2], [1, 2, 3])[1]
    assert [task.config["seed"] for task in second.missing] == [3]
    assert second.units[0].label == "own-family seed=1"
    _run(store, [second])
    assert calls == [1, 2, 3] and _total(second) == 6


def test_a_shared_unit_that_fails_leaves_no_conclusion_to_those_that_need_it(family):
    make, store, _ = family
    jobs = make([1, 13], [1])
    failures = _run(store, jobs)
    assert [failure.task.config["seed"] for failure in failures] == [13]
    assert [job.concluded for job in jobs] == [False, True]


def test_another_version_shares_nothing(family):
    make, store, calls = family
    _run(store, make([1], [1], version=2))
    assert calls == [1, 1]


def test_a_family_is_named_like_an_experiment():
    with pytest.raises(ArgumentError, match="an experiment's family must be a paper and a name"):
        Experiment(**{**vars(_experiment("own-first", [], [])), "family": "mine"})


def test_the_page_counts_the_time_of_shared_units_once():
    sections = [{"seconds": 6.0, "shared": {"a": 2.0, "b": 3.0}}, {"seconds": 4.0, "shared": {"b": 3.0}}]
    assert page._total_seconds([*sections, {"seconds": 10.0, "shared": {}}]) == 17.0
