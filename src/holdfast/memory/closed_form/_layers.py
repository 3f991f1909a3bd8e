"""Exact memory and spectrum of a layer whose state moves linearly, in float64 from the system that it describes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Complex, Float, Float64
from torch import Tensor

from holdfast._arguments import checked
from holdfast.errors import ArgumentError
from holdfast.memory.closed_form._kernel import Kernel, dense, diagonal
from holdfast.nn import AbstractRecurrent
from holdfast.nn.system import LinearSystem


@checked
def of_layer(layer: torch.nn.Module, horizon: int) -> Kernel:
    """rho at steps 0 to `horizon` of a linear layer: what `memory_function(layer, dt=layer.dt)` measures, exactly.

    Times are k dt with the layer's own step (1 in discrete time, and for layers whose features have a step each). In
    continuous time rho is the mean of the kernel over each step, since inputs are held over it.

    Args:
        layer: a layer of `holdfast.nn` whose state and readout are linear.
        horizon: last step; the kernel has horizon + 1 times.
    """
    if horizon < 0:
        raise ArgumentError(f"horizon must not be negative, got {horizon}")
    system = _wide_system(layer)
    name = type(layer).__name__
    if system is None:
        raise ArgumentError(
            f"expected a layer with a linear recurrence, got {name}, for which no closed form is known; use memory_function"
        )
    if layer.backward_layer is not None:
        raise ArgumentError("expected a causal layer, got a bidirectional one; build it with bidirectional=False")
    if not system.linear:
        raise ArgumentError(
            f"expected a linear layer, got a {name} with activation={system.activation!r}; use memory_function"
        )
    parts = [_of_group(system, g, horizon) for g in range(system.groups)]
    rho = _in_blocks([part.rho for part in parts]) / system.dt
    return Kernel(system.dt * parts[0].time, rho, system.eigenvalues().detach(), "discrete", system.dt)


def step_eigenvalues(model: Any) -> Float[Tensor, " modes"] | Complex[Tensor, " modes"] | None:
    """The eigenvalues of one step of the recurrence, where `model` is a layer whose state moves linearly; else None.

    They decide how its memory decays for t -> inf, also where a nonlinearity reads the state.

    Args:
        model: anything; only layers of `holdfast.nn` that describe a linear system give eigenvalues.
    """
    system = _wide_system(model)
    return None if system is None else system.eigenvalues().detach()  # direct weights are eigenvalues


def _wide_system(layer: Any) -> LinearSystem | None:
    if not isinstance(layer, AbstractRecurrent):
        return None
    with torch.no_grad():
        return copy.deepcopy(layer).double().linear_system()


def _of_group(system: LinearSystem, g: int, horizon: int) -> Kernel:
    """rho_k = C A^k B + D [k = 0] of one group."""
    factor, B, C, D = system.factor[g], system.B[g], system.C[g], system.D[g]
    steps = range(horizon + 1)
    if system.dense:
        return dense(factor, B, C, steps, time="discrete", D=D)
    return diagonal(factor, B, C, steps, time="discrete", D=D)


def _in_blocks(parts: list[Tensor]) -> Float64[Tensor, "times outputs inputs"]:
    """Each group's rho as a block on the diagonal: groups do not mix."""
    times, outputs, inputs = parts[0].shape
    rho = parts[0].new_zeros(times, len(parts), outputs, len(parts), inputs)
    for g, part in enumerate(parts):
        rho[:, g, :, g] = part
    return rho.flatten(3).flatten(1, 2)
