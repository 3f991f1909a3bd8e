"""Calls that may help, as text: a longer memory by what the weights are, another layer, smaller steps of a selective one."""

from __future__ import annotations

import copy
import math
import operator
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.nn import AbstractRecurrent, RecurrenceView, recurrences
from holdfast.nn._acceleration import CLASS_PREFIX
from holdfast.nn._recurrent_weight import RecurrentWeight
from holdfast.nn._views.view import StepSource
from holdfast.parameterizations import get
from holdfast.stability.certificates._certificate import time_constant

LOG100 = math.log(100.0)
REPLACEABLE_KINDS = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN")
MAX_STATE_SIZE = (
    512  # numbers of a state up to which a bias is tried before it is reported: a try takes its eigenvalues
)
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
    # the command accelerates a transformers model, the user's own may be as it was
    own = kind.removeprefix(CLASS_PREFIX)
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
    # slower modes at the same dt: a smaller dt would also lower what a step of input adds, and D would drown it
    if hasattr(view.module, "set_eigenvalues_"):
        return _layer(where, view, have, wanted)
    if view.steps is not None and view.steps.bias is not None:
        return _shift(f"{where}.{view.steps.bias}.data", have, wanted)
    if isinstance(view.module, AbstractRecurrent):
        return _layer(where, view, have, wanted)
    if not view.nonlinear and view.weights[0].storage in ("log_negative", "softplus_negative"):
        call, _ = _shift(f"{where}.{view.weights[0].name}.data", have, wanted)
        return call, f"decays {wanted / max(have, 1.0):.3g} times slower in every channel"
    return None


def _gate(where: str, view: RecurrenceView, slowest: float) -> tuple[str, str]:
    gate = view.gate
    assert gate is not None
    sign = 1 if gate.keeps else -1
    part = f"data[{gate.first}:{gate.last}].fill_({sign * _bias(view, slowest):.2f})"
    effect = f"overwrites the {gate.name} gate's bias"
    if len(_same_module(view.module)) == 1:
        return f"{where}.{gate.bias}.{part}", effect
    return f'for n, b in {where}.named_parameters():\n    if "bias_hh" in n:\n        b.{part}', effect


def bias_in(call: str) -> float | None:
    """The bias towards keeping that a call of `longer_memory` gives a gate; None of any other call.

    Args:
        call: what to type.
    """
    found = re.search(r"bias_hh.*\.fill_\((-?[\d.]+)\)", call, re.DOTALL)
    return None if found is None else float(found[1])


def _bias(view: RecurrenceView, slowest: float) -> float:
    """sigmoid(b) = e^(-1/slowest), so that b = -log(e^(1/slowest) - 1); less where units that feed each other last longer."""
    alone = -math.log(math.expm1(1 / slowest))
    if view.step_map().size > MAX_STATE_SIZE:
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
            sign = 1 if view.gate.keeps else -1
            getattr(view.module, view.gate.bias)[view.gate.first : view.gate.last] = sign * bias
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
        start, effect = (
            f"w.data.copy_({size:.4f} * torch.eye({n}))",
            "overwrites the recurrent weights: each unit keeps its own state",
        )
    else:
        start, effect = (
            f"torch.nn.init.orthogonal_(w, gain={size:.4f})",
            "overwrites the recurrent weights with a rotation",
        )
    call = f'for n, w in {where}.named_parameters():\n    if "weight_hh" in n:\n        {start}'
    if module.bias:
        call += '\n    if "bias" in n:\n        w.data.zero_()'
    return call, effect


def _layer(where: str, view: RecurrenceView, have: float, wanted: int) -> tuple[str, str] | None:
    layer: Any = view.module
    share = max(have, 1.0) / wanted
    if not hasattr(layer, "set_eigenvalues_"):
        return _dense(where, view, share) if isinstance(getattr(layer, "recurrence", None), RecurrentWeight) else None
    lines = [f"lam = {where}.eigenvalues().detach()"]
    if layer.time == "discrete":  # |lam|^share, with the same angle
        lines.append("size = lam.abs().clamp(min=1e-6)")
        lines.append(f"{where}.set_eigenvalues_(lam * size ** {share - 1:.3g})")
    else:
        lines.append(f"{where}.set_eigenvalues_({share:.3g} * lam)")
    return "\n".join(lines), f"all modes {1 / share:.2g} times slower"


def _dense(where: str, view: RecurrenceView, share: float) -> tuple[str, str]:
    """W of all rates slower by `share`: lam share in continuous time, |lam|^share of the slowest in discrete time."""
    factor = share
    if view.time == "discrete":
        slowest = float(view.eigenvalues().abs().max())
        factor = max(slowest, 1e-6) ** (share - 1)
    call = f"W = {where}.recurrence().detach()\n{where}.recurrence.set_({factor:.5g} * W)"
    return call, f"the slowest mode is {1 / share:.2g} times slower"


def _shift(what: str, have: float, wanted: int) -> tuple[str, str]:
    times = wanted / max(have, 1.0)
    return (
        f"{what}.sub_({math.log(times):.2f})",
        f"a limit on dt: steps {times:.3g} times shorter, and all modes slower by that factor",
    )


def another_layer(model: nn.Module) -> tuple[str, str] | None:
    """A stack of S4D layers in the place of every torch.nn.LSTM, GRU or RNN; None where there is none.

    Args:
        model: the model.
    """
    modules = {view.owner: view.module for view in recurrences(model) if view.kind in REPLACEABLE_KINDS}
    lines = [_assigned(path, _stack_call(rnn)) for path, rnn in modules.items()]
    if not lines:
        return None
    return "\n".join(lines), "replaces the layer by an untrained one: its weights are lost"


def _stack_call(rnn: Any) -> str:
    """One layer more than before: the first has a filter for each input feature, the second for each of the outputs."""
    options = {"num_layers": (rnn.num_layers + 1, 1), "dropout": (rnn.dropout, 0.0)}
    options |= {"bidirectional": (rnn.bidirectional, False), "batch_first": (rnn.batch_first, False)}
    if rnn.hidden_size % 2:  # states of S4D come in pairs
        options["state_size"] = (rnn.hidden_size + 1, rnn.hidden_size)
    said = "".join(f", {name}={value}" for name, (value, usual) in options.items() if value != usual)
    return f'holdfast.nn.RecurrentStack(\n    {rnn.input_size}, {rnn.hidden_size}{said}, layer="s4d"\n)'


def _assigned(path: str, value: str) -> str:
    if not path:
        return f"model = {value}"
    parent, _, name = path.rpartition(".")
    if name.isdecimal():
        return f"{place(parent)}[{name}] = {value}"
    return f"{place(parent)}.{name} = {value}"


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


def smaller_steps(kind: str, several: list[Wiped], worst: Wiped) -> tuple[str, str] | None:
    """What to type, and what it does; None where only the layer's own code could be changed.

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
            "inputs change dt less: an initial limit on dt",
        )
    else:
        return None
    erases = "no single input leaves less than 1/e of the slowest state"
    return (call if len(several) == 1 else each(kind, call)), f"{effect}, {erases}"


def _share(one: Wiped, bias: Tensor) -> float:
    """softplus(share raw + bias) = limit where softplus(raw + bias) = largest, at the bias of the largest steps."""
    top = float(bias.detach().max())
    steps = torch.tensor([one.limit, one.largest], dtype=torch.float64)
    limit, largest = get("softplus").inverse(-steps).tolist()  # the parameterization is -softplus
    return max((limit - top) / max(largest - top, 1e-6), 0.0)
