"""What StableSSM proves of errors and gradients: bounds, and the gradient scale of a parameterization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Numeric, Time
from holdfast.errors import ArgumentError, ShapeError
from holdfast.parameterizations import AbstractParameterization, fit_constants, get
from holdfast.stability.perturbation._curve import as_radii
from holdfast.stability.perturbation._kernel_error import Sum, read_sum


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

    Returns:
        the bound at each radius, (radii,), in the units of E(0); it rises with the radius.

    Raises:
        ArgumentError: a centre below 0, radii that do not increase, or a sum without real rates above 0 and coefficients.
        UnknownNameError: an unknown parameterization.

    Example:
        >>> from holdfast.approximate import ExponentialSum
        >>> from holdfast.stability import kernel_error_bound
        >>> found = ExponentialSum(rates=[0.1, 1.0], coefficients=[0.5, 0.5])
        >>> kernel_error_bound(found, [0.0, 0.1], centre=0.3).round(3).tolist()
        [0.3, 0.878]
    """
    if not centre >= 0:
        raise ArgumentError(f"centre must be E(0), a number >= 0, got {centre!r}")
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

    Returns:
        the bound for each weight, (modes,), in units of the loss per unit of the weight; inf where the mode is not stable.

    Raises:
        ShapeError: coefficients and weights of different shapes.
        UnknownNameError: an unknown parameterization.

    Example:
        >>> import torch
        >>> from holdfast.stability import gradient_bound
        >>> c, w = torch.tensor([1.0, 2.0]), torch.tensor([0.0, -2.0])
        >>> gradient_bound(c, w, parameterization="exp").round(decimals=2).tolist()  # |c| e^-w
        [1.0, 14.78]
    """
    if coefficients.shape != weights.shape:
        raise ShapeError(
            f"expected one coefficient per weight, got coefficients of shape {tuple(coefficients.shape)} and weights of shape "
            f"{tuple(weights.shape)}"
        )
    return coefficients.abs() * get(parameterization, time=time).gradient_scale(weights)


@checked
def gradient_scale(
    parameterization: str | AbstractParameterization,
    w: Numeric,
    *,
    time: Time | None = None,
    form: Literal["corrected", "printed"] = "corrected",
    **constants: float,
) -> Numeric:
    """G_f(w) = |f'(w)| / f(w)^2 in continuous time, |f'(w)| / (1 - |f(w)|)^2 in discrete time.

    StableSSM, Thm 3.4 and Table 1: the gradient of the loss with respect to w is bounded by a constant times G_f(w).

    Args:
        parameterization: f, by name or as an object.
        w: free weights: a number, a list, a numpy array or a tensor. All but tensors are computed in float64; a number
            comes back as a number, a list as an array.
        time: "continuous" or "discrete"; None is that of an object, and "continuous" for a name.
        form: "corrected" is the formula above; "printed" has the paper's (1 - f)^2 in discrete time.
        constants: of the parameterization, by name, such as a and b.

    Returns:
        G_f(w), of the kind and shape of `w`; inf where the recurrence is not stable.

    Raises:
        UnknownNameError: an unknown parameterization or constant.

    Example:
        >>> import holdfast
        >>> holdfast.gradient_scale("exp", [0.0, -2.0]).round(3)  # slow modes have large gradients
        array([1.   , 7.389])
    """
    if isinstance(parameterization, AbstractParameterization) and time is None:
        time = parameterization.time
    f = get(parameterization, time=time or "continuous", **constants)
    if isinstance(w, Tensor):
        return f.gradient_scale(w, form=form)
    try:
        if w is None:  # which numpy would take for NaN
            raise TypeError("no numbers")
        numbers = torch.as_tensor(np.asarray(w, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"w must be numbers (a float, an array or a tensor), got {w!r}") from error
    scale = f.gradient_scale(numbers, form=form)
    if isinstance(w, np.ndarray) or scale.ndim:
        return scale.numpy()  # type: ignore[return-value]  # a list is not among what the annotation promises
    return float(scale)
