"""How `stabilize` changes one weight and changes it back; everything that can be refused is, before a weight is touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from holdfast._types import Time
from holdfast.errors import ArgumentError, RangeError
from holdfast.nn import AbstractRecurrent, Recurrence
from holdfast.nn.recurrent import RecurrentWeight
from holdfast.parameterizations import (
    AbstractMatrixParameterization,
    AbstractParameterization,
    Best,
    fit_constants,
    get,
    get_matrix,
    nearest,
)

Form = AbstractParameterization | AbstractMatrixParameterization
SELECTIVE = (
    "A = -exp(A_log) is negative by construction, before and after: another parameterization changes the gradients of A, "
    "not whether the model can diverge. NaN in such a model come from its step sizes (softplus of dt_proj) and the "
    "learning rate: lower it, clip gradients, keep dt_proj and A in float32"
)
DECAYING = (
    "its decay exp(-exp(weight)) is below 1 by construction, before and after: another parameterization changes the "
    "gradients of the decay, not whether the model can diverge"
)


@dataclass(frozen=True)
class Wanted:
    """What the caller asked for."""

    parameterization: str | AbstractParameterization
    time: Time | None
    allow_change: bool


@dataclass(frozen=True)
class Plan:
    """One weight: its new form, what it is now (a matrix or eigenvalues), how to change it and how to change it back."""

    path: str
    form: nn.Module
    value: Callable[[], Tensor]
    apply: Callable[[], None]
    take_back: Callable[[], None]
    notes: tuple[str, ...] = ()


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


def gated(weight: RecurrentWeight) -> str | None:
    """Why a gated unit is left alone and what helps it; None for anything else."""
    if weight.storage == "softplus_negative":
        return (
            f"{weight.path} is left as it is: a gate r multiplies the state by exp(-8 r softplus(weight)), below 1 whatever "
            "the weight. If training diverges, lower the learning rate or clip gradients"
        )
    torch_gate = weight.kind == "torch" and not isinstance(weight.module, nn.RNN)
    layer_gate = isinstance(weight.module, AbstractRecurrent) and weight.module.boundary_name is None
    if not (torch_gate or layer_gate):
        return None
    kind = type(weight.module).__name__
    help_ = (
        "raise the bias of its forget gate, b[n:2n] of bias_hh, by 1 or more"
        if isinstance(weight.module, nn.LSTM)
        else "raise the bias of its update gate"
        if isinstance(weight.module, nn.GRU)
        else "lower the bias of its gate z"
    )
    return (
        f"{weight.path} belongs to a gated {kind} and is left as it is: its gates bound the state already, and how fast it "
        f"forgets is theirs to learn. If it forgets too fast, {help_}; if training diverges, lower the learning rate or "
        "clip gradients. Name other weights, names=[...], to stabilize those"
    )


def plan_weight(weight: RecurrentWeight, wanted: Wanted) -> Plan | None:
    """The plan for one weight, None where it cannot leave the stable region; raises before anything is touched."""
    try:
        if weight.kind == "layer":
            return _plan_layer(weight, wanted)
        if weight.kind == "torch":
            return _register(weight, get_matrix("contraction", time="discrete"), wanted)
        return _plan_named(weight, wanted)
    except RangeError as error:
        hint = "" if "allow_change" in str(error) else " Or pass allow_change=True, which moves them inside."
        raise RangeError(f"{weight.path}: {error}{hint}") from error


def _plan_named(weight: RecurrentWeight, wanted: Wanted) -> Plan:
    value = getattr(weight.module, weight.name).detach()
    if weight.storage == "log_negative":
        f = fit_constants(get(wanted.parameterization, time="continuous"), -torch.exp(value))
        return _register(weight, LogNegative(f), wanted, (DECAYING if weight.name == "time_decay" else SELECTIVE,))
    kind = wanted.time or _infer_time(value, weight.path)
    if value.ndim == 2 and value.shape[0] == value.shape[1]:
        return _register(weight, get_matrix(time=kind), wanted)
    return _register(weight, fit_constants(get(wanted.parameterization, time=kind), value), wanted)


def _plan_layer(weight: RecurrentWeight, wanted: Wanted) -> Plan | None:
    layer = weight.module
    assert isinstance(layer, AbstractRecurrent)
    part = getattr(layer, weight.name)
    dt = layer.euler_step
    if isinstance(part, Recurrence):
        return _plan_recurrence(weight.path, part, dt, wanted)
    if weight.name != layer.boundary_name:
        return None  # phases, frequencies and step sizes cannot leave the stable region
    before: AbstractParameterization = layer.parameterization  # type: ignore[assignment]
    lam = before(part).detach()
    after, notes = _scalar(wanted, before.time, lam, dt)
    held = _inside(after, lam, wanted)
    value = lambda: layer.parameterization(layer.w).detach().clone()  # type: ignore[operator] # noqa: E731
    return Plan(weight.path, after, value, lambda: _switch(layer, after, held), lambda: _switch(layer, before), notes)


@torch.no_grad()
def _switch(layer: nn.Module, after: AbstractParameterization, lam: Tensor | None = None) -> None:
    w: Tensor = layer.w  # type: ignore[assignment]
    w.copy_(after.inverse(layer.parameterization(w) if lam is None else lam))  # type: ignore[operator]
    layer.parameterization = after


def _plan_recurrence(path: str, part: Recurrence, dt: float | None, wanted: Wanted) -> Plan:
    before = part.parameterization
    W = part().detach()
    after: Form
    notes: tuple[str, ...] = ()
    if W.ndim == 1:
        after, notes = _scalar(wanted, part.time, W, dt)
    elif dt is not None:
        after = get_matrix("contraction", time=part.time, dt=dt)
    else:
        after = get_matrix(time=part.time)
    held = _inside(after, W, wanted)
    return Plan(
        path,
        after,
        lambda: part().detach().clone(),
        lambda: part.switch_(after, held),
        lambda: part.switch_(before),
        notes,
    )


def _scalar(
    wanted: Wanted, time: Time, lam: Tensor, dt: float | None
) -> tuple[AbstractParameterization, tuple[str, ...]]:
    """The parameterization of eigenvalues; where Euler's rule steps, with no rate beyond 2/dt if it can be had."""
    f = fit_constants(get(wanted.parameterization, time=time), lam)
    if dt is None:
        return f, ()
    fastest = 2 / dt
    if isinstance(f, Best) and 1 / f.b >= fastest and float(lam.min()) > -fastest:
        f = Best(a=f.a, b=dt / 2 * (1 + 1e-6))
    if f.range.low > -fastest:
        return f, ()
    return f, (
        f"Euler's step dt = {dt:g} is stable for rates below {fastest:g} only, and {f!r} can reach beyond: take 'best', "
        "whose fastest rate is 1/b, or a smaller dt",
    )


