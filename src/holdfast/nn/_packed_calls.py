"""Sequences that stand one after another in a row of a transformers model: where each begins, for all that a mixer calls.

A mixer hands `seq_idx` or `cu_seq_lens_q` to some of its functions only: Mamba's own scan gets neither. They are noted when
its forward is called, for the functions that run inside.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from holdfast.errors import ArgumentError

_RESETS: ContextVar[Tensor | None] = ContextVar("resets", default=None)
# packed calls that run now, in any thread: torch.compile can read a number, and breaks its graph at a ContextVar
_running = 0
_LOCK = threading.Lock()
BOUNDS = ("cu_seqlens", "cu_seq_lens_q")  # names under which bounds of packed sequences come
UNPACKED = ("RecurrentGemmaRglru", "RwkvSelfAttention")  # by positions, or not at all


@contextmanager
def packed_call(x: Tensor, named: dict[str, Any]) -> Iterator[None]:
    """Notes where sequences begin in x (batch, time, features), by what else a mixer was called with."""
    token = _RESETS.set(first_steps(x, named))
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        _RESETS.reset(token)


def _count(change: int) -> None:
    global _running
    with _LOCK:
        _running += change


def present_resets(steps: int) -> Bool[Tensor, "batch time"] | None:
    """True at the first step of each sequence; of a call that continues from a cache, with its inputs in front, None."""
    resets = _RESETS.get() if _running else None
    return resets if resets is None or resets.shape[1] == steps else None


def first_steps(x: Tensor, named: dict[str, Any]) -> Bool[Tensor, "batch time"] | None:
    """Where sequences begin, from `seq_idx` (batch, time) or from bounds (sequences + 1,); None where neither is given."""
    index = named.get("seq_idx")
    bounds = next((named[name] for name in BOUNDS if named.get(name) is not None), None)
    if index is not None:
        if tuple(index.shape) != tuple(x.shape[:2]):
            raise ArgumentError(
                f"seq_idx: expected one number for each of {tuple(x.shape[:2])} steps, got {tuple(index.shape)}"
            )
        changes = index[:, 1:] != index[:, :-1]
        return (
            torch.cat((torch.zeros_like(changes[:, :1]), changes), 1)
            if changes.shape[1]
            else changes.new_zeros(index.shape)
        )
    if bounds is None:
        return None
    if x.shape[0] != 1 or int(bounds[-1]) != x.shape[1]:
        raise ArgumentError(
            f"cu_seq_lens: expected a batch of 1 and bounds from 0 to {x.shape[1]} (the time steps), got a batch of "
            f"{x.shape[0]} and bounds up to {int(bounds[-1])}"
        )
    marks = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    inner = bounds[(bounds > 0) & (bounds < x.shape[1])].to(device=x.device, dtype=torch.long)
    return marks.index_fill(1, inner, True)
