"""Temporal convolutions by one state-space layer (ssm, Prop. 3.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from holdfast._arguments import checked, positive
from holdfast.approximate._fit import Method, fit_exponential_sum
from holdfast.approximate._sums import ExponentialSum
from holdfast.approximate._target import KernelLike
from holdfast.errors import ArgumentError, HoldfastError, ShapeError
from holdfast.laws import AbstractLaw
from holdfast.parameterizations import AbstractParameterization
from holdfast_papers.constructions.network import Construction

_DEFAULT: tuple[Method, ...] = ("matrix_pencil", "nonnegative")
_ORDERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@checked
def convolution(
    rho: KernelLike,
    length: int | None = None,
    *,
    tolerance: float = 1e-2,
    order: int | None = None,
    method: Method | None = None,
    dt: float = 1.0,
    parameterization: str | AbstractParameterization = "exp",
) -> Construction:
    """y_k = sum_{j<length} rho(j dt) x_{k-j} by one linear layer with kernel C Lam^j U (ssm, eq. 2 and Prop. 3.2).

    The order grows until the error for inputs |x| <= 1, the sum over j of |rho(j dt) - C Lam^j U|, is within the
    tolerance. That sum is also the `bound` of the result, and its `error` is measured on the layer with the input that
    attains it and with random ones; `details["kernel_error"]` is the sup over j of ssm eq. 14. The bound leaves out
    rounding, about 1e-16 times the largest weight (weights are 1e5 where two modes nearly coincide, as for t e^-t).

    Args:
        rho: a law, a function or the samples themselves.
        length: number of lags, for a law or a function; samples bring their own.
        tolerance: error for inputs |x| <= 1 that is accepted.
        order: number of modes, where it is not to be searched.
        method: one of fit_exponential_sum, on the samples. By default matrix pencil (also complex modes, for kernels
            that oscillate or rise) and non-negative weights, whichever is within the tolerance first; where neither is,
            `length` modes on a circle, which fit any kernel of finite length.
        dt: time of one step.
        parameterization: of the layer's recurrent weights.
    """
    values = _samples(rho, length, dt)
    if not tolerance > 0:
        raise ArgumentError(f"tolerance must be above 0, got {tolerance!r}")
    positive(order=order)
    best = _search(values, _ORDERS if order is None else (order,), method, tolerance)
    if order is None and method is None and (best is None or best[0] > tolerance):
        best = _on_a_circle(values, tolerance)
    if best is None:
        raise ArgumentError("no method could fit these samples; check that they are those of a decaying kernel")
    # rates were found for steps of 1; the layer and the sum that is shown speak of the caller's time
    fitted = best[1]
    layer = fitted.to_layer(parameterization, time="discrete", dtype=torch.float64)
    kernel = _impulse_response(layer, len(values))
    error = _measure(layer, values, kernel)
    gaps = np.abs(values - kernel)
    bound = float(gaps.sum())
    ok = bound <= tolerance
    shown = replace(fitted, rates=fitted.rates / dt)
    return Construction.judged(
        layer,
        error,
        tolerance,
        ok=ok,
        advice=f"order {fitted.order} leaves {bound:.3g}; give a larger order or another method",
        probes=_INPUTS,
        bound=bound,
        details={"kernel_error": float(gaps.max()), "sum": shown, "length": len(values), "method": fitted.method},
    )


def _samples(rho: KernelLike, length: int | None, dt: float) -> np.ndarray:
    if not (math.isfinite(dt) and dt > 0):
        raise ArgumentError(f"dt must be a finite number above 0, got {dt!r}")
    if callable(rho) or isinstance(rho, AbstractLaw):
        if length is None or length < 2:
            raise ArgumentError(f"length must be at least 2 when rho is a law or a function, got {length!r}")
        times = np.arange(length, dtype=np.float64) * dt
        try:
            return _checked(np.asarray(rho(times), dtype=np.float64))
        except TypeError as error:
            raise ArgumentError(f"rho must map a numpy array of times to as many values: {error}") from error
    plain: Any = rho.detach().cpu().double().numpy() if isinstance(rho, torch.Tensor) else rho
    values = _checked(np.asarray(plain, dtype=np.float64))
    if length is not None and length != len(values):
        raise ArgumentError(
            f"length must be the number of samples of rho, {len(values)}, got {length}; leave length out"
        )
    return values


def _checked(values: np.ndarray) -> np.ndarray:
    if values.ndim != 1 or len(values) < 2:
        raise ShapeError(f"rho must have shape (samples,) with at least 2 samples, got {values.shape}")
    bad = int((~np.isfinite(values)).sum())
    if bad:
        raise ArgumentError(
            f"rho must be finite, got {bad} of {len(values)} values that are NaN or infinite; fill them"
        )
    if not np.any(values):
        raise ArgumentError("rho must not be 0 everywhere, got zeros only; give another kernel")
    return values


def _search(
    values: np.ndarray, orders: tuple[int, ...], method: Method | None, tolerance: float
) -> tuple[float, ExponentialSum] | None:
    """The first fit of growing order within the tolerance, else the best; gives up where three orders bring nothing."""
    best: tuple[float, ExponentialSum] | None = None
    stalled = 0
    for order in orders:
        before = math.inf if best is None else best[0]
        for fitted in _fits(values, order, method):
            gap = float(np.abs(values - fitted(np.arange(len(values), dtype=np.float64))).sum())
            if best is None or gap < best[0]:
                best = (gap, fitted)
            if best[0] <= tolerance:
                return best
        stalled = 0 if best is not None and best[0] < 0.95 * before else stalled + 1
        if stalled == 3:
            break
    return best


def _fits(values: np.ndarray, order: int, method: Method | None) -> Iterator[ExponentialSum]:
    """One fit a method; each is made only when the one before it was not good enough."""
    for name in _DEFAULT if method is None else (method,):
        if name == "matrix_pencil" and method is None and len(values) > 2048:
            continue  # its cost grows with the third power of the length
        try:
            yield fit_exponential_sum(values, order, name)
        except HoldfastError:
            if method is not None:
                raise


def _on_a_circle(values: np.ndarray, tolerance: float) -> tuple[float, ExponentialSum]:
    """Any kernel of finite length by modes r e^{2 pi i k / length}: the Fourier transform of values / r^j.

    r^length = 0.01, so that the kernel's periodic repetition is damped after its end. As many of the smallest weights
    are left out as the tolerance allows, a conjugate pair at a time.
    """
    length = len(values)
    rate = math.log(100) / length
    steps = np.arange(length)
    weights = np.fft.rfft(values * np.exp(rate * steps)) / length
    weights[1 : (length + 1) // 2] *= 2  # each stands for its conjugate too
    damping = float(np.exp(-rate * steps).sum())
    order = np.argsort(np.abs(weights))
    # leaving out modes costs at most the sum of their weights times the sum of r^j; a tenth is kept for rounding
    spent = np.cumsum(np.abs(weights[order])) * damping
    kept = np.sort(order[spent > 0.9 * tolerance]) if spent[-1] > 0.9 * tolerance else order[-1:]
    rates = rate - 2j * np.pi * kept / length
    both = (kept > 0) & (2 * kept < length)
    modes = np.concatenate([rates, rates[both].conj()])
    c = np.concatenate([np.where(both, weights[kept] / 2, weights[kept]), weights[kept][both].conj() / 2])
    circle = ExponentialSum(modes, c, method="circle", notes=("no decaying modes were found; modes on a circle",))
    return float(np.abs(values - circle(steps.astype(np.float64))).sum()), circle


_INPUTS = 33


@torch.no_grad()
def _impulse_response(layer: torch.nn.Module, length: int) -> np.ndarray:
    x = torch.zeros(1, length, 1, dtype=torch.float64)
    x[0, 0] = 1
    return layer(x)[0][0, :, 0].numpy()


@torch.no_grad()
def _measure(layer: torch.nn.Module, values: np.ndarray, kernel: np.ndarray) -> float:
    """The layer against the exact convolution, on the input with the largest error and on random signs."""
    length = len(values)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (_INPUTS, length), generator=generator).double() * 2 - 1
    x[0] = torch.from_numpy(np.where(values >= kernel, 1.0, -1.0)[::-1].copy())
    y = layer(x.unsqueeze(-1))[0][..., 0]
    size = 2 * length
    spectrum = torch.fft.rfft(torch.from_numpy(values), size)
    exact = torch.fft.irfft(torch.fft.rfft(x, size) * spectrum, size)[:, :length]
    return float((y - exact).abs().max())
