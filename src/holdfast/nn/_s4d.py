"""S4D: a diagonal state-space model with its own modes and time scale for every feature."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.kernels import s4d, scan
from holdfast.kernels.s4d import s4d_step
from holdfast.kernels.s4d._step import step_of_pairs
from holdfast.nn._base import AbstractRecurrent, zero_after
from holdfast.nn._discretize import DiscretizationRule, discretize, discretize_pairs, step_margins
from holdfast.nn._export_loop import by_steps
from holdfast.nn._initial_weights import (
    MAX_DT,
    MAX_RATE,
    MIN_DT,
    Device,
    ReadOut,
    as_eigenvalues,
    check_read_out,
    check_step_range,
    free_weight,
    mixed,
    own_values,
    placeable,
    placed,
    read_out,
    read_scale,
    starting_values,
)
from holdfast.nn._precision import HALF_DTYPES, widened, widened_twin
from holdfast.nn.system import LinearSystem, single_system
from holdfast.parameterizations import AbstractParameterization

Initialization = Literal["lin", "inv", "legs", "real"]


class S4D(AbstractRecurrent):
    """dh/dt = lam h + u, y = 2 Re[C h] + D u for each feature, discretized with the feature's own step exp(log_dt).

    lam = f(w) + i frequency; modes come in conjugate pairs, so that state_size real numbers are state_size/2 complex
    modes (Gu et al., "On the parameterization and initialization of diagonal state space models"). State: (batch,
    features, modes, 2) real pairs, or (batch, features, state_size) where modes are real.

    Args:
        features: number of input features.
        state_size: real numbers of state for each feature; even unless modes are real.
        initialization: where lam starts, with N modes n = 0, 1, ...: "lin" -1/2 + i pi n; "inv" -1/2 + i
            (N/pi)(N/(2n+1) - 1); "legs" the normal part of HiPPO-LegS; "real" -(n+1), real modes with y = C h + D u.
        discretization: "zoh" is exact for inputs held over each step; or "bilinear".
        parameterization: f, which gives the real parts, by name or as an object of `holdfast.parameterizations`.
        dt_min: smallest step; the features' steps start log-uniform between it and `dt_max`.
        dt_max: largest step at the start.
        eigenvalues: where lam starts (features, modes), instead of `initialization`.
        readout: "plain" has C itself as a weight; "scaled" holds gamma of C_i = gamma_i |Re lam_i| / (2 sqrt(m)), m the modes
            of a feature, without the 2 where they are real: a change of gamma by beta changes a feature's response by at
            most beta in L1, whatever its rates and its step, where one of C counts beta / rate. With "zoh" only.
        out_features: number of outputs; None is `features`. Another number needs a matrix E more, which maps y to the outputs.
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    `dt` of forward and step multiplies exp(log_dt). Steps are held in [1e-12, 1e6], rates -Re lam and frequencies below
    1e12: outside of these a weight has no effect and no gradient.

    Memory of a training step, in numbers: x, y, their gradients, and state_size features T/128 for checkpoints of the
    state (native kernel); with per-step `dt` also 3 T features state_size.

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.S4D(4, 16)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    recurrent_names = ("w", "frequency", "log_dt")
    step_names = ("log_dt", None)
    time: Time = "continuous"

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int,
        *,
        initialization: Initialization = "lin",
        discretization: Literal["zoh", "bilinear"] = "zoh",
        parameterization: str | AbstractParameterization = "exp",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        eigenvalues: Complex[Tensor, "features modes"] | Float[Tensor, "features modes"] | None = None,
        readout: ReadOut = "plain",
        out_features: int | None = None,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        choices: dict[str, Any] = dict(
            initialization=initialization, discretization=discretization, parameterization=parameterization,
            dt_min=dt_min, dt_max=dt_max, eigenvalues=eigenvalues, readout=readout, out_features=out_features,
        )  # fmt: skip
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        if initialization != "real" and state_size % 2:
            raise ArgumentError(f"complex modes come in pairs: state_size must be even, got {state_size}")
        check_step_range(dt_min, dt_max)
        if readout == "scaled" and discretization != "zoh":
            raise ArgumentError(f"readout='scaled' bounds responses of discretization='zoh', got {discretization!r}")
        check_read_out(self, readout)
        self.readout: ReadOut = readout
        self.discretization: Literal["zoh", "bilinear"] = discretization
        self.modes = state_size if initialization == "real" else state_size // 2
        shape = (features, self.modes)
        start = starting_values(eigenvalues, lambda: initial_modes(initialization, self.modes).expand(shape))
        lam = as_eigenvalues(start, shape, real=initialization == "real", layer="S4D")
        self.parameterization, self.w = free_weight(parameterization, "continuous", lam.real)
        self.frequency = placed(lam.imag.to(self.w.dtype)) if lam.is_complex() else None
        spread = torch.rand(features) * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min)
        self.log_dt = nn.Parameter(spread)
        pair = (2,) if lam.is_complex() else ()
        self.C = nn.Parameter(torch.randn(features, self.modes, *pair) * math.sqrt(0.5))
        self.D = nn.Parameter(torch.randn(features))
        self.E = read_out(features, self.out_features)

    @property
    def state_shape(self) -> tuple[int, ...]:
        pair = () if self.frequency is None else (2,)
        return (self.features, self.modes, *pair)

    def eigenvalues(self) -> Tensor:
        real, imaginary = self._parts()
        return real if imaginary is None else torch.complex(real, imaginary)

    def _parts(self) -> tuple[Tensor, Tensor | None]:
        """Real and imaginary parts of the eigenvalues, as they are computed with."""
        real = own_values(self.parameterization, self.w)
        return real, None if self.frequency is None else widened(self.frequency).clamp(-MAX_RATE, MAX_RATE)

    def _steps(self) -> Float[Tensor, " features"]:
        """The features' own steps, as they are computed with."""
        return torch.exp(widened(self.log_dt).clamp(math.log(MIN_DT), math.log(MAX_DT)))

    @torch.no_grad()
    def set_eigenvalues_(self, lam: Tensor) -> None:
        """Moves the free weights so that the eigenvalues are `lam`, (features, modes)."""
        given = as_eigenvalues(lam, (self.features, self.modes), real=self.frequency is None, layer="S4D")
        self.w.copy_(self.parameterization.inverse(given.real.to(self.w)))
        if self.frequency is not None:
            self.frequency.copy_(given.imag if given.is_complex() else torch.zeros_like(given))

    def read_out(self) -> Tensor:
        """The effective C, what modes are read with: (features, modes), or pairs of real numbers behind them."""
        return self.C if self.readout == "plain" else self.C * self._read_scale()

    def _read_scale(self) -> Tensor:
        """One of each conjugate pair is kept, and read twice."""
        scale = read_scale(self.parameterization, self.w, self.modes)
        return scale if self.frequency is None else scale.unsqueeze(-1) / 2

    @torch.no_grad()
    def set_read_out_(self, C: Tensor) -> None:
        """Moves the free weight so that the effective C is this, in the shape of `read_out()`."""
        self.C.copy_(C if self.readout == "plain" else C / self._read_scale())

    def _masks_resets(self) -> bool:
        return True

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if isinstance(dt, Tensor):
            return self._run_irregular(x, state, lengths, dt, reverse, resets)
        y, last = self._run_regular(x, state, lengths, dt, reverse, resets, return_state=True)
        assert last is not None
        return mixed(y, self.E), last

    def _outputs(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool
    ) -> Tensor:
        if isinstance(dt, Tensor):
            return self._run_irregular(x, state, lengths, dt, reverse, None)[0]
        return mixed(self._run_regular(x, state, lengths, dt, reverse, None, return_state=False)[0], self.E)

    def _run_regular(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: float | None, reverse: bool,
        resets: Tensor | None, *, return_state: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        step = self._steps() if dt is None else self._steps() * dt
        real, imaginary = self._parts()
        C = self.read_out()
        c_re, c_im = (C, None) if self.frequency is None else C.unbind(-1)
        return s4d(
            x, step, real, imaginary, c_re, c_im, self.D, state,
            discretization=self.discretization, lengths=lengths, resets=resets, reverse=reverse,
            return_state=return_state,
        )  # fmt: skip

    def _run_irregular(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor, reverse: bool, resets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """A step size for every step: the factors change in time, so the general scan runs over all modes."""
        factor, gain = self._factors(dt[..., None, None])
        batch, steps = x.shape[:2]
        v = (gain * x.unsqueeze(-1)).reshape(batch, steps, self.features * self.modes)
        h0 = None if state is None else state.flatten(1, 2)
        if h0 is not None and self.frequency is not None:
            h0 = torch.view_as_complex(h0.contiguous())
        h, last = scan(factor.reshape_as(v), v, h0, reverse=reverse, lengths=lengths, resets=resets)
        y = self._read(h.reshape(batch, steps, self.features, self.modes), x)
        return mixed(zero_after(y, lengths), self.E), self._stored(last.reshape(batch, self.features, self.modes))

    def _run_exported(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        """Complex modes as pairs of real numbers; what does not change in time is computed before the loop."""
        if self.frequency is None:
            return super()._run_exported(x, state, lengths, dt, reverse)
        fixed, C = None if isinstance(dt, Tensor) else self._factor_pairs(1.0 if dt is None else dt), self.read_out()

        def step(u: Tensor, h: Tensor, now: Any) -> tuple[Tensor, Tensor]:
            factor, gain = self._factor_pairs(now[:, None, None]) if fixed is None else fixed
            y, after = step_of_pairs(u, h, factor, gain, C, self.D)
            return mixed(y, self.E), after

        start = x.new_zeros(x.shape[0], *self.state_shape) if state is None else state
        return by_steps(type(self).__name__, step, x, start, lengths, dt, reverse)

    @torch.no_grad()
    def _factor_pairs(self, scale: Tensor | float) -> tuple[Tensor, Tensor]:
        real, imaginary = self._parts()
        assert imaginary is not None
        return discretize_pairs(real, imaginary, self._steps().unsqueeze(-1) * scale, self.discretization)

    def _factors(self, scale: Tensor | float) -> tuple[Tensor, Tensor]:
        """Factor and input gain of one step, (..., features, modes)."""
        return discretize(self.eigenvalues(), self._steps().unsqueeze(-1) * scale, self.discretization)

    def _step_rule(self) -> tuple[Tensor, DiscretizationRule]:
        return self._steps().unsqueeze(-1), self.discretization

    def step_size(self) -> Tensor | None:
        return self._steps().unsqueeze(-1) if self.discretization == "zoh" else None

    @torch.no_grad()
    def step_margin(self) -> float:
        if self.w.dtype in HALF_DTYPES:
            return widened_twin(self).step_margin()
        return float(step_margins(self.eigenvalues(), self._steps().unsqueeze(-1), self.discretization).min())

    def choices(self) -> dict[str, Any]:
        kind = "real" if self.frequency is None else "lin"
        made: dict[str, Any] = {"parameterization": self.parameterization.key, "discretization": self.discretization}
        made |= {} if self.readout == "plain" else {"readout": self.readout}
        return {**made, "initialization": kind, "out_features": self.out_features}

    def linear_system(self) -> LinearSystem:
        """One system a feature, or one of all modes behind E, with the features' own steps: `dt` is 1, times are steps."""
        if self.w.dtype in HALF_DTYPES:
            return widened_twin(self).linear_system()
        factor, gain = self._factors(1.0)
        # of each conjugate pair only one mode is kept
        C = self.read_out() if self.frequency is None else 2 * torch.view_as_complex(self.read_out().contiguous())
        if self.E is not None:
            own = torch.eye(self.features, dtype=self.D.dtype, device=self.D.device).unsqueeze(
                1
            )  # a mode's own feature
            B, C = (gain.unsqueeze(-1) * own).flatten(0, 1), (self.E.unsqueeze(-1) * C).flatten(1)
            return single_system(factor.flatten(), B, None, C, self.E * self.D)
        D = self.D.reshape(-1, 1, 1)
        return LinearSystem(factor, gain.unsqueeze(-1), torch.zeros_like(gain), C.unsqueeze(1), D)

    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        if isinstance(dt, Tensor):
            factor, gain = self._factors(dt[:, None, None])
        else:
            # what the factors are made of: kept until one of them changes
            sources = (self.w, self.log_dt) if self.frequency is None else (self.w, self.log_dt, self.frequency)
            scale = 1.0 if dt is None else dt
            factor, gain = self._keep(dt, sources, lambda: self._factors(scale))
        C = self.C if self.readout == "plain" else self._keep("readout", (self.w, self.C), self.read_out)
        y, after = s4d_step(x, state, factor, gain, C, self.D)
        return mixed(y, self.E), after

    def _read(self, h: Tensor, x: Tensor) -> Tensor:
        C = self.read_out()
        if self.frequency is None:
            return (h * C).sum(-1) + self.D * x
        return torch.addcmul(2 * (h * torch.view_as_complex(C.contiguous())).sum(-1).real, self.D, x)

    def _stored(self, h: Tensor) -> Tensor:
        return h if self.frequency is None else torch.view_as_real(h)


def initial_modes(kind: Initialization, modes: int) -> Tensor:
    """Eigenvalues of one feature by the S4D paper's rules, the half with non-negative frequency."""
    n = torch.arange(modes, dtype=torch.float64)
    if kind == "real":
        return -(n + 1)
    if kind == "legs":
        return _legs(modes)
    size = 2 * modes
    frequency = math.pi * n if kind == "lin" else size / math.pi * (size / (2 * n + 1) - 1)
    return torch.complex(torch.full_like(n, -0.5), frequency)


def _legs(modes: int) -> Tensor:
    """Eigenvalues of the normal part of HiPPO-LegS: -1/2 I + a skew matrix of rank one entries."""
    n = torch.arange(2 * modes, dtype=torch.float64)
    root = torch.sqrt(2 * n + 1)
    lower = torch.tril(torch.outer(root, root), diagonal=-1) / 2
    skew = lower.mT - lower
    # the skew matrix S has eigenvalues i s; i S is Hermitian and gives the s exactly real
    frequency = torch.linalg.eigvalsh(1j * skew)
    return torch.complex(torch.full((modes,), -0.5, dtype=torch.float64), frequency[modes:])
