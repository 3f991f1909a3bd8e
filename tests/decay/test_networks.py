"""fit_decay on real networks, whose law is known from where they rest."""

import networks
import pytest


@pytest.mark.parametrize("kind", networks.KINDS)
def test_networks_before_training_are_called_what_they_are_or_nothing(kind):
    net = networks.make(kind, "adding", 0)
    for probe in ("impulse", "reversed"):
        found = networks.judge(net, kind, probe, horizon=300)
        assert found.answer != "wrong", found
        assert found.answer == "right" or found.excused, found
