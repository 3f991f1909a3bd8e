"""Exact memory and spectrum of holdfast's own linear layers, in float64 from their weights."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from holdfast.errors import ArgumentError
from holdfast.memory.closed_form.kernel import Kernel, dense, diagonal, lru, s4d
from holdfast.nn import LRU, S4D, DiagonalSSM, LinearRNN
from holdfast.nn.discretize import discretize

LINEAR = (DiagonalSSM, LinearRNN, LRU, S4D)  # their state follows a linear recurrence


def of_layer(layer: DiagonalSSM | LinearRNN | LRU | S4D, horizon: int) -> Kernel:
    """rho at steps 0 to `horizon` of a linear layer: what `memory_function(layer, dt=layer.dt)` measures, exactly.

    Times are k dt with the layer's own step (1 in discrete time, and for S4D, whose features have a step each). In
    continuous time rho is the mean of the kernel over each step, since inputs are held over it.
    """
    if horizon < 0:
        raise ArgumentError(f"horizon must not be negative, came {horizon}")
    if not isinstance(layer, LINEAR):
        known = ", ".join(kind.__name__ for kind in LINEAR)
        raise ArgumentError(f"a closed form is known for {known}, came {type(layer).__name__}; use memory_function")
    if layer.backward_layer is not None:
        raise ArgumentError("a bidirectional layer is not causal and has no memory function; use bidirectional=False")
    if isinstance(layer, DiagonalSSM) and layer.activation != "identity":
        raise ArgumentError(f"this DiagonalSSM has activation={layer.activation!r}: not linear; use memory_function")
    with torch.no_grad():
        wide = copy.deepcopy(layer).double()
        steps = range(horizon + 1)
        if isinstance(wide, S4D):
            C = wide.C if wide.frequency is None else torch.view_as_complex(wide.C)
            dt, lam, how = torch.exp(wide.log_dt), wide.eigenvalues(), wide.discretization
            return s4d(dt, lam, C, steps, D=wide.D, discretization=how)
        if isinstance(wide, LRU):
            B, C = (torch.complex(*w.chunk(2, dim)) for w, dim in ((wide.B, 0), (wide.C, 1)))
            gamma = None if wide.log_gamma is None else torch.exp(wide.log_gamma)
            return lru(wide.eigenvalues(), B, C, steps, gamma=gamma, D=wide.D)
        return _in_one_recurrence(wide, horizon)


def step_eigenvalues(model: Any) -> Float[Tensor, " modes"] | Complex[Tensor, " modes"] | None:
    """The eigenvalues of one step of the recurrence, where `model` is a layer whose state moves linearly; else None.

    They decide how its memory decays for t -> inf, also where a nonlinearity reads the state (DiagonalSSM).
    """
    if not isinstance(model, LINEAR):
        return None
    with torch.no_grad():
        wide = copy.deepcopy(model).double()
        if isinstance(wide, S4D):
            half = torch.exp(wide.log_dt).unsqueeze(-1) * wide.eigenvalues() / 2
            factor = torch.exp(2 * half) if wide.discretization == "zoh" else (1 + half) / (1 - half)
            return factor.flatten()
        lam = wide.eigenvalues().detach()  # direct weights are the eigenvalues themselves
        if wide.time == "discrete" or isinstance(wide, LRU):
            return lam
        return discretize(lam, wide.dt, wide.discretization)[0]


def _in_one_recurrence(layer: DiagonalSSM | LinearRNN, horizon: int) -> Kernel:
    """rho_k = C A^k G U / dt with A and G the factor and the input gain of one step (vectors for a diagonal W)."""
    factor, gain = layer._factors(None)
    steps = range(horizon + 1)
    if factor.ndim == 1:
        found = diagonal(
            factor, layer.U if gain is None else gain.unsqueeze(-1) * layer.U, layer.C, steps, time="discrete"
        )
    else:
        found = dense(factor, layer.U if gain is None else gain @ layer.U, layer.C, steps, time="discrete")
    return replace(found, time=layer.dt * found.time, rho=found.rho / layer.dt, dt=layer.dt)
