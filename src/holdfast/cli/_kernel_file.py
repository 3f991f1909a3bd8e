"""A kernel rho(t) from a CSV or NPY file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from holdfast.errors import ArgumentError


def read_kernel(path: Path, dt: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Times and values from a CSV (comma, semicolon, tab or space; a header line is skipped) or an NPY file."""
    if not os.path.isfile(path):
        raise ArgumentError(f"there is no file {path}")
    table = _read_npy(path) if path.suffix.lower() == ".npy" else read_csv(path)
    if table.ndim == 2 and table.shape[1] == 1:
        table = table[:, 0]
    if table.ndim == 1:
        return np.arange(len(table)) * (1.0 if dt is None else dt), table
    if table.ndim != 2 or table.shape[1] != 2:
        raise ArgumentError(f"{path} must hold one column (rho) or two (t, rho); it holds an array of {table.shape}")
    if dt is not None:
        raise ArgumentError(f"{path} has a column of times; leave --dt out")
    return table[:, 0], table[:, 1]


def _read_npy(path: Path) -> np.ndarray:
    try:
        # mapped, so that a header which promises more than the file holds is refused and not believed
        table = np.load(path, allow_pickle=False, mmap_mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise ArgumentError(f"{path} is not a readable NPY file of numbers: {error}") from error
    if table.dtype.kind not in "fiu":
        raise ArgumentError(f"{path} must hold real numbers, it holds {table.dtype}")
    # np.stack([t, rho]) gives rows; a text has a line for each time
    rows = table.ndim == 2 and table.shape[0] == 2 and table.shape[1] > 2
    return (table.T if rows else table).astype(np.float64)


def read_csv(path: Path) -> np.ndarray:
    """The numbers of a text, a row for each line; a first line of names is skipped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is neither text (CSV) nor named .npy") from error
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror}") from error
    rows: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.replace(";", " ").replace(",", " ").split()
        if not fields or fields[0].startswith("#"):
            continue
        try:
            rows.append([float(field) for field in fields])
        except ValueError as error:
            if rows or number > 1:
                raise ArgumentError(f"{path}, line {number}: {line[:60]!r} is not numbers") from error
    if not rows:
        raise ArgumentError(f"{path} holds no numbers")
    if len({len(row) for row in rows}) > 1:
        raise ArgumentError(f"{path}: lines have different numbers of columns")
    return np.array(rows)
