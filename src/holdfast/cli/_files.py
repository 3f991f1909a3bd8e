"""Numbers of the user's from files: a kernel rho(t) from CSV or NPY, inputs and targets of a task from NPZ or CSV."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast._codec import unpack_arrays
from holdfast.data import read_series
from holdfast.errors import ArgumentError

MAX_WINDOW, MIN_WINDOWS = 512, 8  # steps of a row that a series is cut into, and rows that there should be
NAMES = (("inputs", "targets"), ("x", "y"))


def read_kernel(path: Path, dt: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Times and values from a CSV (comma, semicolon, tab or space; a header line is skipped) or an NPY file."""
    if not os.path.isfile(path):
        raise ArgumentError(f"expected an existing file, got {path}; check the path")
    table = _read_columns(path) if path.suffix.lower() == ".npy" else read_csv(path)
    if table.ndim == 2 and table.shape[1] == 1:
        table = table[:, 0]
    if table.ndim == 1:
        return np.arange(len(table)) * (1.0 if dt is None else dt), table
    if table.ndim != 2 or table.shape[1] != 2:
        raise ArgumentError(f"{path} must hold one column (rho) or two (t, rho), got an array of shape {table.shape}")
    if dt is not None:
        raise ArgumentError(f"--dt is for files without times, and {path} has a column of times; leave --dt out")
    return table[:, 0], table[:, 1]


