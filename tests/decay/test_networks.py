"""fit_decay on real networks, whose law is known from where they rest."""

from collections import Counter

import networks
import pytest


@pytest.mark.parametrize("kind", networks.KINDS)
def test_networks_before_training_are_called_what_they_are_or_nothing(kind):
    net = networks.make(kind, "adding", 0)
    for probe in ("impulse", "reversed"):
        found = networks.judge(net, kind, probe, horizon=300)
        assert found.answer != "wrong", found
        assert found.answer == "right" or found.excused, found


@pytest.mark.slow
def test_no_network_of_the_zoo_is_called_what_it_is_not():
    found = list(networks.zoo())
    counts = Counter(v.answer for v in found)
    assert len(found) == 36
    assert counts["wrong"] == 0, [v for v in found if v.answer == "wrong"]
    assert counts["right"] >= 24, counts
    assert all(v.excused for v in found if v.answer == "undecided"), [v for v in found if not v.excused]
