"""The gradient scale G_f of a parameterization, by name."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Numeric, Time
from holdfast.errors import ArgumentError
from holdfast.parameterizations import AbstractParameterization, get


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
        raise ArgumentError(f"w must be numbers (a float, an array or a tensor), came {w!r}") from error
    scale = f.gradient_scale(numbers, form=form)
    if isinstance(w, np.ndarray) or scale.ndim:
        return scale.numpy()  # type: ignore[return-value]  # a list is not among what the annotation promises
    return float(scale)
