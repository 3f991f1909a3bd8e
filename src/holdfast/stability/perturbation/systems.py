"""Linear time-invariant layers as (factor, input, output) of a recurrence, for perturbed weights in a batch.

Layers whose output is a convolution of the input plus a constant response: DiagonalSSM with the identity, LinearRNN,
LRU and S4D. Computed in float64 from the layer's own parameterizations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from holdfast.kernels.s4d.discretize import discretize as discretize_s4d
from holdfast.nn import LRU, S4D, DiagonalSSM, LinearRNN
from holdfast.nn.base import AbstractRecurrent
from holdfast.nn.discretize import discretize
from holdfast.parameterizations import AbstractMatrixParameterization

Kernels = Float[Tensor, "groups draws time outputs inputs"]


def is_linear(layer: nn.Module) -> bool:
    """Whether the layer's impulse response says everything about it."""
    if isinstance(layer, DiagonalSSM) and layer.activation != "identity":
        return False
    return isinstance(layer, (DiagonalSSM, LinearRNN, LRU, S4D)) and layer.backward_layer is None


class System(nn.Module):
    """factor, B, C, D of h+ = factor h + B [x; 1], y = C h + D x; the last column of B is the response to the bias."""

    def __init__(self, layer: AbstractRecurrent) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> tuple[Tensor, ...]:
        """Real factor (n,), complex factor as pairs (n, 2), or matrix (n, n); S4D has a first dimension of features."""
        layer = self.layer
        if isinstance(layer, S4D):
            return _s4d(layer)
        if isinstance(layer, LRU):
            return _lru(layer)
        assert isinstance(layer, (DiagonalSSM, LinearRNN))
        return _real(layer)


def _real(layer: DiagonalSSM | LinearRNN) -> tuple[Tensor, ...]:
    U, b = layer.U, layer.b
    B = torch.cat([U, torch.zeros_like(U[:, :1]) if b is None else b.unsqueeze(-1)], dim=-1)
    W = layer.eigenvalues() if isinstance(layer, DiagonalSSM) else layer.recurrence()
    D = torch.zeros(layer.C.shape[0], U.shape[1], dtype=U.dtype, device=U.device)
    if layer.time == "discrete":
        return W, B, layer.C, D
    if W.ndim == 1:
        factor, gain = discretize(W, layer.dt, layer.discretization)
        return factor, gain.unsqueeze(-1) * B, layer.C, D
    n = len(W)
    eye = torch.eye(n, dtype=W.dtype, device=W.device)
    if layer.discretization == "euler":
        return eye + layer.dt * W, layer.dt * B, layer.C, D
    # e^{W dt} and its integral: the upper blocks of exp([[W, I], [0, 0]] dt)
    upper = torch.cat([W, eye], dim=1)
    whole = torch.linalg.matrix_exp(torch.cat([upper, torch.zeros_like(upper)]) * layer.dt)
    return whole[:n, :n], whole[:n, n:] @ B, layer.C, D


def _lru(layer: LRU) -> tuple[Tensor, ...]:
    factor = torch.view_as_real(layer.eigenvalues())
    b = layer.B if layer.log_gamma is None else torch.exp(layer.log_gamma).repeat(2).unsqueeze(-1) * layer.B
    b = torch.cat([b, torch.zeros_like(b[:, :1])], dim=-1)
    re, im = b.chunk(2)
    c_re, c_im = layer.C.chunk(2, dim=1)
    return factor, torch.stack([re, im], -1), torch.stack([c_re, c_im], -1), torch.diag(layer.D)


def _s4d(layer: S4D) -> tuple[Tensor, ...]:
    """One system a feature, with one input and one output."""
    factor, gain = discretize_s4d(torch.exp(layer.log_dt), layer.eigenvalues(), layer.discretization)
    D = layer.D.reshape(-1, 1, 1)
    if layer.frequency is None:
        B = torch.stack([gain, torch.zeros_like(gain)], dim=-1)
        return factor, B, layer.C.unsqueeze(1), D
    B = torch.stack([torch.view_as_real(gain), torch.zeros_like(torch.view_as_real(gain))], dim=-2)
    # of each conjugate pair only one mode is kept
    return torch.view_as_real(factor), B, 2 * layer.C.unsqueeze(1), D


