import json
import os
from dataclasses import replace

import pytest
import torch

from holdfast_papers.benchmarks import timing
from holdfast_papers.benchmarks.case import Case, Contender, Match, Runner
from holdfast_papers.benchmarks.cases import busy
from holdfast_papers.benchmarks.registry import Plan
from holdfast_papers.benchmarks.run import first_steps, lack_of_memory, run, run_case
from holdfast_papers.benchmarks.steps import training_step, truth_by

INPUTS = {"u": torch.tensor([[[1.0], [2.0]]]), "cotangent": torch.tensor([[[1.0], [0.5]]])}


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch):
    """These tests ask who is timed, not how long it takes."""
    monkeypatch.setattr(timing, "BLOCK", 1e-5)


def double(u):
    return 2 * u


class Counted:
    """A contender that counts its steps; `factor` other than 2 makes it wrong."""

    def __init__(self, factor=2.0):
        self.factor, self.steps = factor, 0

    def build(self, inputs):
        inner = training_step(lambda u: self.factor * u, inputs)

        def step():
            self.steps += 1
            return inner.step()

        return Runner(step, inner.read)


def case(ours, *others, **choices):
    matches = [
        Match(Contender(f"other {i}", "peer", other.build, **choices), "row", 1.0) for i, other in enumerate(others)
    ]
    return Case(
        "toy", (1, 2, 1), lambda: INPUTS, truth_by(double), Contender("ours", "ours", ours.build), tuple(matches)
    )


def rows(benchmark):
    return list(run_case(benchmark, 0.05, lambda text: None))


def test_what_passes_its_check_is_timed():
    ours, other = Counted(), Counted()
    (row,) = rows(case(ours, other))
    assert row.status in ("met", "missed")
    assert row.ratio.low <= row.ratio.median <= row.ratio.high
    assert row.ours_ms > 0
    assert row.against_ms > 0
    assert row.rounds >= 1  # how many fit the budget is tested with a clock of its own (test_timing.py)
    assert row.ours_error == row.against_error == 0


def test_a_failing_check_of_a_peer_prevents_timing_it():
    wrong = Counted(2.1)
    bad, good = rows(case(Counted(), wrong, Counted()))
    assert wrong.steps == 1
    assert bad.status == "not run"
    assert bad.note.startswith("not timed, differs from the float64 truth: y 5.0e-02, u 5.0e-02 (allowed")
    assert good.status in ("met", "missed")


def test_a_failing_check_of_ours_prevents_timing_anything():
    ours, other = Counted(3.0), Counted()
    (row,) = rows(case(ours, other))
    assert row.status == "wrong"
    assert row.note.startswith("ours: not timed, differs")
    assert (ours.steps, other.steps) == (1, 0)


def test_a_kernel_of_ours_that_raises_is_wrong():
    class Raises(Counted):
        def build(self, inputs):
            raise ValueError("no such backend")

    (row,) = rows(case(Raises(), Counted()))
    assert (row.status, row.note) == ("wrong", "ours: failed with ValueError: no such backend")


def test_too_little_memory_for_the_truth_is_no_fault_of_ours():
    (row,) = rows(replace(case(Counted(), Counted()), memory=2**60))
    assert row.status == "not run"
    assert row.note.startswith("ours: needs about")


def test_a_gradient_alone_that_is_wrong_prevents_timing():
    class Detached(Counted):
        def build(self, inputs):
            inner = training_step(lambda u: u + u.detach(), inputs)  # the right output, half the gradient
            return Runner(inner.step, inner.read)

    (row,) = rows(case(Counted(), Detached()))
    assert row.note.startswith("not timed, differs from the float64 truth: u 5.0e-01")


def test_a_missing_package_is_named_with_the_way_to_get_it():
    (row,) = rows(case(Counted(), Counted(), modules=("no_such_package",)))
    assert row.status == "not run"
    assert row.note.startswith("no_such_package not installed; pip install 'holdfast-papers[peers]'")


