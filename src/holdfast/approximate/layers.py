"""Layers of the project with given weights: no random numbers are drawn, nothing is left to an initialisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.nn import LRU, S4D, AbstractRecurrent, DiagonalSSM
from holdfast.parameterizations import AbstractParameterization


def diagonal_layer(
    lam: Any,
    U: Any,
    C: Any,
    *,
    b: Any = None,
    activation: str = "identity",
    parameterization: str | AbstractParameterization = "direct",
    time: Time = "discrete",
    dt: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> DiagonalSSM:
    """A DiagonalSSM with eigenvalues `lam`, (state,), U (state, features), C (out, state) and bias b (state,)."""
    eigenvalues, inputs, outputs = (torch.as_tensor(v, dtype=torch.float64) for v in (lam, U, C))
    with torch.random.fork_rng(devices=[]):
        layer = DiagonalSSM(
            inputs.shape[1],
            len(eigenvalues),
            parameterization=parameterization,
            time=time,
            activation=activation,
            dt=dt,
            bias=b is not None,
            out_features=len(outputs),
            eigenvalues=eigenvalues,
        ).to(dtype)
    layer.set_eigenvalues_(eigenvalues)
    weights = {"U": inputs, "C": outputs} | ({} if b is None else {"b": torch.as_tensor(b, dtype=torch.float64)})
    _fill(layer, weights)
    return layer


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
        raise ArgumentError(f"dt must be a finite number above 0, came {dt!r}")
    if time not in ("continuous", "discrete"):
        raise ArgumentError(f"time must be 'continuous' or 'discrete', came {time!r}")
    if rates.dtype.kind != "c":
        lam = -rates if time == "continuous" else np.exp(-rates * dt)
        U, C = np.ones((len(rates), 1)), coefficients.real[None, :]
        step = dt if time == "continuous" else 1.0
        return diagonal_layer(lam, U, C, parameterization=parameterization, time=time, dt=step, dtype=kind)
    modes, weights = _one_of_each_pair(rates, coefficients.astype(np.complex128))
    if time == "continuous":
        return _s4d(modes, weights, parameterization, dt, kind)
    return _lru(np.exp(-modes * dt), weights, parameterization, kind)


def _one_of_each_pair(rates: np.ndarray, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Modes with Im >= 0 and doubled weights where the conjugate is there too, so that Re sums to the same kernel."""
    kept, weights = [], []
    left = list(range(len(rates)))
    while left:
        i = left.pop(0)
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


def _s4d(
    modes: np.ndarray, weights: np.ndarray, f: str | AbstractParameterization, dt: float, kind: torch.dtype
) -> S4D:
    lam = torch.from_numpy(-modes).unsqueeze(0)
    with torch.random.fork_rng(devices=[]):
        layer = S4D(1, 2 * len(modes), parameterization=f, dt_min=dt, dt_max=dt, eigenvalues=lam).to(kind)
    layer.set_eigenvalues_(lam)
    # the layer reads 2 Re[C h]
    pairs = torch.view_as_real(torch.from_numpy(weights / 2)).unsqueeze(0)
    _fill(layer, {"C": pairs, "D": torch.zeros(1), "log_dt": torch.full((1,), math.log(dt), dtype=torch.float64)})
    return layer


def _lru(lam: np.ndarray, weights: np.ndarray, f: str | AbstractParameterization, kind: torch.dtype) -> LRU:
    eigenvalues = torch.from_numpy(lam)
    with torch.random.fork_rng(devices=[]):
        layer = LRU(1, len(lam), parameterization=f, normalize=False, eigenvalues=eigenvalues).to(kind)
    layer.set_eigenvalues_(eigenvalues)
    n = len(lam)
    B = torch.cat([torch.ones(n, 1), torch.zeros(n, 1)])
    C = torch.cat([torch.from_numpy(weights.real), torch.from_numpy(weights.imag)]).unsqueeze(0)
    _fill(layer, {"B": B, "C": C, "D": torch.zeros(1)})
    return layer


@torch.no_grad()
def _fill(layer: AbstractRecurrent, weights: dict[str, Tensor]) -> None:
    for name, value in weights.items():
        getattr(layer, name).copy_(value)