def stack_systems(system: nn.Module, weights: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """What `system()` gives for every draw, computed in `dtype`; weights of its `layer` that are not given stay."""
    wide = {f"layer.{name}": value.to(dtype) for name, value in weights.items()}
    fixed = {
        name: value.detach().to(dtype)
        for name, value in (*system.named_parameters(), *system.named_buffers())
        if name not in wide
    }
    if not any(isinstance(m, AbstractMatrixParameterization) for m in system.modules()):
        return vmap(lambda w: functional_call(system, {**fixed, **w}, ()))(wide)
    # Cholesky factors and matrix roots with their own gradients have no batching rule
    draws = [dict(zip(wide, row, strict=True)) for row in zip(*(v.unbind() for v in wide.values()), strict=True)]
    each = [functional_call(system, {**fixed, **draw}, ()) for draw in draws]
    return tuple(torch.stack(tensors) for tensors in zip(*each, strict=True))


def kernels(system: System, weights: Mapping[str, Tensor], steps: int) -> Kernels:
    """Impulse responses for `steps` steps, one system a group; the last input is the bias.

    `weights` are (draws, *shape) by the layer's own names.
    """
    factor, B, C, D = stack_systems(system, weights, torch.float64)
    grouped = isinstance(system.layer, S4D)
    if not grouped:
        factor, B, C, D = (x.unsqueeze(1) for x in (factor, B, C, D))
    paired = isinstance(system.layer, LRU) or (grouped and factor.ndim == 4)
    if paired:
        factor, B, C = (torch.view_as_complex(x.contiguous()) for x in (factor, B, C))
    response = _dense(factor, B, C, steps) if factor.ndim == 4 else _diagonal(factor, B, C, steps)
    direct = torch.cat([D, torch.zeros_like(D[..., :1])], dim=-1).unsqueeze(2)
    rest = direct.new_zeros(*direct.shape[:2], steps - 1, *direct.shape[3:])
    return (response + torch.cat([direct, rest], dim=2)).transpose(0, 1)


def _diagonal(
    factor: Float[Tensor, "draws groups n"] | Complex[Tensor, "draws groups n"], B: Tensor, C: Tensor, steps: int
) -> Float[Tensor, "draws groups time outputs inputs"]:
    """sum_n C_on factor_n^k B_ni; with k = width j + i only 2 sqrt(steps) powers of each factor are needed."""
    width = math.isqrt(max(steps - 1, 0)) + 1
    high = -(-steps // width)
    fine = _powers(factor, width + 1)
    coarse = _powers(fine[:, :, width], high)
    # (coarse outputs, n) and (fine inputs, n)
    left = coarse.unsqueeze(3) * C.unsqueeze(2)
    right = fine[:, :, :width].unsqueeze(3) * B.mT.contiguous().unsqueeze(2)
    product = left.flatten(2, 3) @ right.flatten(2, 3).mT
    shaped = product.unflatten(2, (high, C.shape[2])).unflatten(4, (width, B.shape[3]))
    ordered = shaped.transpose(3, 4).flatten(2, 3)[:, :, :steps]
    return ordered.real if ordered.is_complex() else ordered


def _powers(base: Tensor, count: int) -> Tensor:
    """1, base, base^2, ... along a new dimension before the last; products of neighbours cost a tenth of pow."""
    powers = [torch.ones_like(base)]
    for _ in range(count - 1):
        powers.append(powers[-1] * base)
    return torch.stack(powers, dim=-2)


def _dense(
    W: Float[Tensor, "draws groups n n"], B: Tensor, C: Tensor, steps: int
) -> Float[Tensor, "draws groups time outputs inputs"]:
    """C W^k B, one product a step."""
    state, outputs = B, []
    for _ in range(steps):
        outputs.append(C @ state)
        state = W @ state
    return torch.stack(outputs, dim=2)
