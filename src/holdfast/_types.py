"""Names for the kinds of values that recur in signatures, and which tensors hold numbers."""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Time = Literal["continuous", "discrete"]

# A number, numpy array or tensor; what comes in as one kind goes out as the same kind.
Numeric = TypeVar("Numeric", float, np.ndarray, Tensor)


def holds_numbers(x: Tensor) -> bool:
    """Whether values of x can be read: not on the meta device, not fake, not a wrapper around other tensors."""
    return not (x.is_meta or is_fake(x) or is_traceable_wrapper_subclass(x))
