"""The linear recurrent unit: a complex diagonal recurrence between two projections."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.kernels import lru
from holdfast.nn._base import AbstractRecurrent, zero_after
from holdfast.nn._initial_weights import (
    Device,
    ReadOut,
    as_eigenvalues,
    check_read_out,
    free_weight,
    placeable,
    placed,
    read_scale,
    starting_values,
    uniform,
)
from holdfast.nn._precision import HALF_DTYPES, project, widened, widened_twin
from holdfast.nn.system import LinearSystem, single_system
from holdfast.parameterizations import AbstractParameterization


class LRU(AbstractRecurrent):
    """h+ = lam h + gamma B u, y = Re[C h] + D u with complex lam = f(w) e^{i phase} (linrec, eq. 2).

    Weights are stored as real pairs, B as (2 state_size, features) with the imaginary rows last. The state is (batch, 2
    state_size).

    Args:
        features: number of input features.
        state_size: number of complex states.
        parameterization: f, which gives the moduli |lam|, by name or as an object of `holdfast.parameterizations`.
        r_min: smallest modulus of the ring that lam starts in, uniform in area (linrec, Lemma 6).
        r_max: largest modulus of that ring, at most 1.
        max_phase: phases start uniform between 0 and this.
        normalize: whether there is a gamma. It starts at sqrt(1 - |lam|^2), so that white noise in gives a state of
            unit size, and is learned.
        eigenvalues: where lam starts (state_size,), instead of the ring.
        readout: "plain" has C itself as a weight; "scaled" holds g of C_i = g_i (1 - |lam_i|) / sqrt(state_size), so that
            a change of g by beta changes the response to each state's input by at most beta in L1. The gamma of `normalize`
            is its cousin in l2: sqrt(1 - |lam|^2) makes the squares of a mode's response sum to 1, 1 - |lam| its absolute
            values. gamma is learned and stays where it started; the scale of a readout follows lam.
        out_features: number of outputs; None is `features`. For another number D is a matrix (out_features, features).
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    Memory of a training step, in numbers: x, y, their gradients, and 2 T state_size for each sequence, for h.

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.LRU(4, 16)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    takes_half = True
    recurrent_names = ("w", "phase")
    time: Time = "discrete"

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int,
        *,
        parameterization: str | AbstractParameterization = "exp",
        r_min: float = 0.9,
        r_max: float = 0.999,
        max_phase: float = 2 * math.pi,
        normalize: bool = True,
        eigenvalues: Complex[Tensor, " state"] | None = None,
        readout: ReadOut = "plain",
        out_features: int | None = None,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        choices: dict[str, Any] = dict(
            parameterization=parameterization, r_min=r_min, r_max=r_max, max_phase=max_phase, normalize=normalize,
            eigenvalues=eigenvalues, readout=readout, out_features=out_features,
        )  # fmt: skip
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        if not 0 <= r_min < r_max <= 1:
            raise ArgumentError(f"expected 0 <= r_min < r_max <= 1, got r_min={r_min!r}, r_max={r_max!r}")
        if not math.isfinite(max_phase):
            raise ArgumentError(f"max_phase must be finite, got {max_phase!r}")
        start = starting_values(eigenvalues, lambda: ring(state_size, r_min, r_max, max_phase))
        lam = as_eigenvalues(start, (state_size,), real=False, layer="LRU")
        modulus = lam.abs()
        self.parameterization, self.w = free_weight(parameterization, "discrete", modulus)
        self.phase = placed(lam.angle().to(self.w.dtype))
        self.log_gamma = placed(0.5 * torch.log1p(-(modulus**2)).to(self.w.dtype)) if normalize else None
        # variances 1/(2 features) and 1/state_size of the complex Glorot rule
        self.B = nn.Parameter(torch.randn(2 * state_size, features) / math.sqrt(2 * features))
        check_read_out(self, readout)
        self.readout: ReadOut = readout
        # a scaled readout has 1 / sqrt(state_size) in its scale
        size = state_size if readout == "plain" else 1
        self.C = nn.Parameter(torch.randn(self.out_features, 2 * state_size) / math.sqrt(size))
        square = self.out_features == features
        self.D = uniform(features, fan_in=1) if square else uniform(self.out_features, features, fan_in=features)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (2 * self.state_size,)

    def _pair(self) -> tuple[Tensor, Tensor]:
        modulus, phase = self.parameterization(widened(self.w)), widened(self.phase)
        return modulus * torch.cos(phase), modulus * torch.sin(phase)

    def eigenvalues(self) -> Complex[Tensor, " state"]:
        return torch.complex(*self._pair())

    @torch.no_grad()
    def set_eigenvalues_(self, lam: Complex[Tensor, " state"] | Float[Tensor, " state"]) -> None:
        """Moves the free weights so that the eigenvalues are `lam`, (state_size,); the input normalization follows."""
        given = as_eigenvalues(lam, (self.state_size,), real=False, layer="LRU")
        self.w.copy_(self.parameterization.inverse(given.abs().to(self.w)))
        self.phase.copy_(given.angle())
        if self.log_gamma is not None:
            # gamma = sqrt(1 - |lam|^2) keeps the size of the state that white noise leaves
            self.log_gamma.copy_(0.5 * torch.log1p(-(given.abs() ** 2)))

    def _input_matrix(self) -> Tensor:
        if self.log_gamma is None:
            return self.B
        gamma = torch.exp(self.log_gamma)
        return torch.cat([gamma, gamma]).unsqueeze(-1) * self.B

    def _output_matrix(self) -> Tensor:
        # Re[(C_re + i C_im)(h_re + i h_im)]: the imaginary half enters with a minus
        re, im = self.read_out().chunk(2, dim=1)
        return torch.cat([re, -im], dim=1)

    def read_out(self) -> Float[Tensor, "out states"]:
        """The effective C, (out, 2 state_size), what states are read with."""
        return self.C if self.readout == "plain" else self.C * self._read_scale()

    def _read_scale(self) -> Tensor:
        return read_scale(self.parameterization, self.w, self.state_size).repeat(2)

    @torch.no_grad()
    def set_read_out_(self, C: Float[Tensor, "out states"]) -> None:
        """Moves the free weight so that the effective C is this, (out, 2 state_size)."""
        self.C.copy_(C if self.readout == "plain" else C / self._read_scale())

    def choices(self) -> dict[str, Any]:
        made: dict[str, Any] = {"parameterization": self.parameterization.key, "normalize": self.log_gamma is not None}
        made |= {} if self.readout == "plain" else {"readout": self.readout}
        return {**made, "out_features": self.out_features}

    def linear_system(self) -> LinearSystem:
        if self.w.dtype in HALF_DTYPES:
            return widened_twin(self).linear_system()
        B = torch.complex(*self._input_matrix().chunk(2))
        C = torch.complex(*self.read_out().chunk(2, dim=1))
        return single_system(self.eigenvalues(), B, None, C, torch.diag(self.D) if self.D.ndim == 1 else self.D)

    def _masks_resets(self) -> bool:
        return True

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        re, im = self._pair()
        # the kernel has a direct path from a feature to itself; a matrix is added outside
        direct = self.D if self.D.ndim == 1 else None
        y, last = lru(
            x,
            re,
            im,
            self._input_matrix(),
            self._output_matrix(),
            direct,
            state,
            lengths=lengths,
            resets=resets,
            reverse=reverse,
        )
        return (y if self.D.ndim == 1 else y + zero_after(project(x, self.D), lengths)), last

    def _coefficients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What one step multiplies with: h+ = same o h + cross o (h with its halves swapped) + b u, y = c h + D u."""
        re, im = self._pair()
        return torch.cat([re, re]), torch.cat([-im, im]), self._input_matrix(), self._output_matrix()

    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        sources = tuple(p for p in (self.w, self.phase, self.log_gamma, self.B, self.C) if p is not None)
        same, cross, b, c = self._keep("coefficients", sources, self._coefficients)
        # real and imaginary half change places: one product each gives the complex one
        swapped = state.roll(self.state_size, -1)
        h = torch.addcmul(torch.addcmul(functional.linear(x, b), same, state), cross, swapped)
        y = functional.linear(h, c)
        return (torch.addcmul(y, self.D, x) if self.D.ndim == 1 else y + functional.linear(x, self.D)), h


def ring(state_size: int, r_min: float, r_max: float, max_phase: float = 2 * math.pi) -> Complex[Tensor, " state"]:
    """Eigenvalues uniform in area on the ring r_min <= |lam| <= r_max, phases uniform on [0, max_phase)."""
    square = torch.rand(state_size, dtype=torch.float64) * (r_max**2 - r_min**2) + r_min**2
    # |lam| = 1 has probability 0 but rounding can reach it
    radius = square.sqrt().clamp(max=1 - 1e-7)
    return torch.polar(radius, max_phase * torch.rand(state_size, dtype=torch.float64))
