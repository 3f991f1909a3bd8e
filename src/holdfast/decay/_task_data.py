"""The data of a task as arrays: inputs (rows, time, features), targets, which of them are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from holdfast.errors import ArgumentError, ShapeError

MAX_KINDS = 64  # tokens or classes with a column of their own; the rarest share the last one
MAX_FACTORS = 8  # inputs up to which there are products: 36 of them


@dataclass(frozen=True, eq=False)
class TaskData:
    """Inputs and targets of sequences.

    Args:
        x: inputs (rows, time, features).
        y: targets (rows, time, outputs), or (rows, outputs) at the end of each sequence.
        lengths: steps of each sequence.
        asked: where targets count, (rows, time) or (rows,).
        classes: whether targets are classes, a column each.
        tokens: whether inputs were tokens, a column each.
        notes: what had to be left out.
    """

    x: Float64[np.ndarray, "rows time features"]
    y: Float64[np.ndarray, "rows *time outputs"]
    lengths: Int64[np.ndarray, " rows"]
    asked: Bool[np.ndarray, "rows ..."]
    classes: bool = False
    tokens: bool = False
    notes: tuple[str, ...] = ()

    @property
    def once(self) -> bool:
        """Whether a sequence has one answer, at its end."""
        return self.y.ndim == 2

    @property
    def can_multiply(self) -> bool:
        """Whether products of the inputs of a step say more than the inputs, and are few enough."""
        return not self.tokens and self.x.shape[2] <= MAX_FACTORS

    def with_products(self) -> TaskData:
        """The same with the products of any two inputs of a step as further inputs."""
        i, j = np.triu_indices(self.x.shape[2])
        return replace(self, x=np.concatenate([self.x, self.x[..., i] * self.x[..., j]], axis=2))


def read_data(inputs: Any, targets: Any, lengths: Any = None) -> TaskData:
    """Tensors, arrays or lists as `study_task` takes them; ArgumentError or ShapeError for anything else.

    Args:
        inputs: numbers (rows, time, features) or (rows, time), or tokens (rows, time), as integers.
        targets: numbers (rows, time, outputs), (rows, time) or (rows, outputs), or class labels as integers (rows, time)
            or (rows,).
        lengths: steps of each sequence; None: all.
    """
    x, y = _array(inputs, "x"), _array(targets, "y")
    if x.ndim not in (2, 3) or not len(x) or len(x) != len(y) or 0 in x.shape:
        raise ShapeError(
            f"x, y: expected inputs (rows, time, features), or tokens (rows, time), and as many targets, got {x.shape} and "
            f"{y.shape}"
        )
    steps = _lengths(lengths, *x.shape[:2])
    inside = np.arange(x.shape[1]) < steps[:, None]
    notes: list[str] = []
    tokens = x.ndim == 2 and x.dtype.kind in "iu"
    if tokens:
        x = _columns(x, inside, "tokens", notes)
    x = np.where(inside[..., None], x.reshape(*x.shape[:2], -1).astype(np.float64), 0.0)
    y, asked, classes = _targets(y, inside, notes)
    asked_y = y[asked]
    if not np.isfinite(x).all() or not np.isfinite(asked_y).all():
        raise ArgumentError("x, y: expected finite numbers, got NaN or infinite ones; leave those rows out")
    return TaskData(x, np.where(asked[..., None], y, 0.0), steps, asked, classes, tokens, tuple(notes))


def _array(values: Any, name: str) -> np.ndarray:
    try:
        array = torch.as_tensor(values).detach().cpu()
        wide: Tensor = array if array.is_complex() else array.double() if array.is_floating_point() else array.long()
        plain: np.ndarray = wide.numpy()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ArgumentError(f"{name}: expected a tensor or an array of numbers, got {type(values).__name__}") from error
    if array.is_complex():
        raise ArgumentError(f"{name}: expected real numbers, got complex ones; stack real and imaginary parts")
    return plain


def _lengths(given: Any, rows: int, time: int) -> np.ndarray:
    if given is None:
        return np.full(rows, time)
    lengths = _array(given, "lengths")
    if lengths.shape != (rows,) or lengths.dtype.kind != "i" or lengths.min() < 1 or lengths.max() > time:
        raise ArgumentError(f"lengths: expected {rows} whole numbers from 1 to {time}, got {given!r:.80}")
    return lengths


def _targets(y: np.ndarray, inside: np.ndarray, notes: list[str]) -> tuple[np.ndarray, np.ndarray, bool]:
    """Targets with a column for each output or class, where they are asked for, and whether they are classes."""
    rows, time = inside.shape
    labels = y.dtype.kind in "iu" and (y.ndim == 1 or y.shape[1:] in ((1,), (time,), (time, 1)))
    if labels:
        y = y[..., 0] if y.shape[1:] in ((1,), (time, 1)) and y.shape != (rows, time) else y
        asked = (y >= 0) & (inside if y.ndim == 2 else True)
        return _columns(y, asked, "classes", notes), asked, True
    y = y.astype(np.float64)
    if y.ndim == 1:
        y = y[:, None]
    elif y.shape == (rows, time) and time > 1:
        y = y[..., None]
    if y.ndim == 3 and y.shape[1] == time:
        return y, inside, False
    if y.ndim != 2:
        raise ShapeError(f"y: expected (rows, {time} steps, outputs) or (rows, outputs), got {y.shape}")
    return y, np.ones(rows, bool), False


def _columns(values: np.ndarray, where: np.ndarray, what: str, notes: list[str]) -> np.ndarray:
    """A column of zeros and ones for each kind that there is; beyond 64 kinds the rarest share the last column."""
    kinds, counts = np.unique(values[where], return_counts=True)
    if not len(kinds):
        raise ArgumentError(f"there are no {what}: every one is below 0 or past the end of its sequence")
    if len(kinds) > MAX_KINDS:
        notes.append(f"of {len(kinds)} {what} the {MAX_KINDS - 1} most frequent are told apart")
        kinds = np.sort(kinds[np.argsort(-counts, kind="stable")[: MAX_KINDS - 1]])
    place = np.searchsorted(kinds, values).clip(max=len(kinds) - 1)
    rare = kinds[place] != values
    columns = np.zeros((*values.shape, len(kinds) + int(bool((rare & where).any()))))
    np.put_along_axis(columns, np.where(rare, columns.shape[-1] - 1, place)[..., None], 1.0, axis=-1)
    columns[~where] = 0.0
    return columns
