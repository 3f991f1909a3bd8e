"""How `stabilize` changes one weight and changes it back; everything that can be refused is, before a weight is touched.

A weight that several modules share is one plan: its free weights are shared afterwards, and so is its form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from holdfast._types import Time
from holdfast.errors import ArgumentError, RangeError
from holdfast.nn import AbstractRecurrent, RecurrenceView, RecurrentWeight
from holdfast.nn._initial_weights import MAX_DT, MAX_RATE, MIN_DT
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
from holdfast.parameterizations._passes import compute_once
from holdfast.parameterizations._saved import Bounded
from holdfast.stability._checkpoints import LogNegative, follow_checkpoints

Form = AbstractParameterization | AbstractMatrixParameterization | Bounded
# what other libraries' layers multiply with each other and exponentiate stays finite inside these
_BOUNDS = {"log_positive": (math.log(MIN_DT), math.log(MAX_DT)), "frequency": (-MAX_RATE, MAX_RATE)}


@dataclass(frozen=True)
class Wanted:
    """What the caller asked for."""

    parameterization: str | AbstractParameterization
    time: Time | None
    allow_change: bool


@dataclass(frozen=True)
class Plan:
    """One weight: its new form, what it is now (a matrix or eigenvalues), how to change it and how to change it back.

    Args:
        path: path of the weight, the first one where several modules share it.
        form: the new form.
        value: gives the present matrix or eigenvalues.
        apply: makes the change.
        undo: takes it back with the present values.
        revert: takes it back with the former values, bit for bit.
        notes: what has to be said.
    """

    path: str
    form: nn.Module
    value: Callable[[], Tensor]
    apply: Callable[[], None]
    undo: Callable[[], None]
    revert: Callable[[], None]
    notes: tuple[str, ...] = ()


def plan_weight(weights: list[MemoryWeight], view: RecurrenceView | None, wanted: Wanted) -> Plan | None:
    """The plan for a weight and those that share its parameters, None where it cannot leave the stable region."""
    weight = weights[0]
    try:
        if weight.storage == "own":
            return _plan_layers(weights, wanted)
        if weight.storage == "step_matrix":
            return _plan_step_matrix(weights, view, wanted)
        if weight.storage in _BOUNDS:
            trained = isinstance(getattr(weight.module, weight.name), nn.Parameter)  # a buffer stays where it is
            return _register(weights, Bounded(*_BOUNDS[weight.storage]), wanted) if trained else None
        return _plan_stored(weights, view, wanted) if weight.decides else None
    except RangeError as error:
        hint = (
            "" if error.names_allow_change else "; or pass allow_change=True, which moves them into the stable region"
        )
        raise RangeError(f"{weight.path}: {error}{hint}") from error


def _plan_step_matrix(weights: list[MemoryWeight], view: RecurrenceView | None, wanted: Wanted) -> Plan:
    if view is None or not view.elementwise:
        raise ArgumentError(
            f"{weights[0].path} belongs to a step without a known stable form; lower its learning rate (parameter_groups) or "
            "clip gradients"
        )
    return _register(weights, get_matrix("contraction", time="discrete"), wanted)


def _plan_stored(weights: list[MemoryWeight], view: RecurrenceView | None, wanted: Wanted) -> Plan:
    weight, value = weights[0], weights[0].value
    if weight.storage == "log_negative":
        f = fit_constants(get(wanted.parameterization, time="continuous"), -torch.exp(value))
        note = None if view is None else view.by_construction
        return _register(weights, LogNegative(f), wanted, () if note is None else (note,))
    kind = wanted.time or _infer_time(value, weight.path)
    if value.ndim == 2 and value.shape[0] == value.shape[1]:
        return _register(weights, get_matrix(time=kind), wanted)
    return _register(weights, fit_constants(get(wanted.parameterization, time=kind), value), wanted)


def _plan_layers(weights: list[MemoryWeight], wanted: Wanted) -> Plan | None:
    layers = [weight.module for weight in weights]
    layer, name = layers[0], weights[0].name
    assert isinstance(layer, AbstractRecurrent)
    part = getattr(layer, name)
    dt = layer.euler_step
    if isinstance(part, RecurrentWeight):
        return _plan_recurrences(weights[0].path, [getattr(each, name) for each in layers], dt, wanted)
    if name != layer.boundary_name:
        return None  # phases, frequencies and step sizes cannot leave the stable region
    before: AbstractParameterization = layer.parameterization  # type: ignore[assignment]
    lam = before(part).detach()
    after, notes = _scalar(wanted, before.time, lam, dt)
    held = _inside(after, lam, wanted)
    w, former = layer.w, layer.w.detach().clone()  # type: ignore[operator]

    @torch.no_grad()
    def switch(form: AbstractParameterization, free: Tensor) -> None:
        w.copy_(free)  # type: ignore[operator]
        for each in layers:
            each.parameterization = form

    return Plan(
        weights[0].path,
        after,
        lambda: layer.parameterization(layer.w).detach().clone(),  # type: ignore[operator]
        lambda: switch(after, after.inverse(held)),
        lambda: switch(before, before.inverse(layer.parameterization(layer.w).detach())),  # type: ignore[operator]
        lambda: switch(before, former),
        notes,
    )


def _plan_recurrences(path: str, parts: list[RecurrentWeight], dt: float | None, wanted: Wanted) -> Plan:
    part = parts[0]
    before, former = part.parameterization, part.free
    W = part().detach()
    after: AbstractParameterization | AbstractMatrixParameterization
    notes: tuple[str, ...] = ()
    if W.ndim == 1:
        after, notes = _scalar(wanted, part.time, W, dt)
    elif dt is not None:
        after = get_matrix("contraction", time=part.time, dt=dt)
    else:
        after = get_matrix(time=part.time)
    held = _inside(after, W, wanted)

    def switch(form: AbstractParameterization | AbstractMatrixParameterization, W: Tensor | None) -> None:
        part.switch_(form, W)
        # tied recurrences continue sharing one form and one set of free weights
        for each in parts[1:]:
            each.parameterization, each.free = part.parameterization, part.free

    def revert() -> None:
        for each in parts:
            each.parameterization, each.free = before, former

    return Plan(
        path,
        after,
        lambda: part().detach().clone(),
        lambda: switch(after, held),
        lambda: switch(before, None),
        revert,
        notes,
    )


def _scalar(
    wanted: Wanted, time: Time, lam: Tensor, dt: float | None
) -> tuple[AbstractParameterization, tuple[str, ...]]:
    """The parameterization of eigenvalues; where Euler's rule steps, with no rate beyond 2/dt if it can be had."""
    f = fit_constants(get(wanted.parameterization, time=time), lam)
    if dt is None:
        return f, ()
    # where 1 + dt lam leaves the unit circle
    fastest = 2 / dt
    if isinstance(f, Best) and 1 / f.b >= fastest and float(lam.min()) > -fastest:
        # b bounds the rate at 1/b: just inside of what Euler's step holds
        f = Best(a=f.a, b=dt / 2 * (1 + 1e-6))
    if f.range.low > -fastest:
        return f, ()
    return f, (
        f"Euler's step dt = {dt:g} is stable for rates below {fastest:g} only, and {f!r} can reach beyond: take 'best', "
        "whose fastest rate is 1/b, or a smaller dt",
    )