def test_too_little_memory_is_said_in_numbers():
    (row,) = rows(case(Counted(), Counted(), memory=2**60))
    assert row.status == "not run"
    assert "needs about 1073741824.0 GiB of memory" in row.note
    assert lack_of_memory(3 * 2**30, 2**30) == "needs about 3.0 GiB of memory, 1.0 GiB are free"
    assert lack_of_memory(3 * 2**30, 2**33) == ""


def test_a_peer_that_breaks_leaves_the_others_running():
    class Broken(Counted):
        def build(self, inputs):
            raise ImportError("libsomething.so.1: cannot open shared object file\nmore lines")

    broken, good = rows(case(Counted(), Broken(), Counted()))
    assert broken.note == "failed with ImportError: libsomething.so.1: cannot open shared object file"
    assert good.status in ("met", "missed")


def test_a_contender_of_another_function_is_held_to_its_own_truth():
    triple = Counted(3.0)
    (row,) = rows(case(Counted(), triple, truth=truth_by(lambda u: 3 * u)))
    assert row.status in ("met", "missed")
    (row,) = rows(case(Counted(), Counted(3.0), truth=truth_by(lambda u: 4 * u)))
    assert row.status == "not run"


def test_a_truth_over_the_first_steps_still_times_all_of_them():
    lengths = []

    class Noted(Counted):
        def build(self, inputs):
            lengths.append(inputs["u"].shape[1])
            return super().build(inputs)

    rows(case(Counted(), Noted(), truth=truth_by(double), checked_steps=1))
    assert lengths == [1, 2]


def test_cutting_time_keeps_what_has_no_time():
    inputs = {"u": torch.zeros(2, 9, 3), "w": torch.zeros(9, 9)}
    assert {n: tuple(x.shape) for n, x in first_steps(inputs, 4).items()} == {"u": (2, 4, 3), "w": (9, 9)}
    assert first_steps(inputs, None) is inputs
    assert first_steps(inputs, 9) is inputs


def test_goals_at_most_turn_the_ratio_over():
    benchmark = case(Counted(), Counted())
    (match,) = benchmark.matches
    (row,) = rows(replace(benchmark, matches=(replace(match, sense="at most", goal=1e9),)))
    assert row.status == "met"
    (row,) = rows(replace(benchmark, matches=(replace(match, sense="at most", goal=1e-9),)))
    assert row.status == "missed"
    (row,) = rows(replace(benchmark, matches=(replace(match, goal=None),)))
    assert row.status == "information"


def test_a_run_announces_its_steps_and_records_where_it_ran():
    said = []
    report = run(
        Plan((case(Counted(), Counted(), Counted()),), (), ()), 0.1, lambda *now: said.append(now), "holdfast x"
    )
    assert said == [("toy-1x2x1: other 0", 0.0), ("toy-1x2x1: other 1", 0.5), ("done", 1.0)]
    assert report.provenance.machine["threads"] == str(torch.get_num_threads())
    assert {"native", "peers"} <= set(report.provenance.extra)
    assert report.provenance.packages["torch"] == torch.__version__
    json.dumps(report.provenance.extra)


def test_tolerance_grows_with_the_root_of_the_terms():
    short, long = case(Counted()), replace(case(Counted()), shape=(4, 8, 1))
    assert long.tolerance == pytest.approx(4 * short.tolerance)
    assert long.tolerance < 1e-5


def test_a_case_that_compares_numbers_of_threads_leaves_them_as_they_were():
    before = torch.get_num_threads()
    (case,) = [case for case in busy.cases() if case.group == "busy-scan"]
    rows = [*run_case(case, 0.05, lambda text: None)]
    assert [row.status for row in rows] in (["met"], ["missed"])
    assert torch.get_num_threads() == before


def test_busy_processes_run_in_sessions_of_their_own_and_end_with_the_timing():
    threads = torch.get_num_threads()
    with busy.busy_loops(2) as loops:
        sessions = {os.getsid(loop.pid) for loop in loops}
        torch.set_num_threads(1)
    assert len(sessions) == 2
    assert os.getsid(0) not in sessions
    assert torch.get_num_threads() == threads
    assert all(loop.returncode is not None for loop in loops)
