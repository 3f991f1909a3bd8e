"""Series from a table with time stamps, gaps, several series and covariates: cut at the gaps, nothing is made up."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.data._files import read_text
from holdfast.data._stamps import grid_step, on_grid, read_stamps
from holdfast.errors import ArgumentError, DamagedResultError, unknown_name

MISSING = {"", "nan", "na", "n/a", "null", "none", "-"}


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of one series, a step apart, without a gap.

    Args:
        series: its name.
        first: steps from the first stamp of the table to its first row.
        values: its columns.
        real: which rows stood in the table; the others were filled.
    """

    series: str
    first: int
    values: Float64[np.ndarray, "steps columns"]
    real: Bool[np.ndarray, " steps"]

    def part(self, start: int, end: int) -> Piece:
        """What lies between two steps after the first stamp of the table."""
        cut = slice(max(start - self.first, 0), max(end - self.first, 0))
        return Piece(self.series, max(self.first, start), self.values[cut], self.real[cut])


@dataclass(frozen=True, eq=False)
class Series:
    """Inputs and targets of every piece of a table, as `holdfast.study_task` takes them.

    Args:
        x: inputs at each step (pieces, time, inputs), zeros past the end of a piece: `columns`, then `future`.
        y: targets `horizon` steps later (pieces, time, targets).
        lengths: steps of each piece.
        mask: (pieces, time): where a piece has a target that stood in the table.
        names: the series that each piece is of.
        columns: names of the inputs.
        targets: names of the targets.
    """

    x: Float32[Tensor, "pieces time inputs"]
    y: Float32[Tensor, "pieces time targets"]
    lengths: Int64[Tensor, " pieces"]
    mask: Bool[Tensor, "pieces time"]
    names: tuple[str, ...]
    columns: tuple[str, ...]
    targets: tuple[str, ...]

    @checked
    def windows(self, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (windows, length, ...) of the pieces cut into windows that share no step, as `diagnose` takes.

        Args:
            length: steps of a window; shorter pieces, and windows in which a target is missing, are left out.
        """
        positive(length=length)
        rows = [
            (self.x[i, start : start + length], self.y[i, start : start + length])
            for i, steps in enumerate(self.lengths.tolist())
            for start in range(0, steps - length + 1, length)
            if bool(self.mask[i, start : start + length].all())
        ]
        if not rows:
            longest = int(self.lengths.max())
            raise ArgumentError(
                f"length must be at most {longest}, the steps of the longest piece without a gap, got {length}"
            )
        x, y = zip(*rows, strict=True)
        return torch.stack(x), torch.stack(y)


@checked
def read_series(
    source: Any,
    columns: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    *,
    time: str | None = None,
    series: str | None = None,
    future: Sequence[str] = (),
    horizon: int = 1,
    every: float | str | None = None,
    fill: int = 0,
    delimiter: str = ",",
) -> Series:
    """A table as sequences: one for each stretch of each series in which no step is missing.

    Args:
        source: a CSV file with a line of names, or a pandas DataFrame.
        columns: names of the columns that are given at each step; None: all that hold numbers, but `future`.
        targets: names of the columns to forecast; None: the same as `columns`.
        time: name of the column (or the index) of time stamps: numbers, or dates in ISO 8601; None: each row is a step.
        series: name of the column that says which series a row belongs to; None: there is one.
        future: names of the columns that are known ahead, such as a calendar: given with their value at the target's step.
        horizon: how many steps ahead the targets are.
        every: the step between two rows: a number (of seconds, for dates), or "15min", "1h", "1d", "month"; None: the most
            common one.
        fill: most missing steps that are filled by a straight line; filled targets are masked. A longer gap cuts.
        delimiter: what separates the cells of a line.

    Returns:
        a Series: inputs x (pieces, time, inputs) and targets y (pieces, time, targets) in the units of the table, with
        lengths, mask and names, as `holdfast.study_task` takes them.

    Raises:
        UnknownNameError: a name that is none of the columns.
        ArgumentError: a horizon as long as the longest piece, `every` without `time`, or a negative `fill`.
        DamagedResultError: a file that cannot be read, or a cell that is not a number.

    Example:
        >>> import pathlib, tempfile
        >>> from holdfast import data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "load.csv")
        ...     size = file.write_text(chr(10).join(["load", "1", "2", "4"]))
        ...     series = data.read_series(file)
        >>> series.x.flatten().tolist(), series.y.flatten().tolist()  # a value, and the next
        ([1.0, 2.0], [2.0, 4.0])
    """
    positive(horizon=horizon)
    names, pieces = read_pieces(
        source, columns, targets, time=time, series=series, future=future, every=every, fill=fill, delimiter=delimiter
    )
    given = tuple(columns or (name for name in names if name not in future))
    asked = tuple(targets or given)
    long = [piece for piece in pieces if len(piece.values) > horizon]
    if not long:
        raise ArgumentError(
            f"horizon must be below the length of the longest piece without a gap, got {horizon}; use a shorter horizon or "
            "a larger fill"
        )
    lengths = torch.tensor([len(piece.values) - horizon for piece in long])
    now, then, ask = ([names.index(name) for name in some] for some in (given, future, asked))
    x = torch.zeros(len(long), int(lengths.max()), len(now) + len(then))
    y, mask = torch.zeros(*x.shape[:2], len(ask)), torch.zeros(x.shape[:2], dtype=torch.bool)
    for i, (piece, steps) in enumerate(zip(long, lengths.tolist(), strict=True)):
        values = torch.from_numpy(piece.values).float()
        x[i, :steps] = torch.cat((values[:-horizon, now], values[horizon:, then]), 1)
        y[i, :steps], mask[i, :steps] = values[horizon:, ask], torch.from_numpy(piece.real[horizon:])
    return Series(x, y, lengths, mask, tuple(piece.series for piece in long), (*given, *future), asked)


def read_pieces(
    source: Any, columns: Sequence[str] | None, targets: Sequence[str] | None, *, time: str | None, series: str | None,
    future: Sequence[str], every: float | str | None, fill: int, delimiter: str,
) -> tuple[list[str], list[Piece]]:  # fmt: skip
    """Names of the columns and the pieces of a table; the arguments are those of `read_series`."""
    if fill < 0:
        raise ArgumentError(f"fill must be a number of steps >= 0, got {fill}")
    if every is not None and time is None:
        raise ArgumentError("every needs a column of time stamps; pass its name as time=")
    cells, where = _read_table(source, delimiter)
    for name in (time, series, *(columns or ()), *(targets or ()), *future):
        if name is not None and name not in cells:
            raise unknown_name(f"column of {where}", name, cells)
    usual = [name for name in cells if name not in (time, series, *future)]
    names = [*dict.fromkeys([*(columns or usual), *(targets or ()), *future])]
    values = np.stack([_numbers(cells[name], f"{where}, column {name!r}") for name in names], 1)
    labels = np.array(["" if series is None else str(label) for label in cells[series or names[0]]])
    rows_of = {str(label): np.flatnonzero(labels == label) for label in dict.fromkeys(labels.tolist())}
    stamps, dates = (None, False) if time is None else read_stamps(cells[time], f"{where}, column {time!r}")
    if stamps is not None:
        rows_of = {label: rows[np.argsort(stamps[rows], kind="stable")] for label, rows in rows_of.items()}
        step = grid_step([stamps[rows] for rows in rows_of.values()], dates, every)
    pieces: list[Piece] = []
    for label, rows in rows_of.items():
        places = np.arange(len(rows))
        if stamps is not None:
            about = where if series is None else f"{where}, series {label!r}"
            places = on_grid(stamps[rows], float(stamps.min()), step, about)
        pieces += _cut_at_gaps(label, places, values[rows], fill)
    if not pieces:
        raise DamagedResultError(
            f"{where}: expected rows with a value in each of {', '.join(names)}, got none; choose other columns"
        )
    return names, pieces


def _cut_at_gaps(label: str, places: np.ndarray, values: np.ndarray, fill: int) -> list[Piece]:
    """Pieces of one series; a row in which a value is missing counts as missing."""
    there = np.isfinite(values).all(1)
    places, values = places[there], values[there]
    if not len(places):
        return []
    missing = np.diff(places) - 1
    pieces = []
    for chosen in np.split(np.arange(len(places)), np.flatnonzero(missing > fill) + 1):
        own = places[chosen]
        steps = np.arange(own[0], own[-1] + 1)
        filled = np.stack([np.interp(steps, own, column) for column in values[chosen].T], 1)
        pieces.append(Piece(label, int(own[0]), filled, np.isin(steps, own)))
    return pieces


def _numbers(cells: Any, where: str) -> Float64[np.ndarray, " rows"]:
    """Numbers, NaN where a cell is missing; refuses any other text."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
        values = cells.astype(np.float64)
        return np.where(np.isfinite(values), values, np.nan)
    values = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        text = "" if cell is None else str(cell).strip()
        if text.lower() in MISSING or text == "<NA>":
            continue
        try:
            values[i] = float(text)
        except ValueError:
            raise DamagedResultError(
                f"{where}, row {i}: expected a number or an empty cell, got {text!r:.60}; pass the names of the columns to "
                "read, with time stamps as time= and names of series as series="
            ) from None
    values[~np.isfinite(values)] = np.nan
    return values


