"""Calls that keep a selective recurrence from being wiped by one input: smaller steps dt, by what the layer has for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.diagnosis.longer import each, place
from holdfast.parameterizations import get


@dataclass(frozen=True, eq=False)
class Wiped:
    """A selective layer whose largest step is too long.

    Args:
        where: its path.
        module: the layer.
        largest: the largest dt that was seen.
        limit: the dt at which 1/e of the slowest state is left.
    """

    where: str
    module: nn.Module
    largest: float
    limit: float


def owner(model: nn.Module, path: str) -> tuple[str, nn.Module]:
    """The layer of a recurrence and its path: the recurrence may be named by the layer or by a weight of it.

    Args:
        model: the model.
        path: of the recurrence.
    """
    modules = dict(model.named_modules())
    where = path if path in modules else path.rpartition(".")[0]
    return where, modules[where]


def smaller_steps(kind: str, several: list[Wiped], worst: Wiped) -> tuple[str, str]:
    """What to type, and what it does.

    Args:
        kind: name of the layers' class.
        several: the layers.
        worst: the one whose state is wiped most.
    """
    where = place(worst.where) if len(several) == 1 else "m"
    limit = min(one.limit for one in several)
    if isinstance(getattr(worst.module, "time_step_limit", None), (tuple, list)):
        call, effect = f"{where}.time_step_limit = (0.0, {limit:.3g})", "a limit on dt"
    elif (weight := _step_weight(worst.module)) is not None:
        name, bias = weight
        share = min(_share(one, bias) for one in several)
        call, effect = f"{where}.{name}.data.mul_({share:.2g})", "inputs move dt less: a limit on dt to start from"
    else:
        return f"dt = dt.clamp(max={limit:.3g})  # in {kind}'s forward, after softplus", _ERASES.format("a limit on dt")
    return (call if len(several) == 1 else each(kind, call)), _ERASES.format(effect)


_ERASES = "{}, no single input erases more than 1/e of the slowest state"


def _step_weight(module: nn.Module) -> tuple[str, Tensor] | None:
    """The weight by which inputs move dt, and the bias beside it."""
    inner = getattr(module, "dt_proj", None)
    if isinstance(inner, nn.Linear) and inner.bias is not None:
        return "dt_proj.weight", inner.bias
    bias = getattr(module, "step_bias", None)
    return ("step_weight", bias) if isinstance(bias, Tensor) and hasattr(module, "step_weight") else None


def _share(one: Wiped, bias: Tensor) -> float:
    """softplus(share raw + bias) = limit where softplus(raw + bias) = largest, at the bias of the largest steps."""
    top = float(bias.detach().max())
    steps = torch.tensor([one.limit, one.largest], dtype=torch.float64)
    limit, largest = get("softplus").inverse(-steps).tolist()  # the parameterization is -softplus
    return max((limit - top) / max(largest - top, 1e-6), 0.0)
