"""The arguments of a layer's `forward` and `step`, checked and brought into the form that the layer computes with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from holdfast._types import Time
from holdfast.errors import ArgumentError, DtypeError, ShapeError
from holdfast.kernels._common import checks
from holdfast.nn._precision import state_dtype

Lengths = Int[Tensor, " batch"] | Sequence[int] | np.ndarray
# under which modules of torch and of other libraries tell how many features they read
_SIZE_ATTRIBUTES = ("input_size", "in_features", "features", "d_model", "in_channels")
StepSize = float | Float[Tensor, " time"] | Float[Tensor, "batch time"]


def check_input(name: str, x: Tensor, dims: tuple[str, ...], features: int, weight: Tensor) -> None:
    """Refuses inputs of another shape, dtype or device than the layer `name` with this weight takes."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.is_nested or x.layout is not torch.strided:
        raise DtypeError(f"{name}: expected x to be a dense real floating-point tensor, got {checks.describe(x)}")
    # inside a mode both are fake; one alone would fail deep in a kernel, by an address that is none
    if not torch.compiler.is_compiling() and is_fake(x) and not is_fake(weight):
        raise ArgumentError(
            f"{name}: x is a fake tensor and the weights are not; build the layer under the same FakeTensorMode"
        )
    if x.ndim != len(dims) or x.shape[-1] != features:
        wanted = ", ".join((*dims[:-1], str(features)))
        raise ShapeError(f"{name}: expected x of shape ({wanted}), got {tuple(x.shape)}")
    # half-precision inputs of float32 weights are welcome: both are computed in float32
    if x.dtype is not weight.dtype and state_dtype(x.dtype) != state_dtype(weight.dtype):
        raise DtypeError(
            f"{name}: x is {x.dtype} and the weights are {weight.dtype}; convert one: x.to(...) or layer.to(...)"
        )
    if x.device != weight.device:
        raise ArgumentError(f"{name}: x is on {x.device} and the weights are on {weight.device}; move x or the layer")


def check_state(name: str, x: Tensor, state: Tensor, expected: tuple[int, ...]) -> None:
    """Refuses a state of another shape or dtype than the inputs need."""
    if not isinstance(state, Tensor) or state.is_nested or tuple(state.shape) != expected:
        got = checks.describe(state)
        raise ShapeError(f"{name}: expected a state of shape {expected} for x of {tuple(x.shape)}, got {got}")
    if state.dtype != state_dtype(x.dtype):
        wanted = state_dtype(x.dtype)
        raise DtypeError(f"{name}: expected a state in {wanted} for x in {x.dtype}, got {state.dtype}")


def as_step_size(name: str, x: Tensor, dt: StepSize | None, time: Time) -> Tensor | float | None:
    """A float, or a tensor of one step size for each element of x without its features."""
    if dt is None:
        return None
    if time != "continuous":
        raise ArgumentError(f"{name} runs in discrete time and has no step size; leave dt out")
    if isinstance(dt, Tensor):
        if (
            dt.is_nested
            or tuple(dt.shape) not in (tuple(x.shape[:-1]), tuple(x.shape[1:-1]))
            or not dt.is_floating_point()
        ):
            raise ShapeError(
                f"{name}: expected dt as a number or a real tensor of shape {tuple(x.shape[:-1])}, "
                f"got {checks.describe(dt)}"
            )
        # written so that NaN is refused, too; on a GPU values are not read, which would make the host wait
        if checks.at_hand(dt) and bool((~(dt >= 0)).any()):
            raise ArgumentError(f"{name}: expected step sizes dt >= 0, got a smallest of {float(dt.min())}")
        return dt.to(state_dtype(x.dtype)).expand(x.shape[:-1])
    # True is a number to Python, and a mistake here
    if not isinstance(dt, Real) or isinstance(dt, bool) or not 0 <= dt < math.inf:
        raise ArgumentError(f"{name}: expected dt as a finite number >= 0 or a tensor, got {checks.describe(dt)}")
    return float(dt)


def as_lengths(lengths: Lengths | None, like: Tensor) -> Tensor | None:
    """Lengths in int64, where they were given as whole numbers of any kind; anything else is left to the checks."""
    if isinstance(lengths, Tensor):
        return lengths.long() if lengths.dtype in (torch.int32, torch.int16, torch.int8, torch.uint8) else lengths
    if isinstance(lengths, np.ndarray) and lengths.dtype.kind in "iu":
        return torch.from_numpy(lengths.astype(np.int64)).to(like.device)
    if not isinstance(lengths, (list, tuple)):
        return lengths  # type: ignore[return-value]
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in lengths):
        raise ArgumentError(f"lengths must be whole numbers, one for each sequence, got {checks.describe(lengths)}")
    return torch.tensor([int(n) for n in lengths], dtype=torch.int64, device=like.device)


def backwards(x: Tensor, lengths: Tensor | None) -> Tensor:
    """For each row its steps from the last to the first, (batch, time); those after its end stay where they are."""
    steps = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    if lengths is None:
        return x.shape[1] - 1 - steps
    ends = lengths.unsqueeze(-1)
    return torch.where(steps < ends, ends - 1 - steps, steps)


def taken(x: Tensor, order: Tensor) -> Tensor:
    """The steps of x, (batch, time, features), in another order."""
    return x.gather(1, order.unsqueeze(-1).expand(x.shape))


def known_size(model: Any) -> int | None:
    """The number of input features that a model tells by itself, under one of the usual names."""
    for name in _SIZE_ATTRIBUTES:
        value = getattr(model, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def first_known_size(model: nn.Module) -> int | None:
    """`known_size` of the model, or of the first of its modules that tells one."""
    return next((size for module in model.modules() if (size := known_size(module))), None)
