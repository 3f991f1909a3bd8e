"""fit_decay on real networks, whose law is known from where they rest."""

import confusion
import networks
import pytest


def refuted(verdicts):
    return [networks.row(v) for v in verdicts if v.answer in ("wrong", "missed")]


@pytest.mark.parametrize("kind", networks.KINDS)
def test_networks_before_training_are_called_what_they_are_or_nothing(kind):
    net = networks.make(kind, "adding", 0)
    assert refuted(networks.judge(net, kind, probe, horizon=300) for probe in ("impulse", "reversed")) == []


@pytest.mark.slow
def test_networks_trained_on_the_adding_problem_are_called_what_they_are_or_nothing():
    assert refuted(networks.zoo(tasks=("adding",), lengths=(600,))) == []


def test_the_page_says_that_no_network_got_a_wrong_verdict():
    section = confusion.PAGE.read_text().partition(networks.SECTION)[2]
    cells = [line.split("|")[2:-1] for line in section.splitlines() if line.startswith(("| random", "| trained"))]
    counts = [[int(cell) for cell in row] for row in cells]
    assert [sum(row) for row in counts] == [18, 18]
    assert [row[-1] for row in counts] == [0, 0]
