"""Layers built from given weights: no random number is drawn, and nothing is left to an initialization.

Whoever constructs a recurrence says what it computes (modes, matrices), and gets the layer that does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._diagonal_ssm import DiagonalSSM
from holdfast.nn._initial_weights import ReadOut
from holdfast.nn._linear_rnn import LinearRNN
from holdfast.nn._lru import LRU
from holdfast.nn._s4d import S4D
from holdfast.parameterizations import AbstractParameterization

Parameterization = str | AbstractParameterization


def diagonal_layer(
    lam: Any, U: Any, C: Any, *, b: Any = None, dtype: torch.dtype = torch.float64, **choices: Any
) -> AbstractRecurrent:
    """y = C sigma(h) with real modes `lam`, (state,), U (state, features), C (out, state) and bias b (state,).

    `choices` are DiagonalSSM's own; without them the modes are free weights of a linear recurrence in discrete time.
    """
    plain: dict[str, Any] = {"parameterization": "direct", "time": "discrete", "activation": "identity", "dt": 1.0}
    eigenvalues, inputs, outputs = (torch.as_tensor(v, dtype=torch.float64) for v in (lam, U, C))
    with torch.random.fork_rng(devices=[]):
        layer = DiagonalSSM(
            inputs.shape[1],
            len(eigenvalues),
            bias=b is not None,
            out_features=len(outputs),
            eigenvalues=eigenvalues,
            **{**plain, **choices},
        ).to(dtype)
    layer.set_eigenvalues_(eigenvalues)
    layer.set_read_out_(outputs)
    weights = {"U": inputs} | ({} if b is None else {"b": torch.as_tensor(b, dtype=torch.float64)})
    _fill(layer, weights)
    return layer


def dense_layer(W: np.ndarray, U: np.ndarray, C: np.ndarray) -> AbstractRecurrent:
    """h+ = W h + U x, y = C h with W itself as the free weight, in float64."""
    matrix = torch.from_numpy(W)
    with torch.random.fork_rng(devices=[]):
        layer = LinearRNN(U.shape[1], len(W), parameterization="direct", out_features=len(C), W=matrix).double()
    layer.recurrence.set_(matrix)
    _fill(layer, {"U": torch.from_numpy(U), "C": torch.from_numpy(C)})
    return layer


def complex_layer(
    lam: np.ndarray,
    weights: np.ndarray,
    *,
    parameterization: Parameterization,
    time: Time,
    dt: float,
    dtype: torch.dtype,
    readout: ReadOut = "plain",
) -> AbstractRecurrent:
    """y = Re sum_n weights_n h_n of one input, with one of each conjugate pair of modes.

    Continuous time: dh/dt = lam h + x, stepped exactly over dt. Discrete time: h+ = lam h + x.
    """
    make = _in_continuous_time if time == "continuous" else _in_discrete_time
    return make(lam, weights, parameterization, dt, dtype, readout)


def _in_continuous_time(
    lam: np.ndarray, weights: np.ndarray, f: Parameterization, dt: float, dtype: torch.dtype, readout: ReadOut
) -> AbstractRecurrent:
    eigenvalues = torch.from_numpy(lam).unsqueeze(0)
    with torch.random.fork_rng(devices=[]):
        layer = S4D(
            1, 2 * len(lam), parameterization=f, dt_min=dt, dt_max=dt, eigenvalues=eigenvalues, readout=readout
        ).to(dtype)
    layer.set_eigenvalues_(eigenvalues)
    # the layer reads 2 Re[C h]
    layer.set_read_out_(torch.view_as_real(torch.from_numpy(weights / 2)).unsqueeze(0))
    _fill(layer, {"D": torch.zeros(1), "log_dt": torch.full((1,), math.log(dt), dtype=torch.float64)})
    return layer


def _in_discrete_time(
    lam: np.ndarray, weights: np.ndarray, f: Parameterization, _: float, dtype: torch.dtype, readout: ReadOut
) -> AbstractRecurrent:
    eigenvalues = torch.from_numpy(lam)
    n = len(lam)
    with torch.random.fork_rng(devices=[]):
        layer = LRU(1, n, parameterization=f, normalize=False, eigenvalues=eigenvalues, readout=readout).to(dtype)
    layer.set_eigenvalues_(eigenvalues)
    B = torch.cat([torch.ones(n, 1), torch.zeros(n, 1)])
    layer.set_read_out_(torch.cat([torch.from_numpy(weights.real), torch.from_numpy(weights.imag)]).unsqueeze(0))
    _fill(layer, {"B": B, "D": torch.zeros(1)})
    return layer


@torch.no_grad()
def _fill(layer: AbstractRecurrent, weights: dict[str, Tensor]) -> None:
    for name, value in weights.items():
        getattr(layer, name).copy_(value)
