"""Calls that give a recurrence a longer memory at the start of training, by what its weights are."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from holdfast.nn import AbstractRecurrent
from holdfast.nn.recurrent import find_recurrent

LOG100 = math.log(100.0)


def longer_memory(model: nn.Module, have: float, wanted: int) -> Iterator[tuple[str, str]]:
    """A call for each kind of recurrence in the model, and what it does; nothing where no call is known.

    Args:
        model: the model.
        have: steps until 1% is left now.
        wanted: steps until 1% is to be left.
    """
    slowest = wanted / LOG100  # steps to 1/e
    told: set[str] = set()
    for weight in find_recurrent(model):
        module, kind = weight.module, type(weight.module).__name__
        if kind in told:
            continue
        told.add(kind)
        several = sum(type(other).__name__ == kind for other in model.modules()) > 1
        where = "m" if several else place(weight.path.rpartition(".")[0])
        found = _call(where, module, weight.name, have, wanted, slowest)
        if found is not None:
            call, effect = found
            loop = f'for m in model.modules(): type(m).__name__ == "{kind}" and {call}' if several else call
            yield loop, effect


def place(path: str) -> str:
    """How Python finds the module or weight at a path of the model: blocks.0.layer is no attribute of its own name."""
    if not path:
        return "model"
    if any(part.isdecimal() for part in path.split(".")):
        return f'model.get_submodule("{path}")'
    return f"model.{path}"


def _call(where: str, module: nn.Module, name: str, have: float, wanted: int, slowest: float) -> tuple[str, str] | None:
    if isinstance(module, (nn.LSTM, nn.GRU)):
        return _gate(where, module, slowest) if module.bias else None
    if isinstance(module, nn.RNN):
        return _matrix(where, name, module, slowest)
    if isinstance(module, AbstractRecurrent):
        return _layer(where, module, have, wanted, slowest)
    if isinstance(getattr(getattr(module, "dt_proj", None), "bias", None), Tensor):
        return _shift(f"{where}.dt_proj.bias.data", have, wanted)
    return None


def _gate(where: str, module: nn.RNNBase, slowest: float) -> tuple[str, str]:
    """sigmoid(b) = e^(-1/slowest), so that b = -log(e^(1/slowest) - 1)."""
    bias = -math.log(math.expm1(1 / slowest))
    n = module.hidden_size
    name = "forget" if isinstance(module, nn.LSTM) else "update"
    many = module.num_layers > 1 or module.bidirectional
    call = f"{where}.bias_hh_l0.data[{n}:{2 * n}].fill_({bias:.2f})"
    if many and where != "m":
        call = f'for n, b in {where}.named_parameters(): "bias_hh" in n and b.data[{n}:{2 * n}].fill_({bias:.2f})'
    return call, f"the {name} gate's bias: at rest it keeps 1/e for {slowest:.0f} steps"


def _matrix(where: str, name: str, module: nn.RNN, slowest: float) -> tuple[str, str]:
    size = math.exp(-1 / slowest)
    if module.nonlinearity == "relu":
        return (
            f"{where}.{name}.data.copy_({size:.4f} * torch.eye({module.hidden_size}))",
            f"every unit remembers by itself for {slowest:.0f} steps to 1/e (as in IRNN)",
        )
    return (
        f"torch.nn.init.orthogonal_({where}.{name}, gain={size:.4f})",
        f"a rotation that shrinks by 1/e in {slowest:.0f} steps; small inputs keep tanh from shrinking it faster",
    )


def _layer(where: str, layer: AbstractRecurrent, have: float, wanted: int, slowest: float) -> tuple[str, str] | None:
    if isinstance(getattr(layer, "log_dt", None), Tensor):
        return _shift(f"{where}.log_dt.data", have, wanted)
    if isinstance(getattr(layer, "step_bias", None), Tensor):
        return _shift(f"{where}.step_bias.data", have, wanted)
    if hasattr(layer, "set_eigenvalues_") and layer.time == "discrete":
        with torch.no_grad():
            largest = float(layer.eigenvalues().abs().max())
        factor = min(math.exp(-1 / slowest) / max(largest, 1e-6), 1 / max(largest, 1e-6))
        return (
            f"{where}.set_eigenvalues_({factor:.4f} * {where}.eigenvalues().detach())",
            f"the slowest mode then keeps 1/e for {slowest:.0f} steps",
        )
    if hasattr(layer, "set_eigenvalues_"):
        return (
            f"{where}.set_eigenvalues_({max(have, 1.0) / wanted:.3g} * {where}.eigenvalues().detach())",
            f"all modes {wanted / max(have, 1.0):.2g} times slower",
        )
    return None


def _shift(what: str, have: float, wanted: int) -> tuple[str, str]:
    times = wanted / max(have, 1.0)
    return (
        f"{what}.sub_({math.log(times):.2f})",
        f"a limit on dt: steps {times:.2g} times shorter, all modes slower by that",
    )
