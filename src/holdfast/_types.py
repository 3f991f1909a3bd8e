"""Names for the kinds of values that recur in signatures."""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np
from torch import Tensor

Time = Literal["continuous", "discrete"]

# A number, numpy array or tensor; what comes in as one kind goes out as the same kind.
Numeric = TypeVar("Numeric", float, np.ndarray, Tensor)
