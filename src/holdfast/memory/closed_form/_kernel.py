"""Exact memory of linear models from their weights: rho(t), and M(t) = |rho(t)|_1.

Each function returns a Kernel, rho at the times asked for, in float64. Continuous time: y(t) = int rho(s) x(t - s) ds;
discrete time: y_k = sum_j rho_j x_{k-j}, times being whole numbers of steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Complex, Float, Float64
from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError, ShapeError
from holdfast.kernels.s4d._reference import Discretization, discretize, phi
from holdfast.memory._curve import MemoryCurve
from holdfast.nn.system import RealOrComplex

MAX_RUN_STEPS = 1 << 26  # steps: a recurrence is run over all of them
GivenTimes = Sequence[float] | Sequence[int] | range | np.ndarray | Tensor


@dataclass(frozen=True, eq=False)
class Kernel:
    """The kernel rho(t) of a linear model, and the eigenvalues that govern it for t -> inf.

    Args:
        time: the times (times,).
        rho: its values (times, outputs, inputs).
        eigenvalues: those of the recurrence (modes,), real or complex.
        kind: what the eigenvalues belong to: "continuous" for e^{W t}, "discrete" for one step.
        dt: time of one step.
    """

    time: Float64[Tensor, " times"]
    rho: Float64[Tensor, "times outputs inputs"]
    eigenvalues: Float64[Tensor, " modes"] | Complex[Tensor, " modes"]
    kind: Time
    dt: float = 1.0

    def memory(self, norm: float = math.inf) -> Float64[Tensor, " times"]:
        """M(t) = sup over |x|_inf <= 1 of |rho(t) x|; for norm inf the largest row sum |rho_o(t)|_1 over the outputs o.

        Any other norm is convex in x, so that a sign vector reaches the sup: all 2^inputs are tried, up to 12 inputs.

        Args:
            norm: order of the norm over outputs.
        """
        if math.isinf(norm) or self.rho.shape[2] == 1:
            return torch.linalg.vector_norm(self.rho.abs().sum(-1), norm, dim=-1)
        inputs = self.rho.shape[2]
        if inputs > 12:
            raise ArgumentError(
                f"norm={norm:g} tries all sign vectors and takes at most 12 inputs, got {inputs}; use norm=inf"
            )
        # x and -x give the same size: the first sign is fixed
        signs = torch.tensor([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=inputs - 1)]).double()
        return torch.linalg.vector_norm(self.rho @ signs.T, norm, dim=1).amax(-1)

    def curve(self, norm: float = math.inf) -> MemoryCurve:
        """The memory as a curve, as memory_function would return it; it carries the eigenvalues of one step.

        Args:
            norm: order of the norm over outputs.
        """
        lam = self.eigenvalues if self.kind == "discrete" else torch.exp(self.eigenvalues * self.dt)
        return MemoryCurve(
            time=self.time.numpy(),
            values=self.memory(norm).numpy(),
            probe="closed form",
            norm=norm,
            dt=self.dt,
            eigenvalues=lam.numpy(),
            bound="exact",
        )


@checked
def diagonal(
    eigenvalues: RealOrComplex,
    B: RealOrComplex,
    C: RealOrComplex,
    times: GivenTimes,
    *,
    time: Time = "continuous",
    D: Float[Tensor, "outputs inputs"] | None = None,
    step: float | None = None,
) -> Kernel:
    """Kernel of a diagonal recurrence: rho(t) = Re[C e^{lam t} B] (continuous) or rho_k = Re[C lam^k B] (discrete).

    Args:
        eigenvalues: lam (modes,), real or complex.
        B: input weights (modes, inputs), or (modes,) for one input.
        C: output weights (outputs, modes), or (modes,) for one output.
        times: where rho is wanted; whole numbers of steps in discrete time.
        time: "continuous" or "discrete".
        D: direct path (outputs, inputs), added to rho_0; discrete time only.
        step: gives the mean of rho over [t, t + step] instead, which is what a model that holds its input over that
            step (zero-order hold) shows to the probes; continuous time only.
    """
    lam, b, c = _vector("eigenvalues", eigenvalues), _wide(_columns(B)), _wide(_rows(C))
    _check_modes("eigenvalues", len(lam), b, c)
    t = _times(times, time)
    _check_direct(D, time)
    if time == "continuous":
        modes = torch.exp(t.unsqueeze(-1) * lam)
        if step is not None:
            # the mean of e^{lam s} over [t, t + step] is e^{lam t} (e^{lam step} - 1) / (lam step)
            modes = modes * phi(step * lam.unsqueeze(0))
    else:
        if step is not None:
            raise ArgumentError(
                "step is the averaging interval of a continuous-time kernel, and this one is discrete; leave step out"
            )
        modes = lam ** t.to(torch.int64).unsqueeze(-1)
    rho = _real(torch.einsum("om,tm,mi->toi", *_alike(c, modes, b)))
    return Kernel(t, _with_direct(rho, t, D), lam, time)


@checked
def dense(
    W: Float[Tensor, "n n"],
    U: Float[Tensor, "n ..."],
    c: Float[Tensor, "... n"],
    times: GivenTimes,
    *,
    time: Time = "continuous",
    D: Float[Tensor, "outputs inputs"] | None = None,
) -> Kernel:
    """Kernel of a dense recurrence: rho(t) = c' e^{W t} U (continuous) or rho_k = c' W^k U (discrete).

    W may be any square matrix, diagonalizable or not.

    Args:
        W: recurrent weights (n, n).
        U: input weights (n, inputs), or (n,) for one input.
        c: output weights (outputs, n), or (n,) for one output.
        times: where rho is wanted; whole numbers of steps in discrete time.
        time: "continuous" or "discrete".
        D: direct path (outputs, inputs), added to rho_0; discrete time only.
    """
    w, u, out = _wide(W), _wide(_columns(U)), _wide(_rows(c))
    if w.shape[0] != w.shape[1] or w.numel() == 0:
        raise ShapeError(f"W must be square, got {tuple(w.shape)}")
    _check_modes("W", len(w), u, out, names=("U", "c"))
    if not bool(torch.isfinite(w).all()):
        raise ArgumentError(
            f"W must be finite, got {int((~torch.isfinite(w)).sum())} of {w.numel()} entries that are not"
        )
    t = _times(times, time)
    _check_direct(D, time)
    if time == "continuous":
        # one matrix exponential a time: powers of one e^{W dt} would add up rounding errors
        parts = [torch.linalg.matrix_exp(part.view(-1, 1, 1) * w) for part in t.split(max(1, (1 << 22) // w.numel()))]
        rho = out @ torch.cat(parts) @ u
    else:
        # state by state: C W^k U by powers of W would cost n^3 per step
        powers, state = [], u
        for _ in range(int(t.max()) + 1):
            powers.append(out @ state)
            state = w @ state
        rho = torch.stack(powers)[t.to(torch.int64)]
    return Kernel(t, _with_direct(rho, t, D), torch.linalg.eigvals(w), time)


@checked
def two_layer(
    lam1: RealOrComplex,
    lam2: RealOrComplex,
    C: RealOrComplex,
    U1: RealOrComplex,
    U2: RealOrComplex,
    times: GivenTimes,
    *,
    time: Time = "continuous",
) -> Kernel:
    """Memory of y = C h1, h1' = lam1 h1 + U1 h2, h2' = lam2 h2 + U2 x, both recurrences diagonal.

    rho(t) = sum_ij C_i U1_ij U2_j (e^{lam2_j t} - e^{lam1_i t}) / (lam2_j - lam1_i), t e^{lam t} where the rates meet.
    "State-space Models ...", eq. 38, prints U1_ij C U2 for the weights of a pair: i belongs to C and j to U2. The
    quotient is t e^{a t} phi((b - a) t), phi(z) = (e^z - 1)/z, with a the rate of larger real part: no cancellation
    where the rates are near and no overflow where they are not. Discrete: sum over p + q = k of lam1^p lam2^q.

    Args:
        lam1: rates of h1, the layer that C reads (n1,).
        lam2: rates of h2, the layer that reads the input (n2,).
        C: output weights (outputs, n1), or (n1,) for one output.
        U1: weights from h2 to h1 (n1, n2).
        U2: input weights (n2, inputs), or (n2,) for one input.
        times: where rho is wanted; whole numbers of steps in discrete time.
        time: "continuous" or "discrete".
    """
    first, second = _vector("lam1", lam1), _vector("lam2", lam2)
    c, u1, u2 = (_wide(w) for w in (_rows(C), U1, _columns(U2)))
    if c.ndim != 2 or c.shape[1] != len(first) or u2.ndim != 2 or len(u2) != len(second):
        raise ShapeError(
            f"C must be (outputs, {len(first)}) by lam1 and U2 ({len(second)}, inputs) by lam2; "
            f"got C of {tuple(c.shape)} and U2 of {tuple(u2.shape)}"
        )
    if u1.shape != (len(first), len(second)):
        raise ShapeError(f"U1 must be ({len(first)}, {len(second)}), lam1 by lam2; got {tuple(u1.shape)}")
    t = _times(times, time)
    first, second = _alike(first, second)
    a, b = torch.broadcast_tensors(first.unsqueeze(1), second.unsqueeze(0))
    if time == "continuous":
        # the slower rate outside: what is left inside decays, and exp cannot overflow
        swap = b.real > a.real if a.is_complex() else b > a
        slow, fast = torch.where(swap, b, a), torch.where(swap, a, b)
        s = t.view(-1, 1, 1)
        quotient = phi(((fast - slow) * s).flatten(1)).reshape(len(t), *a.shape)
        pairs = s * torch.exp(slow * s) * quotient
    else:
        sums, power = [torch.ones_like(a)], torch.ones_like(a)
        for _ in range(int(t.max())):
            # sum over p + q = k of a^p b^q by s_k = a s_{k-1} + b^k: no difference of near numbers
            power = power * b
            sums.append(a * sums[-1] + power)
        pairs = torch.stack(sums)[t.to(torch.int64)]
    rho = torch.einsum("oi,tij,ij,jd->tod", *_alike(c, pairs, u1, u2))
    return Kernel(t, _real(rho), torch.cat([first, second]), time)


@checked
def s4d(
    dt: Float[Tensor, " features"],
    lam: RealOrComplex,
    C: RealOrComplex,
    times: GivenTimes,
    *,
    D: Float[Tensor, " features"] | None = None,
    discretization: Discretization = "zoh",
) -> Kernel:
    """Kernel of an S4D layer: rho_k = 2 Re sum_n C_hn Bbar_hn Abar_hn^k for feature h.

    Each feature has its own modes and step. Of complex modes only one of each conjugate pair is given, hence the 2;
    real modes count once. Features do not mix, so rho is diagonal over them. Abar and Bbar are the discretized modes
    (Gu et al., "On the parameterization and initialization of diagonal state space models", section 3.1).

    Args:
        dt: step of each feature (features,).
        lam: continuous-time eigenvalues (features, modes), real or complex.
        C: output weights (features, modes).
        times: where rho is wanted, in whole steps.
        D: direct path (features,), added to rho_0.
        discretization: "zoh" (input held over a step) or "bilinear".
    """
    rates, c, steps = _wide(lam), _wide(C), _wide(dt)
    if rates.ndim != 2 or c.shape != rates.shape or len(steps) != len(rates) or rates.numel() == 0:
        raise ShapeError(
            f"lam and C must be (features, modes) and dt (features,); got lam of {tuple(rates.shape)}, "
            f"C of {tuple(c.shape)}, dt of {tuple(steps.shape)}"
        )
    if D is not None and len(D) != len(rates):
        raise ShapeError(f"D must have one number for each of the {len(rates)} features, got {tuple(D.shape)}")
    a, b = discretize(steps.unsqueeze(-1), rates, discretization)
    t = _times(times, "discrete")
    k = t.to(torch.int64).view(-1, 1, 1)
    kernel = torch.einsum("thn,hn->th", *_alike(a**k, c * b))
    # one mode stands for a conjugate pair
    kernel = 2 * kernel.real if kernel.is_complex() else kernel
    direct = None if D is None else torch.diag(_wide(D))
    return Kernel(t, _with_direct(torch.diag_embed(kernel), t, direct), a.flatten(), "discrete")


@checked
def lru(
    lam: RealOrComplex,
    B: RealOrComplex,
    C: RealOrComplex,
    times: GivenTimes,
    *,
    gamma: Float[Tensor, " modes"] | None = None,
    D: Float[Tensor, " outputs"] | Float[Tensor, "outputs inputs"] | None = None,
) -> Kernel:
    """Kernel of an LRU, h_k = lam h_{k-1} + gamma B x_k, y_k = Re[C h_k] + D x_k ("On the Universality ...", eq. 2).

    rho_k = Re[C lam^k gamma B] + D [k = 0].

    Args:
        lam: eigenvalues (modes,), real or complex.
        B: input weights (modes, inputs), or (modes,) for one input.
        C: output weights (outputs, modes), or (modes,) for one output.
        times: where rho is wanted, in whole steps.
        gamma: normalization of the input (modes,); None is 1.
        D: direct path, (outputs,) where it acts feature by feature, or (outputs, inputs).
    """
    b, modes = _columns(B), len(_vector("lam", lam))
    _check_modes("lam", modes, b, _rows(C))
    if gamma is not None:
        if len(gamma) != modes:
            raise ShapeError(
                f"gamma must have one number for each of the {modes} modes of lam, got {tuple(gamma.shape)}"
            )
        b = gamma.unsqueeze(-1) * b
    direct = torch.diag(D) if D is not None and D.ndim == 1 else D
    return diagonal(lam, b, C, times, time="discrete", D=direct)


def _vector(name: str, w: Tensor) -> Tensor:
    if w.ndim != 1 or len(w) == 0:
        raise ShapeError(f"{name} must have shape (modes,) with at least one mode, got {tuple(w.shape)}")
    return _wide(w)


def _check_modes(name: str, modes: int, b: Tensor, c: Tensor, names: tuple[str, str] = ("B", "C")) -> None:
    if b.ndim != 2 or len(b) != modes or c.ndim != 2 or c.shape[1] != modes:
        raise ShapeError(
            f"{name} has {modes} modes: expected {names[0]} ({modes}, inputs) and {names[1]} (outputs, {modes}), "
            f"got {tuple(b.shape)} and {tuple(c.shape)}"
        )


def _wide(w: Tensor) -> Tensor:
    return w.detach().cpu().to(torch.complex128 if w.is_complex() else torch.float64)


def _alike(*tensors: Tensor) -> list[Tensor]:
    dtype = torch.complex128 if any(x.is_complex() for x in tensors) else torch.float64
    return [x.to(dtype) for x in tensors]


def _columns(w: Tensor) -> Tensor:
    return w.unsqueeze(-1) if w.ndim == 1 else w


def _rows(w: Tensor) -> Tensor:
    return w.unsqueeze(0) if w.ndim == 1 else w


def _real(rho: Tensor) -> Tensor:
    return rho.real.contiguous() if rho.is_complex() else rho


def _check_direct(D: Tensor | None, time: Time) -> None:
    if D is not None and time == "continuous":
        raise ArgumentError("D is a delta at time 0 in continuous time and not part of the kernel; leave D out")


def _with_direct(rho: Tensor, t: Tensor, D: Tensor | None) -> Tensor:
    if D is None:
        return rho
    if D.shape != rho.shape[1:]:
        raise ShapeError(f"D must be {tuple(rho.shape[1:])}, outputs by inputs, got {tuple(D.shape)}")
    return rho + (t == 0).view(-1, 1, 1) * _wide(D)


def _times(times: GivenTimes, kind: Time) -> Float64[Tensor, " times"]:
    # a list of floats would become float32 in torch
    t = (
        times.detach().cpu().double()
        if isinstance(times, Tensor)
        else torch.from_numpy(np.array(times, dtype=np.float64))
    )
    if t.ndim != 1 or len(t) == 0 or not bool(((t >= 0) & torch.isfinite(t)).all()):
        raise ArgumentError(f"times must be one or more finite numbers >= 0 in one dimension, got {t.tolist()!r:.80}")
    if kind == "discrete" and float(t.max()) > MAX_RUN_STEPS:
        raise ArgumentError(f"times must be at most {MAX_RUN_STEPS} steps in discrete time, got {float(t.max()):g}")
    if kind == "discrete" and bool((t != t.round()).any()):
        raise ArgumentError(f"times must be whole numbers of steps in discrete time, got {t.tolist()!r:.80}")
    return t