def _inside(form: Form, value: Tensor, wanted: Wanted) -> Tensor:
    """The value that the form will hold: this one, or the nearest where a change is allowed."""
    if isinstance(form, Bounded):
        form.right_inverse(value)
        return value
    if not wanted.allow_change:
        form.right_inverse(value)
        return value
    if isinstance(form, AbstractMatrixParameterization):
        return form.project(value)
    return nearest(form, value)


def _register(weights: list[MemoryWeight], form: nn.Module, wanted: Wanted, notes: tuple[str, ...] = ()) -> Plan:
    """A parametrization of torch for each place of the weight, with free weights and form in common."""
    first, name = weights[0].module, weights[0].name
    stored: Tensor = getattr(first, name)
    former = stored.detach().clone()
    if isinstance(form, LogNegative):
        form.right_inverse(former)
        held = former
    else:
        assert isinstance(form, Form)
        held = _inside(form, former, wanted)
    places = [(weight.module, weight.name) for weight in weights]
    orders = [list(module._parameters) for module, _ in places]
    unhook: list[Callable[[], None]] = []

    def value() -> Tensor:
        now = getattr(first, name).detach().clone()
        return -torch.exp(now) if isinstance(form, LogNegative) else now

    def apply() -> None:
        with torch.no_grad():
            stored.copy_(held)
        for module, own in places:
            if module is not first or own != name:
                setattr(module, own, nn.Parameter(held.clone(), stored.requires_grad))
            parametrize.register_parametrization(module, own, form)
            _share(first.parametrizations[name], module.parametrizations[own])  # type: ignore[index, arg-type]
            unhook.append(follow_checkpoints(module))
            if isinstance(module, nn.RNNBase):
                unhook.append(compute_once(module))

    def put_back(plain: Tensor, trained: bool) -> None:
        with torch.no_grad():
            for module, own in places:
                if parametrize.is_parametrized(module, own):
                    parametrize.remove_parametrizations(module, own, leave_parametrized=True)
                    delattr(module, own)  # a new tensor, and of a frozen weight a buffer
            stored.data = plain
        stored.requires_grad_(trained)
        for (module, own), order in zip(places, orders, strict=True):
            _hold(module, own, stored, order)
        while unhook:
            unhook.pop()()

    def undo() -> None:
        free = first.parametrizations[name].parameters()  # type: ignore[index, union-attr]
        put_back(getattr(first, name).detach().clone(), any(p.requires_grad for p in free))

    trained = stored.requires_grad
    return Plan(weights[0].path, form, value, apply, undo, lambda: put_back(former, trained), notes)


