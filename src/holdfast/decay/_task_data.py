"""The data of a task as arrays, and as the rows of a regression.

`read_data` gives inputs (rows, time, features), targets and which of them are asked for; `make_rows` the last inputs before
each answer, which rows are held out and which belong together.
"""

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
MAX_LAGS = 1024  # steps back that a kernel has unless more are asked for
MAX_SIDE = 1600  # rows or columns, the fewer of both: the side of the matrix that is decomposed, 20 MB
MAX_COLUMNS = 8192  # where answers are few
MAX_NUMBERS = 5_000_000  # in the matrix of rows, 40 MB; answers beyond are sampled evenly
HELD_OUT = 0.25  # share of the sequences, or of the time of fewer than 4, on which kernels are judged
MIN_SEQUENCES = 4  # from which on some are held out; of fewer, the last part of their time is
BLOCKS = 48  # of rows that belong together: sequences, or parts of their time


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


def read_data(inputs: Any, targets: Any, lengths: Any = None, mask: Any = None) -> TaskData:
    """Tensors, arrays or lists as `study_task` takes them; ArgumentError or ShapeError for anything else.

    Args:
        inputs: numbers (rows, time, features) or (rows, time), or tokens (rows, time), as integers.
        targets: numbers (rows, time, outputs), (rows, time) or (rows, outputs), or class labels as integers (rows, time)
            or (rows,).
        lengths: steps of each sequence; None: all.
        mask: where targets count, (rows, time), or (rows,) at the end of each sequence; None: everywhere.
    """
    x, y = _array(inputs, "x"), _array(targets, "y")
    if x.ndim not in (2, 3) or not len(x) or len(x) != len(y) or 0 in x.shape:
        raise ShapeError(
            f"x, y: expected inputs (rows, time, features), or tokens (rows, time), and one target for each row, got {x.shape} "
            f"and {y.shape}"
        )
    steps = _lengths(lengths, *x.shape[:2])
    inside = np.arange(x.shape[1]) < steps[:, None]
    notes: list[str] = []
    tokens = x.ndim == 2 and x.dtype.kind in "iu"
    if tokens:
        x = _columns(x, inside, "tokens", notes)
    x = np.where(inside[..., None], x.reshape(*x.shape[:2], -1).astype(np.float64), 0.0)
    y, asked, classes = _targets(y, inside, notes)
    if mask is not None:
        asked = asked & _mask(mask, asked.shape)
    asked_y = y[asked]
    if not np.isfinite(x).all() or not np.isfinite(asked_y).all():
        raise ArgumentError("x, y: expected finite numbers, got NaN or infinity; leave those rows out")
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


def _mask(given: Any, shape: tuple[int, ...]) -> np.ndarray:
    mask = torch.as_tensor(given).detach().cpu()
    if mask.dtype != torch.bool or tuple(mask.shape) != shape:
        raise ShapeError(f"mask: expected bool of shape {shape}, got {mask.dtype} {tuple(mask.shape)}")
    return mask.numpy()


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
        raise ArgumentError(
            f"expected at least one of the {what}, got none: each is below 0 (ignored) or past the end of its sequence"
        )
    if len(kinds) > MAX_KINDS:
        notes.append(f"of {len(kinds)} {what} the {MAX_KINDS - 1} most frequent are distinguished")
        kinds = np.sort(kinds[np.argsort(-counts, kind="stable")[: MAX_KINDS - 1]])
    place = np.searchsorted(kinds, values).clip(max=len(kinds) - 1)
    rare = kinds[place] != values
    columns = np.zeros((*values.shape, len(kinds) + int(bool((rare & where).any()))))
    np.put_along_axis(columns, np.where(rare, columns.shape[-1] - 1, place)[..., None], 1.0, axis=-1)
    columns[~where] = 0.0
    return columns


@dataclass(frozen=True, eq=False)
class Rows:
    """What is regressed: a row (x_t, x_{t-1}, ..., x_{t-lags}) and its targets for each answer, the means taken off.

    Args:
        A: the inputs (answers, (lags + 1) features), those that are held out last.
        b: the targets (answers, outputs).
        mean: of the targets.
        blocks: the number of the block that each answer belongs to.
        fitted: how many are not held out.
        lags: steps back.
        complete: whether nothing lies before the first of the lags, since every sequence begins there.
        notes: what was left out.
    """

    A: Float64[np.ndarray, "answers columns"]
    b: Float64[np.ndarray, "answers outputs"]
    mean: Float64[np.ndarray, " outputs"]
    blocks: Int64[np.ndarray, " answers"]
    fitted: int
    lags: int
    complete: bool
    notes: tuple[str, ...] = ()

    @property
    def features(self) -> int:
        """Columns of one lag."""
        return self.A.shape[1] // (self.lags + 1)