def _read_table(source: Any, delimiter: str) -> tuple[dict[str, Any], str]:
    """The cells of each column by name, and what to call the table."""
    if hasattr(source, "columns") and hasattr(source, "to_numpy"):
        frame = source.reset_index() if any(name is not None for name in source.index.names) else source
        return {str(name): frame[name].to_numpy() for name in frame.columns}, "the frame"
    if not isinstance(source, (str, Path)):
        raise ArgumentError(f"expected a CSV file or a pandas DataFrame, got {type(source).__name__}")
    content, _ = read_text(Path(source))
    name = Path(source).name
    try:
        rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter=delimiter)
        header, *lines = [line for line in rows if line]
    except (UnicodeDecodeError, csv.Error, ValueError, TypeError) as error:
        raise DamagedResultError(
            f"{name}: expected a CSV file with a line of column names and lines of values below it, got something else "
            f"({error})"
        ) from None
    header = [cell.strip() for cell in header]
    if len(set(header)) != len(header) or not lines:
        raise DamagedResultError(
            f"{name}: expected a line that names each column once and lines of values below it, got the names {header} "
            f"and {len(lines)} lines"
        )
    for number, line in enumerate(lines):
        if len(line) != len(header):
            raise DamagedResultError(f"{name}: expected {len(header)} cells in row {number}, got {len(line)}")
    return {column: [line[i] for line in lines] for i, column in enumerate(header)}, name
