"""Whether a model can be measured in float64, and the words for it where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.memory.preserve import undisturbed
from holdfast.memory.subject import MISTAKES, Layout, Subject

MAX_COPIED_WEIGHTS = 100_000_000  # weights of which a float64 copy is made without being asked: 0.8 GB
TRIAL_STEPS = 8  # steps that the copy is tried on
ROUNDS_INSIDE = (
    "the model rounds to float32 inside (transformers' models compute norms and logits so): its rounding floor is that of "
    "float32, whatever the dtype of its weights"
)


def widest(model: Callable[..., Any], input_size: int, layout: Layout = "batch_first") -> tuple[bool, str | None]:
    """Whether to measure a float64 copy, and why not where the model stays in a narrower dtype.

    Args:
        model: as `memory_function` takes it.
        input_size: number of input features.
        layout: "batch_first" or "time_first".
    """
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    kinds = {p.dtype for p in weights if p.is_floating_point()}
    if not isinstance(model, nn.Module) or not kinds:
        return False, "measured in the function's own precision: it has no weights to widen (dtype= sets its inputs')"
    if kinds <= {torch.float64}:
        return False, None
    own = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    count = sum(p.numel() for p in model.parameters())
    if count > MAX_COPIED_WEIGHTS:
        copied = f"{count * 8 / 1e9:.1f} GB"
        return (
            False,
            f"measured in {own}: a float64 copy would take {copied}; memory_function(..., double=True) makes it",
        )
    try:
        with undisturbed(model, evaluate=True), torch.no_grad():
            subject = Subject(model, input_size, layout=layout, double=True)
            subject.raw(subject.zeros(1, TRIAL_STEPS))
    except (HoldfastError, *MISTAKES) as error:
        cause = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        return False, f"measured in {own}: a float64 copy does not run ({cause[0][:120]})"
    return True, None
