"""Calls that give a recurrence a longer memory at the start of training, by what its weights are."""

from __future__ import annotations

import copy
import math
import textwrap
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from holdfast.nn import AbstractRecurrent, RecurrenceView, recurrences
from holdfast.nn.acceleration import CLASS_PREFIX
from holdfast.stability.certificates._certificate import time_constant

LOG100 = math.log(100.0)
LARGEST = 1024  # numbers of a state up to which a bias is tried before it is told
HALVINGS = 7  # of the range in which it is looked for: 0.04 of a bias
NEARLY, CLOSE = 1.3, 1.5  # times longer than asked for: what is looked for, and what is left as it is


def longer_memory(model: nn.Module, have: float, wanted: int) -> Iterator[tuple[str, str]]:
    """A call for each kind of recurrence in the model, and what it does; nothing where no call is known.

    Args:
        model: the model.
        have: steps until 1% is left now.
        wanted: steps until 1% is to be left.
    """
    slowest = wanted / LOG100  # steps to 1/e
    told: set[str] = set()
    views = recurrences(model)
    for view in views:
        kind = type(view.module).__name__
        if kind in told:
            continue
        told.add(kind)
        several = len({other.owner for other in views if type(other.module).__name__ == kind}) > 1
        where = "m" if several else place(view.owner)
        advised = _call(where, view, have, wanted, slowest)
        if advised is not None:
            call, effect = advised
            yield each(kind, call) if several else call, effect


def each(kind: str, call: str) -> str:
    """The call for every module m of a class; lines short enough to be pasted from a screen of 80 columns.

    Args:
        kind: name of the class.
        call: what to do with m.
    """
    own = kind.removeprefix(
        CLASS_PREFIX
    )  # the command accelerates a transformers model, the user's own may be as it was
    test = f'type(m).__name__ == "{kind}"' if own == kind else f'type(m).__name__.endswith("{own}")'
    return f"for m in model.modules():\n    if {test}:\n{textwrap.indent(call, ' ' * 8)}"


def place(path: str) -> str:
    """How Python finds the module or weight at a path of the model: blocks.0.layer is no attribute of its own name."""
    if not path:
        return "model"
    if any(part.isdecimal() for part in path.split(".")):
        return f'model.get_submodule("{path}")'
    return f"model.{path}"


def _call(where: str, view: RecurrenceView, have: float, wanted: int, slowest: float) -> tuple[str, str] | None:
    if view.gate is not None:
        return _gate(where, view, slowest)
    if view.elementwise:
        return _matrix(where, view, slowest)
    if view.steps is not None and view.steps.bias is not None:
        return _shift(f"{where}.{view.steps.bias}.data", have, wanted)
    if isinstance(view.module, AbstractRecurrent):
        return _layer(where, view.module, have, wanted)
    if not view.nonlinear and view.weights[0].storage in ("log_negative", "softplus_negative"):
        call, _ = _shift(f"{where}.{view.weights[0].name}.data", have, wanted)
        return call, f"decays {wanted / max(have, 1.0):.3g} times slower in every channel"
    return None


def _gate(where: str, view: RecurrenceView, slowest: float) -> tuple[str, str]:
    gate = view.gate
    assert gate is not None
    part = f"data[{gate.first}:{gate.last}].fill_({_bias(view, slowest):.2f})"
    effect = f"the {gate.name} gate's bias: {_lasts(slowest)}"
    if len(_same_module(view.module)) == 1:
        return f"{where}.{gate.bias}.{part}", effect
    return f'for n, b in {where}.named_parameters():\n    if "bias_hh" in n:\n        b.{part}', effect


def _bias(view: RecurrenceView, slowest: float) -> float:
    """sigmoid(b) = e^(-1/slowest), so that b = -log(e^(1/slowest) - 1); less where units that feed each other last longer."""
    alone = -math.log(math.expm1(1 / slowest))
    if view.step_map().size > LARGEST:
        return alone
    low, high = -2.0, alone
    if _time_at(view.module, high) <= CLOSE * slowest:
        return alone
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _time_at(view.module, middle) < NEARLY * slowest else (low, middle)
    return low


def _time_at(module: nn.Module, bias: float) -> float:
    """Steps to 1/e near rest where every gate that keeps has this bias; inf where deviations grow."""
    tried = _same_module(copy.deepcopy(module))
    with torch.no_grad():
        for view in tried:
            assert view.gate is not None
            getattr(view.module, view.gate.bias)[view.gate.first : view.gate.last] = bias
    steps = time_constant(min(view.margin() for view in tried))
    return steps if steps >= 0 else math.inf


def _same_module(module: nn.Module) -> tuple[RecurrenceView, ...]:
    """The recurrences of one module: its layers and directions."""
    return tuple(view for view in recurrences(module) if view.owner == "")


def _matrix(where: str, view: RecurrenceView, slowest: float) -> tuple[str, str]:
    """Biases go too: they hold units where their slope is below 1, and off where it is 0."""
    module: Any = view.module
    size, n = math.exp(-1 / slowest), module.hidden_size
    if module.nonlinearity == "relu":
        start, effect = f"w.data.copy_({size:.4f} * torch.eye({n}))", "every unit remembers by itself"
    else:
        start, effect = f"torch.nn.init.orthogonal_(w, gain={size:.4f})", "a rotation that small inputs do not saturate"
    call = f'for n, w in {where}.named_parameters():\n    if "weight_hh" in n:\n        {start}'
    if module.bias:
        call += '\n    if "bias" in n:\n        w.data.zero_()'
    return call, f"{effect}: {_lasts(slowest)}"


def _lasts(slowest: float) -> str:
    """In the measure that the diagnosis begins with, 1%, and in that of its edge, 1/e."""
    return f"at rest 1% is left after {slowest * LOG100:.0f} steps, 1/e after {slowest:.0f}"


def _layer(where: str, layer: AbstractRecurrent, have: float, wanted: int) -> tuple[str, str] | None:
    if not hasattr(layer, "set_eigenvalues_"):
        return None
    share = max(have, 1.0) / wanted
    lines = [f"lam = {where}.eigenvalues().detach()"]
    if layer.time == "discrete":  # |lam|^share, with the same angle
        lines.append("size = lam.abs().clamp(min=1e-6)")
        lines.append(f"{where}.set_eigenvalues_(lam * size ** {share - 1:.3g})")
    else:
        lines.append(f"{where}.set_eigenvalues_({share:.3g} * lam)")
    return "\n".join(lines), f"all modes {1 / share:.2g} times slower"


def _shift(what: str, have: float, wanted: int) -> tuple[str, str]:
    times = wanted / max(have, 1.0)
    return (
        f"{what}.sub_({math.log(times):.2f})",
        f"a limit on dt: steps {times:.3g} times shorter, all modes slower by that",
    )
