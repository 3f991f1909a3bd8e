"""Names for the kinds of values and shapes that recur in signatures."""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

Time = Literal["continuous", "discrete"]

# A number, numpy array or tensor; what comes in as one kind goes out as the same kind.
Numeric = TypeVar("Numeric", float, np.ndarray, Tensor)

Sequence = Float[Tensor, "batch time features"]
State = Float[Tensor, "batch ..."]
Lengths = Int[Tensor, " batch"]
Mask = Bool[Tensor, "batch time"]
SquareMatrix = Float[Tensor, "n n"]
Eigenvalues = Float[Tensor, "..."] | Complex[Tensor, "..."]
