"""Free weights of a state dict that mean something else here: read by the form that was saved, written by the present one."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.errors import ArgumentError, HoldfastError, RangeError
from holdfast.parameterizations._base import AbstractParameterization, Named, decoded
from holdfast.parameterizations._euler import EulerContraction
from holdfast.parameterizations._fitting import fit_constants
from holdfast.parameterizations._matrix import AbstractMatrixParameterization
from holdfast.parameterizations._normal import Normal

ROUNDINGS = 64  # by which an eigenvalue may move on its way through a free weight, in units of its dtype's eps


class Bounded(Named):
    """f(w) = min(max(w, low), high), for logarithms of step sizes and frequencies of other libraries' layers.

    Args:
        low: the lower end.
        high: the upper end.
    """

    key = "bounded"
    time: Time = "continuous"

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = float(low), float(high)
        if not self.low < self.high:
            raise ArgumentError(f"expected low < high, got low={low!r}, high={high!r}")

    def forward(self, w: Tensor) -> Tensor:
        """The value inside the interval."""
        return w.clamp(self.low, self.high)

    def right_inverse(self, value: Tensor) -> Tensor:
        """The value itself; refuses one outside."""
        if not bool(((value >= self.low) & (value <= self.high)).all()):
            raise RangeError(
                f"expected values in [{self.low:.6g}, {self.high:.6g}], got {value.flatten()[:8].tolist()}"
            )
        return value


Form = AbstractParameterization | AbstractMatrixParameterization | Bounded


def other_form(state: Mapping[str, Tensor], prefix: str, here: Form) -> Form | None:
    """The form that `state` was saved with under `prefix`, where it is not that of `here`; None where it is, or is absent."""
    extra = state.get(f"{prefix}_extra_state")
    if extra is None:
        return None
    saved = decoded(extra)
    inner = getattr(here, "scalar", None)
    same = (saved.get("name"), saved.get("time")) == (here.key, here.time)
    if same and (inner is None or other_form(state, f"{prefix}scalar.", inner) is None):
        return None
    if saved.get("time") != here.time or saved.get("name") == "custom":
        return None  # `set_extra_state` of the present one refuses it by name
    return _built(state, prefix, saved)


def _built(state: Mapping[str, Tensor], prefix: str, saved: dict[str, Any]) -> Form:
    from holdfast.parameterizations import get, get_matrix, names

    name, time, constants = str(saved.get("name")), saved["time"], saved.get("constants")
    if not isinstance(constants, dict):
        raise ArgumentError(
            "the parameterization's constants in the state dict cannot be read, so the file was truncated; save it again "
            "with model.state_dict()"
        )
    # it holds another parameterization and a basis, which have entries of their own
    if name == Normal.key:
        scalar = _built(state, f"{prefix}scalar.", decoded(state[f"{prefix}scalar._extra_state"]))
        assert isinstance(scalar, AbstractParameterization)
        form = Normal(scalar)
        form.basis, form.signs = state[f"{prefix}basis"], state[f"{prefix}signs"]
        return form
    if name == EulerContraction.key:
        return EulerContraction(**constants)
    return get(name, time=time, **constants) if name in names(time) else get_matrix(name, time=time, **constants)


@torch.no_grad()
def held_by(form: Form, value: Tensor, path: str) -> tuple[Form, tuple[Tensor, ...]]:
    """The form, with constants that hold `value`, and free weights that make it, within rounding; else RangeError.

    Args:
        form: the present form, left as it is.
        value: eigenvalues or a matrix.
        path: what the value is called in the state dict, for the message.
    """
    # other constants only where the present ones do not hold the value: an optimizer has moments of the present free weight
    fitted = copy.deepcopy(form)  # the normal form keeps a basis of the matrix that it took over
    if isinstance(form, AbstractParameterization) and not bool(form.range.contains(value).all()):
        fitted = fit_constants(form, value)
    try:
        free = fitted.right_inverse(value)
    except HoldfastError as error:
        raise RangeError(
            f"{path} of the state dict cannot be represented in the {form.key} form of this model: {error}. Load it "
            "into a model that is not stabilized, then call stabilize(model, allow_change=True)"
        ) from error
    weights = free if isinstance(free, tuple) else (free,)
    apart, eps = relative_distance(fitted(*weights), value), torch.finfo(value.dtype).eps
    if not apart <= (math.sqrt(eps) if isinstance(fitted, AbstractMatrixParameterization) else ROUNDINGS * eps):
        raise RangeError(
            f"{path} of the state dict would change by {apart:.2g} of its size in the {form.key} form; load it into a model "
            "that is not stabilized, then call stabilize(model, allow_change=True)"
        )
    return fitted, weights


def relative_distance(after: Tensor, before: Tensor) -> float:
    """Relative, in spectral norm for a matrix, by the largest entry for eigenvalues."""
    moved, size = (after - before).double(), before.double()
    if moved.numel() == 0:
        return 0.0
    matrix = moved.ndim == 2 and moved.shape[0] == moved.shape[1]
    far, whole = (float(torch.linalg.matrix_norm(x, 2) if matrix else x.abs().max()) for x in (moved, size))
    return far / whole if whole > 0 else far


def in_sequence(state: Mapping[str, Tensor], prefix: str) -> Sequence[Tensor]:
    """state[prefix + "0"], state[prefix + "1"], ... as far as they go."""
    values: list[Tensor] = []
    while f"{prefix}{len(values)}" in state:
        values.append(state[f"{prefix}{len(values)}"])
    return values
