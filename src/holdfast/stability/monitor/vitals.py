"""What a monitor's records mean for memory: time constants now, and the longest that the rest of a run can reach."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from holdfast.errors import ArgumentError
from holdfast.stability._movement import Movement, memory_parameters
from holdfast.stability.monitor.monitor import GradientMonitor


def time_constant_of(margin: float) -> float:
    """Steps to 1/e of a recurrence at this distance from the boundary, spectral radius 1 - `margin`; inf at or past it."""
    if margin <= 0:
        return math.inf
    return -1 / math.log1p(-margin) if margin < 1 else 0.0


def vitals(monitor: GradientMonitor) -> dict[str, float]:
    """Margin, time constant and gradient over weight of each weight's last record, and what was seen of all of them.

    Args:
        monitor: one that has recorded.
    """
    values: dict[str, float] = {}
    for name, value in monitor.newest().items():
        path, _, quantity = name.rpartition("/")
        if quantity == "norm_ratio":
            values[f"{path}/gradient_over_weight"] = value
        elif quantity == "margin":
            values[f"{path}/margin"] = value
            values[f"{path}/time_constant"] = time_constant_of(value)
    values |= monitor.last_scalars()
    return {name: value for name, value in values.items() if math.isfinite(value)}


def reach_ahead(monitor: GradientMonitor, optimizer: Optimizer, steps: int) -> dict[str, float]:
    """The time constant that each recurrence can get to in so many steps at the learning rate that it has now.

    Recurrences made by a matrix are left out: following their slowest eigenvalue costs seconds
    (`holdfast.stability.reach` does it). So are those whose margin the last record has not, to save time.

    Args:
        monitor: watches the recurrences.
        optimizer: moves them.
        steps: that are left of the run.
    """
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    reached: dict[str, float] = {}
    measured = {name.removesuffix("/margin") for name in monitor.newest() if name.endswith("/margin")}
    known = [w.view for w in monitor.watched if w.view is not None and w.path in measured]
    for view in dict.fromkeys(known):
        dense = view.gate is None and (view.nonlinear or view.matrix() is not None)
        own = [] if dense else [rates[id(p)] for p in memory_parameters(view) if id(p) in rates]
        if not own or view.stated:
            continue
        try:
            reached[view.path or "model"] = Movement(view).time_constant(max(own) * max(steps, 0))
        except ArgumentError:
            continue  # on its boundary, or made of weights whose effect is not known: there is nothing to say
    return {path: steps for path, steps in reached.items() if math.isfinite(steps)}
