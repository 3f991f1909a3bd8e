"""The rows of the regression: the last inputs before each answer, which rows are held out, which belong together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from holdfast.decay._task_data import TaskData
from holdfast.errors import ArgumentError

MAX_LAGS = 1024  # steps back that a kernel has unless more are asked for
MAX_SIDE = 1600  # rows or columns, the fewer of both: the side of the matrix that is decomposed, 20 MB
MAX_COLUMNS = 8192  # where answers are few
MAX_NUMBERS = 5_000_000  # in the matrix of rows, 40 MB; answers beyond are sampled evenly
HELD_OUT = 0.25  # share of the sequences, or of the time of fewer than 4, on which kernels are judged
MIN_SEQUENCES = 4  # from which on some are held out; of fewer, the last part of their time is
BLOCKS = 48  # of rows that belong together: sequences, or parts of their time


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
    """Numbers from 0 on, of at most 48 blocks: neighbouring sequences, or parts of their time where those are few."""
    rows, place = np.unique(row, return_inverse=True)
    if once or len(rows) >= BLOCKS // 2:
        return place * min(BLOCKS, len(rows)) // max(len(rows), 1)
    parts = max(1, min(BLOCKS // max(len(rows), 1), len(row) // (8 * max(len(rows), 1))))
    first, last = (int(step.min()), int(step.max()) + 1) if len(step) else (0, 1)
    return place * parts + (step - first) * parts // (last - first)
