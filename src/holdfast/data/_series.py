"""The user's own time series from a CSV file or a frame: forecast some columns some steps ahead."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.data._files import cut, read_text
from holdfast.data._table import Piece, read_pieces
from holdfast.errors import ArgumentError, DamagedResultError, unknown_name


class SeriesTask(AbstractTask):
    """Values of a series `horizon` steps ahead, at each step of a window: from x_1 ... x_t the model gives y_{t + horizon}.

    The file has one line of names and then one line of numbers for each time, oldest first. Its start trains, what follows
    validates and tests, and no window reaches from one split into another. Each window begins one step after the last.
    Columns are shifted and scaled to mean 0 and deviation 1 over the training part, for all splits alike, so that errors are
    shares of each column's deviation.

    With `time` lines have time stamps and may be in any order, and splits are cut at the same times in all series; with
    `series` there are several series, each cut at shares of its own steps where there are no stamps. Then a cell may be
    empty: no window reaches over a gap. See `holdfast.data.read_series`.

    Args:
        file: a CSV file, or a pandas DataFrame.
        columns: names of the columns that are given at each step; None: all columns but `time`, `series` and `future`.
        targets: names of the columns to forecast; None: the same as `columns`.
        window: steps of a window.
        horizon: how many steps ahead the targets are.
        valid: share of the series for validation; 0: none.
        test: share of the series for the test, at its end; 0: none.
        time: name of the column of time stamps, numbers or dates in ISO 8601; None: each line is a step.
        series: name of the column that says which series a line belongs to; None: there is one.
        future: names of the columns that are known ahead, given with their value at the target's step.
        every: the step between two lines: a number (of seconds, for dates), or "15min", "1h", "1d", "month"; None: the most
            common one.
        fill: most missing steps that are filled by a straight line; their targets do not count.
        delimiter: what separates numbers on a line.
    """

    @checked
    def __init__(
        self,
        file: Any,
        columns: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        *,
        window: int = 64,
        horizon: int = 1,
        valid: float = 0.15,
        test: float = 0.15,
        time: str | None = None,
        series: str | None = None,
        future: Sequence[str] = (),
        every: float | str | None = None,
        fill: int = 0,
        delimiter: str = ",",
    ) -> None:
        positive(window=window, horizon=horizon)
        own: dict[str, Any] = {"time": time, "series": series, "future": list(future), "every": every, "fill": fill}
        # what is not said is not in the identity either: results of plain files keep theirs
        self._options = {name: value for name, value in own.items() if value not in (None, 0, [])}
        names, pieces = _pieces(file, columns, targets, self._options, delimiter)
        self.columns = tuple(columns or (name for name in names if name not in future))
        self.targets, self.future = tuple(targets or self.columns), tuple(future)
        self._file = Path(file).name if isinstance(file, (str, Path)) else "frame"
        self._checksum = _checksum(file, pieces)
        parts = _split(pieces, valid, test, by_time=time is not None)
        train = torch.from_numpy(
            np.concatenate([part.values for part in parts["train"]] or [np.zeros((0, len(names)))])
        )
        self.window, self.horizon = window, horizon
        self._given = [names.index(name) for name in self.columns]
        self._ahead = [names.index(name) for name in self.future]
        self._asked = [names.index(name) for name in self.targets]
        # of training alone: the later splits are the future, which is unknown
        self.mean, self.deviation = train.mean(0), train.std(0, correction=0)
        self.deviation[self.deviation == 0] = 1.0  # a constant column becomes zeros
        self._windows = {split: self._cut(split, some) for split, some in parts.items()}
        self._pieces, self._fills = len(pieces), fill > 0
        inputs = Space("features", len(self.columns) + len(self.future))
        sizes: dict[Split, int | None] = {split: len(found.starts) for split, found in self._windows.items()}
        super().__init__("series", "regress", inputs, Space("features", len(self.targets)), window, sizes)

    def _cut(self, split: Split, pieces: list[Piece]) -> _Windows:
        length = self.window + self.horizon
        long = [piece for piece in pieces if len(piece.values) >= length]
        if not long:
            rows = max((len(piece.values) for piece in pieces), default=0)
            raise ArgumentError(
                f"{self._file}: expected at least window + horizon = {length} rows in the split {split!r}, got {rows}; choose "
                "a smaller window or a larger share"
            )
        values = torch.cat([torch.from_numpy(piece.values) for piece in long])
        ends = np.cumsum([len(piece.values) for piece in long])
        starts = [np.arange(end - len(p.values), end - length + 1) for p, end in zip(long, ends, strict=True)]
        real = torch.cat([torch.from_numpy(piece.real) for piece in long])
        return _Windows(((values - self.mean) / self.deviation).float(), torch.from_numpy(np.concatenate(starts)), real)

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        windows = self._windows[split]
        steps = windows.starts[indices][:, None] + torch.arange(self.window)
        later = steps + self.horizon
        inputs = windows.values[steps][..., self._given]
        if self._ahead:
            inputs = torch.cat((inputs, windows.values[later][..., self._ahead]), -1)
        mask = windows.real[later] if self._fills else None
        return Batch(inputs, windows.values[later][..., self._asked], mask=mask)

    def describe(self) -> str:
        sizes = ", ".join(f"{size:,} {split}" for split, size in self._sizes.items())
        pieces = f" of {self._pieces} pieces without a gap" if self._pieces > 1 else ""
        return (
            f"{self._file}: {', '.join(self.targets)} {self.horizon} ahead from {', '.join((*self.columns, *self.future))}, "
            f"windows of {self.window}{pieces}: {sizes}"
        )

    def identity(self) -> dict[str, Any]:
        return {
            "task": self.name, "sha256": self._checksum, "columns": list(self.columns), "targets": list(self.targets),
            "window": self.window, "horizon": self.horizon, "sizes": dict(self._sizes), **self._options,
        }  # fmt: skip


class _Windows(NamedTuple):
    """The rows of one split, scaled, where windows begin among them, and which rows stood in the file."""

    values: Float32[Tensor, "rows columns"]
    starts: Int64[Tensor, " windows"]
    real: Bool[Tensor, " rows"]


def _pieces(
    file: Any, columns: Sequence[str] | None, targets: Sequence[str] | None, options: dict[str, Any], delimiter: str
) -> tuple[list[str], list[Piece]]:
    if options or not isinstance(file, (str, Path)):
        given: dict[str, Any] = {"time": None, "series": None, "future": (), "every": None, "fill": 0, **options}
        return read_pieces(file, columns, targets, delimiter=delimiter, **given)
    names, values = _read(read_text(Path(file))[0], str(file), columns, targets, delimiter)
    return names, [Piece("", 0, values, np.ones(len(values), bool))]


def _checksum(file: Any, pieces: list[Piece]) -> str:
    if isinstance(file, (str, Path)):
        return read_text(Path(file))[1]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(f"{piece.series} {piece.first} {piece.values.shape}".encode())
        digest.update(np.ascontiguousarray(piece.values).data)
        digest.update(piece.real.tobytes())
    return digest.hexdigest()


def _split(pieces: list[Piece], valid: float, test: float, *, by_time: bool) -> dict[Split, list[Piece]]:
    """The pieces of each split: cut at the same times, or without stamps at shares of each series."""
    parts: dict[Split, list[Piece]] = {}
    groups = (
        [pieces] if by_time else [[p for p in pieces if p.series == name] for name in {p.series: 0 for p in pieces}]
    )
    for group in groups:
        first, last = min(p.first for p in group), max(p.first + len(p.values) for p in group)
        for split, steps in cut(torch.arange(first, last), valid, test).items():
            bounds = (int(steps[0]), int(steps[-1]) + 1) if len(steps) else (0, 0)
            cuts = [p.part(*bounds) for p in group]
            parts.setdefault(split, []).extend(p for p in cuts if len(p.values))
    return parts


def _read(
    content: bytes, file: str, columns: Sequence[str] | None, targets: Sequence[str] | None, delimiter: str
) -> tuple[list[str], np.ndarray]:
    """Names and values (rows, columns), in float64, of the columns that are used."""
    if len(delimiter) != 1 or delimiter in '"\n\r':
        raise ArgumentError(f"delimiter must be one character such as ',' or ';', got {delimiter!r}")
    try:
        lines = io.StringIO(content.decode("utf-8-sig"), newline=None)
    except UnicodeDecodeError as error:
        raise DamagedResultError(f"{file} is not UTF-8 text at byte {error.start:,}; save it as UTF-8") from None
    header = [name.strip() for name in next(csv.reader(lines, delimiter=delimiter), [])]
    if len(set(header)) != len(header):
        raise DamagedResultError(f"{file}: the first line must name each column once, got {', '.join(header)}")
    wanted = [*dict.fromkeys([*(columns or header), *(targets or ())])]
    for name in wanted:
        if name not in header:
            raise unknown_name(f"column of {file}", name, header)
    return wanted, _numbers(lines.read(), file, wanted, [header.index(name) for name in wanted], delimiter)


def _numbers(text: str, file: str, names: Sequence[str], places: Sequence[int], delimiter: str) -> np.ndarray:
    """The columns at these places (rows, columns); refuses what is no finite number."""
    if not text.strip():
        raise DamagedResultError(f"{file}: expected lines of numbers below the names, got none; add the series")
    try:
        values = np.loadtxt(
            io.StringIO(text), delimiter=delimiter, usecols=places, ndmin=2, quotechar='"', comments=None
        )
    except ValueError as error:
        raise DamagedResultError(
            f"{file}: every line after the first must have a number in each column ({error}; rows are numbered from 0 after "
            "the first line)"
        ) from None
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        raise DamagedResultError(
            f"{file}: expected finite numbers, got {values[row, column]} in line {row + 2}, column {names[column]!r}; fill or "
            "remove such lines"
        )
    return values
