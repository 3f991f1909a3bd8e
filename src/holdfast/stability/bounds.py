"""What StableSSM proves of a sum of exponentials: its perturbation error (Thm 3.3) and its gradients (Thm 3.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError, ShapeError
from holdfast.parameterizations import AbstractParameterization, fit_constants, get
from holdfast.stability.perturbation.curve import as_radii
from holdfast.stability.perturbation.kernel_error import Sum, read_sum


@checked
def kernel_error_bound(
    sum: Sum,
    radii: Sequence[float] | np.ndarray | Tensor,
    *,
    parameterization: str | AbstractParameterization = "exp",
    centre: float,
) -> Float64[np.ndarray, " radii"]:
    """E(beta) <= E(0) + g(beta) sum_i |c_i| / |f(w_i)| for a sum of exponentials (StableSSM, Thm 3.3, eq. 65).

    E is the L1 norm of the kernel's error when every recurrent weight moves by at most beta, which
    `kernel_perturbation_error` computes; g is the modulus of the parameterization. inf for one that has none.

    Args:
        sum: anything with `rates` and `coefficients`, such as ExponentialSum.
        radii: the beta, increasing and not negative.
        parameterization: f, by name or as an object; its constants are fitted so that it holds the rates.
        centre: E(0), the L1 error of the sum that nothing has moved.
    """
    if not centre >= 0:
        raise ArgumentError(f"centre is E(0), a number from 0 on, came {centre!r}")
    rates, coefficients = read_sum(sum)
    f = fit_constants(get(parameterization, time="continuous"), torch.from_numpy(-rates))
    mass = float(np.abs(coefficients / rates).sum())
    return np.array([centre + mass * f.modulus(float(beta)) for beta in as_radii(radii)])


@checked
def gradient_bound(
    coefficients: Float64[Tensor, " modes"],
    weights: Float64[Tensor, " modes"],
    *,
    parameterization: str | AbstractParameterization,
    time: Time = "continuous",
) -> Float64[Tensor, " modes"]:
    """|dLoss/dw_j| <= |c_j| G_f(w_j) with the sup norm of the functional as loss (StableSSM, Thm 3.4, eq. 88 and 93).

    The model's kernel is sum_j c_j e^{f(w_j) t}, or sum_j c_j f(w_j)^k; its loss against any target is the L1 norm of the
    difference of kernels. With the mean square of the outputs for inputs up to 1 the gradient is at most 2 mean |error|
    times this. G_f is the corrected scale, with (1 - |f|)^2 in discrete time.

    Args:
        coefficients: c (modes,).
        weights: w (modes,).
        parameterization: f, by name or as an object.
        time: "continuous" or "discrete".
    """
    if coefficients.shape != weights.shape:
        raise ShapeError(f"expected one coefficient a weight; {tuple(coefficients.shape)=}, {tuple(weights.shape)=}")
    return coefficients.abs() * get(parameterization, time=time).gradient_scale(weights)
