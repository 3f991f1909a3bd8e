"""A sum of exponentials as one layer of the project."""

from __future__ import annotations

import math

import numpy as np
import torch

from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.nn import AbstractRecurrent
from holdfast.nn.from_weights import complex_layer, diagonal_layer
from holdfast.parameterizations import AbstractParameterization


def sum_layer(
    rates: np.ndarray,
    coefficients: np.ndarray,
    parameterization: str | AbstractParameterization,
    *,
    time: Time,
    dt: float,
    dtype: torch.dtype | None,
) -> AbstractRecurrent:
    """The layer of ExponentialSum.to_layer."""
    kind = dtype or torch.get_default_dtype()
    if not (math.isfinite(dt) and dt > 0):
        raise ArgumentError(f"dt must be a finite number above 0, got {dt!r}")
    if time not in ("continuous", "discrete"):
        raise ArgumentError(f"time must be 'continuous' or 'discrete', got {time!r}")
    if rates.dtype.kind != "c":
        lam = -rates if time == "continuous" else np.exp(-rates * dt)
        U, C = np.ones((len(rates), 1)), coefficients.real[None, :]
        # in discrete time dt is in the eigenvalues already
        step = dt if time == "continuous" else 1.0
        return diagonal_layer(lam, U, C, parameterization=parameterization, time=time, dt=step, dtype=kind)
    modes, weights = _one_of_each_pair(rates, coefficients.astype(np.complex128))
    lam = -modes if time == "continuous" else np.exp(-modes * dt)
    return complex_layer(lam, weights, parameterization=parameterization, time=time, dt=dt, dtype=kind)


def _one_of_each_pair(rates: np.ndarray, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Modes with Im >= 0 and doubled weights where the conjugate is there too, so that Re sums to the same kernel."""
    kept, weights = [], []
    left = list(range(len(rates)))
    while left:
        i = left.pop(0)
        # a fit gives pairs that differ by rounding
        partner = [j for j in left if np.isclose(rates[j], rates[i].conjugate(), rtol=1e-9, atol=0)]
        if rates[i].imag != 0 and partner:
            j = partner[0]
            left.remove(j)
            kept.append(rates[i])
            weights.append(coefficients[i] + coefficients[j].conjugate())
        else:
            kept.append(rates[i])
            weights.append(coefficients[i])
    return np.array(kept), np.array(weights)
