"""Calls that keep a selective recurrence from being wiped by one input: smaller steps dt, by what the layer has for it."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.diagnosis.longer import each, place
from holdfast.nn import RecurrenceView
from holdfast.nn._views.view import StepSource
from holdfast.parameterizations import get


@dataclass(frozen=True, eq=False)
class Wiped:
    """A selective layer whose largest step is too long.

    Args:
        view: its recurrence.
        largest: the largest dt that was seen.
        limit: the dt at which 1/e of the slowest state is left.
    """

    view: RecurrenceView
    largest: float
    limit: float


def smaller_steps(kind: str, several: list[Wiped], worst: Wiped) -> tuple[str, str]:
    """What to type, and what it does.

    Args:
        kind: name of the layers' class.
        several: the layers.
        worst: the one whose state is wiped most.
    """
    where = place(worst.view.owner) if len(several) == 1 else "m"
    limit = min(one.limit for one in several)
    steps = worst.view.steps or StepSource()
    if steps.limit is not None:
        call, effect = f"{where}.{steps.limit} = (0.0, {limit:.3g})", "a limit on dt"
    elif steps.weight is not None and steps.bias is not None:
        bias = operator.attrgetter(steps.bias)(worst.view.module)
        share = min(_share(one, bias) for one in several)
        call, effect = (
            f"{where}.{steps.weight}.data.mul_({share:.2g})",
            "inputs move dt less: a limit on dt to start from",
        )
    else:
        return f"dt = dt.clamp(max={limit:.3g})  # in {kind}'s forward, after softplus", _ERASES.format("a limit on dt")
    return (call if len(several) == 1 else each(kind, call)), _ERASES.format(effect)


_ERASES = "{}, no single input erases more than 1/e of the slowest state"


def _share(one: Wiped, bias: Tensor) -> float:
    """softplus(share raw + bias) = limit where softplus(raw + bias) = largest, at the bias of the largest steps."""
    top = float(bias.detach().max())
    steps = torch.tensor([one.limit, one.largest], dtype=torch.float64)
    limit, largest = get("softplus").inverse(-steps).tolist()  # the parameterization is -softplus
    return max((limit - top) / max(largest - top, 1e-6), 0.0)
