"""How `stabilize` changes one weight and changes it back; everything that can be refused is, before a weight is touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from holdfast._types import Time
from holdfast.errors import ArgumentError, RangeError
from holdfast.nn import AbstractRecurrent, RecurrenceView, RecurrentWeight
from holdfast.nn._views.view import MemoryWeight
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


def plan_weight(weight: MemoryWeight, view: RecurrenceView | None, wanted: Wanted) -> Plan | None:
    """The plan for one weight, None where it cannot leave the stable region; raises before anything is touched."""
    try:
        if weight.storage == "own":
            return _plan_layer(weight, wanted)
        if weight.storage == "step_matrix":
            return _plan_step_matrix(weight, view, wanted)
        return _plan_stored(weight, view, wanted) if weight.decides else None
    except RangeError as error:
        hint = "" if "allow_change" in str(error) else " Or pass allow_change=True, which moves them inside."
        raise RangeError(f"{weight.path}: {error}{hint}") from error


def _plan_step_matrix(weight: MemoryWeight, view: RecurrenceView | None, wanted: Wanted) -> Plan:
    if view is None or not view.elementwise:
        raise ArgumentError(
            f"{weight.path} belongs to a step of which no stable form is known; lower its learning rate "
            "(parameter_groups) or clip gradients"
        )
    return _register(weight, get_matrix("contraction", time="discrete"), wanted)


def _plan_stored(weight: MemoryWeight, view: RecurrenceView | None, wanted: Wanted) -> Plan:
    value = weight.value
    if weight.storage == "log_negative":
        f = fit_constants(get(wanted.parameterization, time="continuous"), -torch.exp(value))
        note = None if view is None else view.by_construction
        return _register(weight, LogNegative(f), wanted, () if note is None else (note,))
    kind = wanted.time or _infer_time(value, weight.path)
    if value.ndim == 2 and value.shape[0] == value.shape[1]:
        return _register(weight, get_matrix(time=kind), wanted)
    return _register(weight, fit_constants(get(wanted.parameterization, time=kind), value), wanted)


def _plan_layer(weight: MemoryWeight, wanted: Wanted) -> Plan | None:
    layer = weight.module
    assert isinstance(layer, AbstractRecurrent)
    part = getattr(layer, weight.name)
    dt = layer.euler_step
    if isinstance(part, RecurrentWeight):
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


def _plan_recurrence(path: str, part: RecurrentWeight, dt: float | None, wanted: Wanted) -> Plan:
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


def _register(weight: MemoryWeight, form: Form | LogNegative, wanted: Wanted, notes: tuple[str, ...] = ()) -> Plan:
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
