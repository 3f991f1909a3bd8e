import math

import pytest

from holdfast_papers.benchmarks import timing
from holdfast_papers.benchmarks.timing import Duel, Quartiles, duel, sweep


class Machine:
    """A clock that only moves when a step runs, and the order in which steps ran."""

    def __init__(self):
        self.now, self.calls, self.slowness = 0.0, [], 1.0

    def clock(self):
        return self.now

    def step(self, name, seconds):
        def run():
            self.calls.append(name)
            self.now += seconds * self.slowness

        return run


def run_duel(machine, ours, other, budget):
    return duel(machine.step("a", ours), machine.step("b", other), budget, clock=machine.clock, settle=0)


def test_contenders_take_turns_and_swap_who_is_first():
    machine = Machine()
    run_duel(machine, 0.1, 0.2, budget=2)
    assert machine.calls[:6] == ["a"] * 3 + ["b"] * 3  # to find out how long a step takes
    assert "".join(machine.calls[6:14]) == "abbaabba"


def test_ratio_is_taken_within_a_round_so_that_a_slow_spell_cancels():
    found = Duel(ours=(1.0, 3.0, 1.0), other=(2.0, 6.0, 2.0))
    assert found.ratio == Quartiles(2.0, 2.0, 2.0)
    # medians of the two columns alone would not have seen it
    assert Duel(ours=(1.0, 3.0), other=(4.0, 6.0)).ratio.median == 3.0


def test_quartiles_are_those_of_the_sorted_sample():
    assert Quartiles.of([5, 1, 3, 2, 4]) == Quartiles(2, 3, 4)
    assert Quartiles.of([7]) == Quartiles(7, 7, 7)
    assert Quartiles(2, 4, 8).inverse() == Quartiles(1 / 8, 1 / 4, 1 / 2)


def test_short_steps_are_repeated_until_they_fill_a_block():
    machine = Machine()
    found = run_duel(machine, 1e-5, 1e-3, budget=0.1)
    repeats = math.ceil(timing.BLOCK / 1e-5)
    assert machine.calls.count("a") >= timing.FEWEST * repeats
    # sums of many small floats: relative rounding below 1e-9
    assert found.ratio.median == pytest.approx(100, rel=1e-9)
    assert found.ours_ms == pytest.approx(1e-2, rel=1e-9)


def test_rounds_follow_the_budget():
    few = run_duel(Machine(), 0.1, 0.1, budget=2)
    many = run_duel(Machine(), 0.1, 0.1, budget=4)
    assert timing.FEWEST <= len(few.ours) < len(many.ours) <= timing.MOST
    assert len(run_duel(Machine(), 0.01, 0.01, budget=1000).ours) == timing.MOST


def test_a_step_of_many_seconds_is_measured_once_and_not_left_out():
    machine = Machine()
    found = run_duel(machine, 0.1, 100, budget=2)
    assert machine.calls.count("b") == 1
    assert found.ratio.median == pytest.approx(1000)


def test_times_of_a_sweep_are_medians_of_interleaved_rounds():
    machine = Machine()
    steps = [machine.step(str(n), 0.02 * n) for n in (1, 2, 3)]
    assert sweep(steps, 1.0, clock=machine.clock, settle=0) == pytest.approx([0.02, 0.04, 0.06])
    assert "".join(machine.calls[9:15]) == "123123"


def test_garbage_collection_is_switched_on_again_after_a_failure():
    import gc

    def fails():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        duel(fails, fails, 1.0)
    assert gc.isenabled()
