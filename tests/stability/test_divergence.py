"""How early the monitor speaks on runs that diverge, and how many false alarms on runs that do not."""

import pytest
from diverging import doubling, run

SEEDS = range(5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "optimizer"), [("mamba", "sgd"), ("lstm", "adam"), ("s4d", "adam"), ("relu", "sgd")])
def test_the_monitor_speaks_before_the_loss_doubles(kind, optimizer):
    if kind == "mamba":
        pytest.importorskip("transformers")
    leads = []
    for seed in SEEDS:
        losses, alarms = run(kind, optimizer, seed, diverging=True)
        acute = [alarm.step for alarm in alarms if alarm.acute]
        leads.append(doubling(losses) - min(acute, default=len(losses)))
    assert sum(lead >= 1 for lead in leads) >= 4, leads


@pytest.mark.slow
def test_the_monitor_is_silent_on_runs_that_are_fine():
    pytest.importorskip("transformers")
    in_vain = []
    for kind, optimizer in [("mamba", "sgd"), ("lstm", "adam"), ("s4d", "adam"), ("relu", "sgd")]:
        for seed in SEEDS:
            losses, alarms = run(kind, optimizer, seed, diverging=False)
            assert losses[-1] < losses[0]
            in_vain += [(kind, seed, alarm.text) for alarm in alarms[:1]]
    assert len(in_vain) <= 1, in_vain
