"""Memory of models that read tokens or are not causal: the score of an input repeated n times, differenced over n."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast._arguments import checked
from holdfast._readers import describe
from holdfast.errors import ArgumentError
from holdfast.memory._curve import CurveStatus, MemoryCurve, ModelError
from holdfast.memory.preserve import undisturbed

Item = str | int | Sequence[int] | Tensor


@checked
def repeated_input_memory(
    score: Callable[..., Any],
    item: Item,
    lengths: int | Iterable[int],
    *,
    norm: float = math.inf,
    separator: str = " ",
    batch_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> MemoryCurve:
    """Memory of a model that reads tokens or is not causal, from the score of one input repeated n times.

    The value at n is |score(n' copies) - score(n copies)| / (n' - n), for neighbouring lengths n < n' ("Inverse
    Approximation Theory", App. B, Fig. 5 and 6). For a causal recurrent model that reads out its last state this is the
    Heaviside memory of that item, without the division by its size.

    Args:
        score: takes the repeated input and returns a number or a vector. If it has an attribute `batched` that is true
            (as the adapters in `holdfast.memory.huggingface` have) it takes a list of inputs and returns one row for
            each.
        item: what is repeated: a text, a token id or several, a tensor of ids (time,), or of features (time, features).
        lengths: the largest number of copies, or all numbers in increasing order; the curve's times are the n.
        norm: order of the norm over several scores; inf takes the largest.
        separator: stands between the copies of a text.
        batch_size: inputs given to a batched `score` at a time.
        progress: called as `progress(done, total)`, counted in lengths.

    Returns:
        a MemoryCurve over the numbers of copies.

    Raises:
        ArgumentError: lengths that do not increase, or scores that are not numbers.

    Example:
        >>> import holdfast
        >>> curve = holdfast.repeated_input_memory(lambda ids: 1 - 0.5 ** len(ids), 7, 5)  # one token id, repeated
        >>> curve.values.tolist()
        [0.25, 0.125, 0.0625, 0.03125]
    """
    counts = _counts(lengths)
    batched = bool(getattr(score, "batched", False))
    size = batch_size if batched else 1
    rows: list[Tensor] = []
    with undisturbed(score), torch.no_grad():
        for start in range(0, len(counts), size):
            inputs = [repeat(item, n, separator) for n in counts[start : start + size]]
            rows += _scores(score, inputs, batched)
            # one batch twice: noise shows in any of them
            if start == 0:
                _check_repeatable(_scores(score, inputs, batched), rows)
            if progress is not None:
                progress(min(start + size, len(counts)), len(counts))
    return _curve(torch.stack(rows), counts, norm)


def repeat(item: Item, copies: int, separator: str = " ") -> Any:
    """`item` repeated: text joined by `separator`, ids as one list, tensors along their first dimension."""
    if isinstance(item, str):
        return separator.join([item] * copies)
    if isinstance(item, Tensor):
        return item.repeat(copies, *[1] * (item.ndim - 1)) if item.ndim else item.repeat(copies)
    if isinstance(item, int):
        return [item] * copies
    return list(item) * copies


def _counts(lengths: int | Iterable[int]) -> list[int]:
    counts = list(range(1, lengths + 1)) if isinstance(lengths, int) else [int(n) for n in lengths]
    if len(counts) < 2 or counts[0] < 0 or any(b <= a for a, b in itertools.pairwise(counts)):
        raise ArgumentError(f"lengths must be a number >= 2, or at least two increasing numbers, got {counts[:5]}")
    return counts


def _scores(score: Callable[..., Any], inputs: list[Any], batched: bool) -> list[Tensor]:
    try:
        out = score(inputs) if batched else score(inputs[0])
    except TypeError as error:
        kind = "a list of inputs" if batched else f"an input ({type(inputs[0]).__name__})"
        raise ArgumentError(f"score must be a function of {kind}, got one that fails on it: {error}") from error
    try:
        value = torch.as_tensor(out).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"score must return numbers for an input, got {describe(out)}") from error
    rows = value.reshape(len(inputs), -1) if batched else value.reshape(1, -1)
    return list(rows)


def _check_repeatable(again: list[Tensor], rows: list[Tensor]) -> None:
    first, second = torch.stack(rows), torch.stack(again)
    if bool(torch.isfinite(first).all()) and not torch.allclose(first, second, rtol=1e-4, atol=1e-12):
        raise ModelError(
            f"expected equal scores for the same input, got scores that differ by {float((first - second).abs().max()):.3g}; "
            "switch dropout and noise off (model.eval())"
        )


def _curve(scores: Tensor, counts: list[int], norm: float) -> MemoryCurve:
    # lengths may skip: differences are per copy
    gaps = torch.diff(torch.tensor(counts, dtype=torch.float64))
    values = torch.linalg.vector_norm(torch.diff(scores, dim=0), norm, dim=-1) / gaps
    # NaN would pass every comparison unseen
    values = torch.nan_to_num(values, nan=math.inf, posinf=math.inf)
    status: CurveStatus = "ok" if bool(torch.isfinite(values).all()) else "not finite"
    notes = () if status == "ok" else ("some scores are NaN or infinite; there the curve is inf",)
    # scores come from float32 models as a rule
    floor = 4 * torch.finfo(torch.float32).eps * float(torch.nan_to_num(scores).abs().max())
    return MemoryCurve(
        time=np.asarray(counts[:-1], dtype=np.float64),
        values=values.numpy(),
        probe="repeated",
        norm=norm,
        floor=np.full(len(values), floor),
        status=status,
        notes=notes,
    )