def make_rows(data: TaskData, lags: int | None) -> Rows:
    """The rows of a task.

    Args:
        data: inputs and targets.
        lags: most steps back; None: all of a sequence with one answer, else half of its length (a quarter of fewer
            than 4), at most 1,024 and as many as 1,600 columns hold (8,192 where answers are as few).
    """
    chosen = choose_lags(data, lags)
    row, step = _answers(data, chosen)
    notes = list(data.notes)
    if lags is not None and chosen < lags:
        notes.append(f"{lags} lags were asked for, the data and the size of the regression leave {chosen}")
    columns = (chosen + 1) * data.x.shape[2]
    most = min(MAX_NUMBERS // columns, len(row) if columns <= MAX_SIDE else MAX_SIDE)
    if len(row) > most:
        notes.append(f"{most:,} of {len(row):,} answers were used, evenly spaced")
        kept = np.linspace(0, len(row) - 1, most).astype(np.int64)
        row, step = row[kept], step[kept]
    group = row if len(data.x) >= MIN_SEQUENCES else step
    held = group >= np.quantile(group, 1 - HELD_OUT) if len(group) else np.zeros(0, bool)
    order = np.argsort(held, kind="stable")
    row, step = row[order], step[order]
    A = _windows(data, chosen, row, step)
    b = data.y[row] if data.once else data.y[row, step]
    mean = b.mean(0) if len(b) else np.zeros(b.shape[1])
    A -= A.mean(0) if len(A) else 0.0
    complete = data.once and chosen >= int(data.lengths.max()) - 1
    blocks = _blocks(row, step, data.once)
    return Rows(A, b - mean, mean, blocks, int((~held).sum()), chosen, complete, tuple(notes))


def choose_lags(data: TaskData, lags: int | None) -> int:
    """How many steps back the kernel gets."""
    time, features = data.x.shape[1:]
    if time < 2:
        raise ArgumentError("x: expected sequences of at least 2 steps, got 1: there is nothing to remember")
    usual = int(np.median(data.lengths))
    share = 2 if len(data.x) >= MIN_SEQUENCES else 4
    length = int(data.lengths.max()) - 1 if data.once else usual // share
    answers = int(data.asked.sum()) if data.once else int((data.asked.sum(1) - length).clip(min=0).sum())
    columns = MAX_SIDE if answers > MAX_SIDE else MAX_COLUMNS
    return max(1, min(lags or MAX_LAGS, length, columns // features - 1))


def _answers(data: TaskData, lags: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and step of every answer that is asked for with so many inputs before it; at the end where there is one."""
    if data.once:
        row = np.flatnonzero(data.asked)
        return row, data.lengths[row] - 1
    row, step = np.nonzero(data.asked[:, lags:])
    return row, step + lags


def _windows(data: TaskData, lags: int, row: np.ndarray, step: np.ndarray) -> np.ndarray:
    """The inputs up to each step, the last one first; before a sequence begins, the mean input, which says nothing."""
    x = data.x
    if data.once and (step < lags).any():
        inside = np.arange(x.shape[1]) < data.lengths[:, None]
        before = np.broadcast_to(x[inside].mean(0), (len(x), lags, x.shape[2]))
        x, step = np.concatenate([before, x], axis=1), step + lags
    views = np.lib.stride_tricks.sliding_window_view(x, lags + 1, axis=1)  # (rows, starts, features, lags + 1)
    picked = views[row, step - lags][..., ::-1]
    return picked.swapaxes(-1, -2).reshape(len(row), (lags + 1) * x.shape[2])


def _blocks(row: np.ndarray, step: np.ndarray, once: bool) -> np.ndarray:
    """Numbers 0, 1, ... of at most 48 blocks: neighbouring sequences, or parts of their time where those are few."""
    rows, place = np.unique(row, return_inverse=True)
    if once or len(rows) >= BLOCKS // 2:
        return place * min(BLOCKS, len(rows)) // max(len(rows), 1)
    parts = max(1, min(BLOCKS // max(len(rows), 1), len(row) // (8 * max(len(rows), 1))))
    first, last = (int(step.min()), int(step.max()) + 1) if len(step) else (0, 1)
    return place * parts + (step - first) * parts // (last - first)
