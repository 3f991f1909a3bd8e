"""W = (D^-1 K D - I) / dt: continuous recurrences whose Euler steps settle whatever their activation does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.parameterizations._contraction import _apart, find_scaling
from holdfast.parameterizations._factors import EPS64, contractive_factor, contractive_factor_inverse, size_of
from holdfast.parameterizations._matrix import PROJECTION_SHARES, AbstractMatrixParameterization


class EulerContraction(AbstractMatrixParameterization):
    """W for h+ = h + dt sigma(W h + drive) with an elementwise sigma of slope in [0, 1] and sigma(0) = 0.

    I + dt W = D^-1 K D with D positive diagonal and |K|_2 < 1. On a constant drive z = W h + drive moves by z+ = z + dt
    W sigma(z), and V = sum_i D_i^2 int_0^{z_i} sigma falls at every step of size dt or less: V+ - V <= sigma'((I + dt
    W)'D^2(I + dt W) - D^2) sigma / (2 dt). In the limit dt -> 0 these are the W with a diagonal P for which PW + W'P <
    0. Free weights: Z of K, (n, n), and log D, (n,).

    Args:
        dt: the longest Euler step for which this is to hold.
    """

    key = "euler contraction"
    time: Time = "continuous"

    def __init__(self, dt: float) -> None:
        super().__init__()
        self.dt = float(dt)
        if not (math.isfinite(self.dt) and self.dt > 0):
            raise ArgumentError(f"dt must be a finite number above 0, got {dt!r}")

    def _check_constants(self, constants: dict[str, Any]) -> None:
        super()._check_constants(constants)
        if constants["dt"] < self.dt:
            raise ArgumentError(
                f"expected a state dict that is stable at Euler steps of dt={self.dt:g}, got one that is stable up to "
                f"{constants['dt']:g}; build the layer with dt={constants['dt']:g} or less"
            )

    def _matrix(self, info: torch.finfo, *free: Tensor) -> Tensor:
        z, d = free
        eye = torch.eye(len(z), dtype=z.dtype, device=z.device)
        K = contractive_factor(z)
        K = K * (1 - _share(info, K - eye)).clamp(min=0)
        return (K * torch.exp(_apart(info, d)) - eye) / self.dt

    def _take_over(self, info: torch.finfo, W: Tensor) -> tuple[Tensor, ...]:
        if len(W) == 0:
            return W, W.new_zeros(0)
        eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
        step = eye + self.dt * W
        log_scales, norm = find_scaling(step.numpy(), "norm")
        # only ratios of D enter: centred, they stay farthest from the clamp on both sides
        d = torch.from_numpy(log_scales - (log_scales.max() + log_scales.min()) / 2)
        K = step * torch.exp(d.unsqueeze(-1) - d)
        Z = contractive_factor_inverse(K / (1 - _share(info, K - eye)))
        if Z is None:
            raise self._refusal(
                f"no diagonal D was found for which D (I + dt W) D^-1 has a norm below 1 at dt = {self.dt:g} (least found "
                f"{norm:.6g}); a smaller dt may do"
            )
        return Z, d

    def _nearer(self, W: Tensor) -> Iterator[Tensor]:
        eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
        step = eye + self.dt * W
        norm = max(1.0, find_scaling(step.numpy(), "norm")[1])
        yield from ((step * (share / norm) - eye) / self.dt for share in PROJECTION_SHARES)


def _share(info: torch.finfo, moved: Tensor) -> Tensor:
    """What rounding W can add to |K|."""
    return info.eps * size_of(moved) + 4 * len(moved) * EPS64