def _hold(module: nn.Module, name: str, tensor: Tensor, order: list[str]) -> None:
    """Makes a parameter, or a buffer, the module's own, in its former place: optimizers count parameters by their order."""
    if not isinstance(tensor, nn.Parameter):
        module.register_buffer(name, tensor)
        return
    module.register_parameter(name, tensor)
    setattr(module, name, tensor)  # torch.nn.RNN keeps a list of its weights, which this updates
    for key in order:
        if key in module._parameters:
            module._parameters[key] = module._parameters.pop(key)


def _share(one: nn.Module, other: nn.Module) -> None:
    """Makes the free weights of one parametrization those of the other."""
    for key, parameter in list(one.named_parameters(recurse=False)):
        setattr(other, key, parameter)


def _infer_time(value: Tensor, path: str) -> Time:
    """Continuous where all real parts are negative, discrete where all moduli are below 1; else refused."""
    square = value.ndim == 2 and value.shape[0] == value.shape[1]
    lam = torch.linalg.eigvals(value.double()) if square else value.double()
    continuous = bool((lam.real < 0).all())
    discrete = bool((lam.abs() < 1).all())
    if continuous and discrete:
        raise ArgumentError(
            f"the eigenvalues of {path} are stable in continuous and in discrete time; pass time='continuous' or 'discrete'"
        )
    if not continuous and not discrete:
        worst = ", ".join(f"{v:.4g}" for v in lam.flatten()[:8].tolist())
        raise RangeError(
            f"expected eigenvalues that are stable in continuous or discrete time, got {worst}; pass time='discrete' or "
            "'continuous', and allow_change=True to move them into the stable region",
            names_allow_change=True,
        )
    return "continuous" if continuous else "discrete"