def _read_npy(path: Path) -> np.ndarray:
    try:
        # mapped, so that a header which promises more than the file holds is refused, not trusted
        table = np.load(path, allow_pickle=False, mmap_mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise ArgumentError(f"{path} is not a readable NPY file of numbers: {error}") from error
    if table.dtype.kind not in "fiu":
        raise ArgumentError(f"{path} must hold real numbers, got {table.dtype}")
    return table


def _read_columns(path: Path) -> np.ndarray:
    table = _read_npy(path)
    # np.stack([t, rho]) gives rows; a text has a line for each time
    rows = table.ndim == 2 and table.shape[0] == 2 and table.shape[1] > 2
    return (table.T if rows else table).astype(np.float64)


def read_csv(path: Path) -> np.ndarray:
    """The numbers of a text, a row for each line; a first line of names is skipped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"expected CSV text or a file named .npy, got {path}, which is not UTF-8 text") from error
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror}") from error
    # not numpy.loadtxt, which expects one delimiter, named beforehand
    rows: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.replace(";", " ").replace(",", " ").split()
        if not fields or fields[0].startswith("#"):
            continue
        try:
            rows.append([float(field) for field in fields])
        except ValueError as error:
            if rows or number > 1:
                raise ArgumentError(f"{path}, line {number}: expected numbers, got {line[:60]!r}") from error
    if not rows:
        raise ArgumentError(f"{path} must hold lines of numbers, got none")
    if len({len(row) for row in rows}) > 1:
        counts = sorted({len(row) for row in rows})
        raise ArgumentError(
            f"{path}: expected the same number of columns in each line, got {', '.join(map(str, counts))}"
        )
    return np.array(rows)


def read_data(path: Path, columns: SeriesColumns | None = None) -> tuple[Tensor, Tensor]:
    """Inputs (rows, time, features) or tokens (rows, time), and targets (rows, time, outputs), (rows, outputs) or labels.

    An .npz holds arrays `inputs` and `targets` (or x and y). A CSV has a line for each time: its last column is the
    target, the others are inputs. With columns that have a meaning it is read as `holdfast.data.read_series` does.
    """
    if not os.path.isfile(path):
        raise ArgumentError(f"expected an existing file, got {path}; check the path")
    if columns is not None and columns.named:
        return _from_series(path, columns)
    x, y = _from_npz(path) if path.suffix.lower() == ".npz" else _from_csv(path)
    for name, part in (("inputs", x), ("targets", y)):
        if part.dtype.kind not in "fiu" or not np.isfinite(part).all():
            raise ArgumentError(
                f"{path}: {name} must be finite real numbers, got {part.dtype} of shape {part.shape}"
                + ("" if part.dtype.kind not in "fiu" else " with NaN or infinite ones; fill or remove them")
            )
    return _tensor(x if x.ndim != 2 or x.dtype.kind in "iu" else x[..., None]), _tensor(y)


@dataclass(frozen=True)
class SeriesColumns:
    """What the columns of a CSV file mean.

    Args:
        time: name of that of time stamps.
        series: name of that of series.
        targets: names of those to forecast.
        future: names of those known ahead.
        ahead: how many steps ahead the targets are.
    """

    time: str | None = None
    series: str | None = None
    targets: tuple[str, ...] = ()
    future: tuple[str, ...] = ()
    ahead: int | None = None

    @property
    def named(self) -> bool:
        """Whether anything was said."""
        return any((self.time, self.series, self.targets, self.future, self.ahead))


def _from_series(path: Path, columns: SeriesColumns) -> tuple[Tensor, Tensor]:
    """Windows of the pieces without a gap; at least 8 of the longest piece, if it is alone."""
    if path.suffix.lower() in (".npz", ".npy"):
        raise ArgumentError(
            f"--time, --series, --target, --future and --ahead name columns of a CSV file, got {path}; leave them out"
        )
    found = read_series(
        path, None, columns.targets or None, time=columns.time, series=columns.series, future=columns.future,
        horizon=columns.ahead or 1,
    )  # fmt: skip
    longest = int(found.lengths.max())
    steps = int(found.lengths.sum())
    return found.windows(min(MAX_WINDOW, longest, max(steps // MIN_WINDOWS, 2)))


def read_inputs(path: Path) -> Tensor:
    """Inputs alone: an .npy, an .npz that holds `inputs` (or x), or a CSV of one series with a line for each time."""
    if not os.path.isfile(path):
        raise ArgumentError(f"expected an existing file, got {path}; check the path")
    kind = path.suffix.lower()
    x = _read_npy(path) if kind == ".npy" else _named_inputs(path) if kind == ".npz" else read_csv(path)[None]
    if x.dtype.kind not in "fiu" or x.ndim < 2 or not np.isfinite(x).all():
        raise ArgumentError(
            f"{path}: expected finite real numbers (rows, time, features) or tokens (rows, time), got {x.dtype} {x.shape}"
        )
    return _tensor(x if x.ndim != 2 or x.dtype.kind in "iu" else x[..., None])


def _named_inputs(path: Path) -> np.ndarray:
    arrays = _arrays(path)
    for name in (pair[0] for pair in NAMES):
        if name in arrays:
            return arrays[name]
    raise ArgumentError(f"{path} must hold an array 'inputs' (or 'x'), got {', '.join(arrays)}")


def _tensor(part: np.ndarray) -> Tensor:
    """Tokens and class labels stay whole numbers."""
    return torch.from_numpy(part.astype(np.int64 if part.dtype.kind in "iu" else np.float32))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        return unpack_arrays(path.read_bytes(), path)
    except (zipfile.BadZipFile, ValueError) as error:
        raise ArgumentError(f"{path} is not a readable .npz file of numbers: {error}") from error


def _from_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    arrays = _arrays(path)
    for pair in NAMES:
        if all(name in arrays for name in pair):
            x, y = (arrays[name] for name in pair)
            # a target of one number at each step, or at the end of each sequence; labels have no dimension of outputs
            return x, y if y.dtype.kind in "iu" or y.ndim > 2 or (y.ndim == 2 and y.shape[:2] != x.shape[:2]) else y[
                ..., None
            ]
    raise ArgumentError(f"{path} must hold arrays 'inputs' and 'targets' (or 'x' and 'y'), got {', '.join(arrays)}")


def _from_csv(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        table = read_csv(path)
    except ArgumentError as error:
        raise ArgumentError(
            f"{error}; if a column holds time stamps or names of series, name it with --time or --series"
        ) from error
    if table.shape[1] < 2:
        raise ArgumentError(
            f"{path} must have at least two columns, the inputs and then the target, got {table.shape[1]}"
        )
    return table[None, :, :-1], table[None, :, -1:]
