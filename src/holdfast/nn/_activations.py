"""The elementwise functions that layers apply, by name, and how steep each gets."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from holdfast.kernels.rnn import ACTIVATIONS as KERNEL_ACTIVATIONS

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **KERNEL_ACTIVATIONS,
    "identity": KERNEL_ACTIVATIONS["linear"],
    "gelu": functional.gelu,
}

# the largest slope of each; gelu's is at x = sqrt 2
MAX_SLOPES = {**dict.fromkeys(ACTIVATIONS, 1.0), "sigmoid": 0.25, "gelu": 1.1289042}
