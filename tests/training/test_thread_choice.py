"""The number of threads of a run: tried on its own steps, and again when steps get slower."""

import pytest

from holdfast.training._threads import RETRY_STEPS, TRIAL_STEPS, WARM_UP_STEPS, WINDOW_STEPS, ThreadChoice

TRIAL = 2 * TRIAL_STEPS


class Machine:
    """Seconds of a step by the number of threads, which a test changes."""

    def __init__(self, most, **seconds):
        self.seconds, self.used, self.said = seconds, [], []
        self.choice = ThreadChoice(most, self.used.append)

    def run(self, steps):
        for _ in range(steps):
            text = self.choice.after_step(self.seconds["one" if self.choice.threads == 1 else "all"], 100)
            self.said += [text] if text else []


def test_a_team_that_wins_is_kept_and_nothing_is_said():
    machine = Machine(2, one=1.0, all=0.6)
    machine.run(WARM_UP_STEPS + TRIAL)
    assert machine.choice.threads == 2
    assert machine.said == []


def test_one_thread_is_taken_where_a_team_loses_and_it_is_said():
    machine = Machine(4, one=0.013, all=1.336)
    machine.run(WARM_UP_STEPS + TRIAL)
    assert machine.choice.threads == 1
    assert machine.said == ["torch computes with 1 of 4 threads: all of them took 1e+02 times as long as one"]


def test_both_are_tried_again_when_steps_get_slower():
    machine = Machine(2, one=1.0, all=0.6)
    machine.run(WARM_UP_STEPS + TRIAL)
    machine.seconds["all"] = 20.0
    machine.run(WINDOW_STEPS + TRIAL)
    assert machine.choice.threads == 1
    assert len(machine.said) == 1


def test_both_are_tried_again_after_long_when_the_machine_may_be_idle():
    machine = Machine(2, one=1.0, all=20.0)
    machine.run(WARM_UP_STEPS + TRIAL)
    machine.seconds["all"] = 0.6
    machine.run(RETRY_STEPS - 1)
    assert machine.choice.threads == 1
    machine.run(1 + TRIAL)
    assert machine.choice.threads == 2


@pytest.mark.parametrize("most", [1])
def test_one_thread_is_never_changed(most):
    machine = Machine(most, one=1.0)
    machine.run(3 * RETRY_STEPS)
    assert machine.used == []
