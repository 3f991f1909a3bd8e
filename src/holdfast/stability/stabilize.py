"""Swap the parameterization of a model's recurrent weights without changing what the model computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from holdfast._types import Time
from holdfast.errors import ArgumentError, RangeError
from holdfast.nn import AbstractRecurrent, Recurrence
from holdfast.nn.recurrent import RecurrentWeight, find_recurrent
from holdfast.parameterizations import (
    AbstractParameterization,
    fit_constants,
    get,
    get_matrix,
)


class LogNegative(nn.Module):
    """A weight stored as log(-lam), as Mamba's A_log: log(-f(w)) of a free weight w."""

    def __init__(self, f: AbstractParameterization) -> None:
        super().__init__()
        self.f = f

    def forward(self, w: Tensor) -> Tensor:
        """The stored form of f(w)."""
        return torch.log(-self.f(w))

    def right_inverse(self, stored: Tensor) -> Tensor:
        """The free weight of a stored value."""
        return self.f.inverse(-torch.exp(stored))


@dataclass(frozen=True)
class Stabilized:
    """What `stabilize` changed: each weight's path and its new parameterization; `undo()` takes it back."""

    changed: dict[str, nn.Module]
    _undo: tuple[Callable[[], None], ...]

    def undo(self) -> None:
        """Puts plain weights back that hold the present values."""
        for step in reversed(self._undo):
            step()


def stabilize(
    model: nn.Module,
    parameterization: str | AbstractParameterization = "best",
    names: Sequence[str] | None = None,
    *,
    time: Time | None = None,
) -> Stabilized:
    """Gives the recurrent weights of `model` a stable parameterization, in place; its outputs stay as they are.

    Known: holdfast's layers, `torch.nn.RNN` (weight_hh), and weights called A_log, log_A_real, Lambda_re and the
    like, as in Mamba, S4D and S5. `names` picks weights by path instead, of any module: a square matrix is taken as a
    dense W, anything else as eigenvalues; `time` says which kind where the values do not. Dense weights get the
    complete matrix form, others `parameterization` with constants that hold the present eigenvalues with room.
    Afterwards no change of the free weights makes the recurrence unstable. Nothing is changed when a weight is refused.
    """
    weights = find_recurrent(model) if names is None else [_named(model, path) for path in names]
    if not weights:
        raise ArgumentError(
            "no recurrent weight was found; name them: stabilize(model, names=['layer.weight']). "
            f"The model's weights: {', '.join(n for n, _ in model.named_parameters())}"
        )
    plans = [plan for weight in weights if (plan := _plan(weight, parameterization, time)) is not None]
    changed = {path: new for path, new, _, _ in plans}
    undo = []
    for _, _, apply, take_back in plans:
        apply()
        undo.append(take_back)
    return Stabilized(changed, tuple(undo))


Plan = tuple[str, nn.Module, Callable[[], None], Callable[[], None]]


def _plan(weight: RecurrentWeight, wanted: str | AbstractParameterization, time: Time | None) -> Plan | None:
    """How to change one weight and how to change it back; raises before anything is touched."""
    if weight.kind == "layer":
        return _plan_layer(weight, wanted)
    if weight.kind == "torch":
        if not isinstance(weight.module, nn.RNN):
            raise ArgumentError(
                f"{weight.path} belongs to a gated {type(weight.module).__name__}, whose stability is not a matter of "
                "one matrix; leave it out: pass the other weights as names"
            )
        return _register(weight, get_matrix(time="discrete"))
    value = getattr(weight.module, weight.name).detach()
    if weight.storage == "log_negative":
        f = fit_constants(get(wanted, time="continuous"), -torch.exp(value))
        return _register(weight, LogNegative(f))
    kind = time or _infer_time(value, weight.path)
    if value.ndim == 2 and value.shape[0] == value.shape[1]:
        return _register(weight, get_matrix(time=kind))
    return _register(weight, fit_constants(get(wanted, time=kind), value))


def _plan_layer(weight: RecurrentWeight, wanted: str | AbstractParameterization) -> Plan | None:
    layer = weight.module
    assert isinstance(layer, AbstractRecurrent)
    part = getattr(layer, weight.name)
    if isinstance(part, Recurrence):
        return _plan_recurrence(weight.path, part, wanted)
    if weight.name != "w":
        if weight.name == "U":
            raise ArgumentError(
                f"{weight.path} belongs to a gated {type(layer).__name__}; pass the other weights as names"
            )
        return None  # phases, frequencies and step sizes cannot leave the stable region
    before: AbstractParameterization = layer.parameterization  # type: ignore[assignment]
    lam = before(part).detach()
    after = fit_constants(get(wanted, time=before.time), lam)
    after.inverse(lam)
    return weight.path, after, lambda: _switch(layer, after), lambda: _switch(layer, before)


@torch.no_grad()
def _switch(layer: nn.Module, after: AbstractParameterization) -> None:
    w: Tensor = layer.w  # type: ignore[assignment]
    lam = layer.parameterization(w)  # type: ignore[operator]
    w.copy_(after.inverse(lam))
    layer.parameterization = after


def _plan_recurrence(path: str, part: Recurrence, wanted: str | AbstractParameterization) -> Plan:
    before = part.parameterization
    W = part().detach()
    after: nn.Module = get_matrix(time=part.time) if W.ndim == 2 else fit_constants(get(wanted, time=part.time), W)
    after.right_inverse(W)  # type: ignore[operator]
    return path, after, lambda: part.switch_(after), lambda: part.switch_(before)  # type: ignore[arg-type]


def _register(weight: RecurrentWeight, f: nn.Module) -> Plan:
    f.right_inverse(getattr(weight.module, weight.name).detach())  # type: ignore[operator]

    def apply() -> None:
        parametrize.register_parametrization(weight.module, weight.name, f)

    def take_back() -> None:
        parametrize.remove_parametrizations(weight.module, weight.name, leave_parametrized=True)

    return weight.path, f, apply, take_back


def _named(model: nn.Module, path: str) -> RecurrentWeight:
    prefix, _, name = path.rpartition(".")
    try:
        module = model.get_submodule(prefix)
        value = getattr(module, name)
    except AttributeError:
        known = ", ".join(n for n, _ in model.named_parameters())
        raise ArgumentError(f"the model has no weight called {path!r}; its weights: {known}") from None
    for found in find_recurrent(model):
        if found.path == path:
            return found
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise ArgumentError(f"{path} is not a real weight but {type(value).__name__}; name a parameter")
    return RecurrentWeight(path, module, name, "named")


def _infer_time(value: Tensor, path: str) -> Time:
    """Continuous where all real parts are negative, discrete where all moduli are below 1; else refused."""
    square = value.ndim == 2 and value.shape[0] == value.shape[1]
    lam = torch.linalg.eigvals(value.double()) if square else value.double()
    continuous = bool((lam.real < 0).all())
    discrete = bool((lam.abs() < 1).all())
    if continuous and discrete:
        raise ArgumentError(f"the eigenvalues of {path} fit continuous and discrete time; say which: time='continuous'")
    if not continuous and not discrete:
        worst = ", ".join(f"{v:.4g}" for v in lam.flatten()[:8].tolist())
        raise RangeError(f"the eigenvalues of {path} are stable in neither kind of time: {worst}; change them first")
    return "continuous" if continuous else "discrete"