def _inside(form: Form, value: Tensor, wanted: Wanted) -> Tensor:
    """The value that the form will hold: this one, or the nearest where a change is allowed."""
    if not wanted.allow_change:
        form.right_inverse(value)
        return value
    if isinstance(form, AbstractMatrixParameterization):
        return form.project(value)
    return nearest(form, value)


def _register(weight: RecurrentWeight, form: Form | LogNegative, wanted: Wanted, notes: tuple[str, ...] = ()) -> Plan:
    module, name = weight.module, weight.name
    stored: Tensor = getattr(module, name)
    if isinstance(form, LogNegative):
        form.right_inverse(stored.detach())
        held = stored.detach()
    else:
        held = _inside(form, stored.detach(), wanted)

    def value() -> Tensor:
        now = getattr(module, name).detach().clone()
        return -torch.exp(now) if isinstance(form, LogNegative) else now

    def apply() -> None:
        with torch.no_grad():
            stored.copy_(held)
        parametrize.register_parametrization(module, name, form)

    def take_back() -> None:
        parametrize.remove_parametrizations(module, name, leave_parametrized=True)

    return Plan(weight.path, form, value, apply, take_back, notes)


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
        raise RangeError(
            f"the eigenvalues are stable in neither kind of time: {worst}. Say which, time='discrete' or 'continuous', "
            "and allow_change=True to move them inside"
        )
    return "continuous" if continuous else "discrete"
