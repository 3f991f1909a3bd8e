"""The user's own time series from a CSV file: forecast some columns some steps ahead."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.data._files import cut, read_text
from holdfast.errors import ArgumentError, DamagedResultError, unknown_name


class SeriesTask(AbstractTask):
    """Values of a series `horizon` steps ahead, at each step of a window: from x_1 ... x_t the model gives y_{t + horizon}.

    The file has one line of names and then one line of numbers for each time, oldest first. Its start trains, what follows
    validates and tests, and no window reaches from one split into another. Each window begins one step after the last.
    Columns are shifted and scaled to mean 0 and deviation 1 over the training part, for all splits alike, so that errors are
    shares of each column's deviation.

    Args:
        file: a CSV file.
        columns: names of the columns that are given at each step; None: all columns.
        targets: names of the columns to forecast; None: the same as `columns`.
        window: steps of a window.
        horizon: how many steps ahead the targets are.
        valid: share of the series for validation; 0: none.
        test: share of the series for the test, at its end; 0: none.
        delimiter: what separates numbers on a line.
    """

    @checked
    def __init__(
        self,
        file: str,
        columns: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        *,
        window: int = 64,
        horizon: int = 1,
        valid: float = 0.15,
        test: float = 0.15,
        delimiter: str = ",",
    ) -> None:
        positive(window=window, horizon=horizon)
        content, self._checksum = read_text(Path(file))
        names, values = _read(content, file, columns, targets, delimiter)
        self.columns = tuple(columns or names)
        self.targets = tuple(targets or self.columns)
        parts = cut(torch.from_numpy(values), valid, test)
        short = [split for split, part in parts.items() if len(part) < window + horizon]
        if short:
            raise ArgumentError(
                f"{file}: the split {short[0]!r} has {len(parts[short[0]])} rows, fewer than window + horizon = "
                f"{window + horizon}; choose a smaller window or a larger share"
            )
        # of training alone: the later splits are the future, which is unknown
        self.mean, self.deviation = parts["train"].mean(0), parts["train"].std(0, correction=0)
        self.deviation[self.deviation == 0] = 1.0  # a constant column becomes zeros
        self._file, self.window, self.horizon = Path(file).name, window, horizon
        self._given = [names.index(name) for name in self.columns]
        self._asked = [names.index(name) for name in self.targets]
        self._windows = {split: self._cut(part) for split, part in parts.items()}
        inputs, outputs = Space("features", len(self.columns)), Space("features", len(self.targets))
        sizes: dict[Split, int | None] = {split: len(found) for split, found in self._windows.items()}
        super().__init__("series", "regress", inputs, outputs, window, sizes)

    def _cut(self, part: Tensor) -> Float32[Tensor, "windows columns time"]:
        return ((part - self.mean) / self.deviation).float().unfold(0, self.window + self.horizon, 1)

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        windows = self._windows[split][indices].mT
        return Batch(windows[:, : self.window, self._given], windows[:, self.horizon :, self._asked])

    def describe(self) -> str:
        sizes = ", ".join(f"{size:,} {split}" for split, size in self._sizes.items())
        return (
            f"{self._file}: {', '.join(self.targets)} {self.horizon} ahead from {', '.join(self.columns)}, windows of "
            f"{self.window}: {sizes}"
        )

    def identity(self) -> dict[str, Any]:
        return {
            "task": self.name, "sha256": self._checksum, "columns": list(self.columns), "targets": list(self.targets),
            "window": self.window, "horizon": self.horizon, "sizes": dict(self._sizes),
        }  # fmt: skip


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
        raise DamagedResultError(f"{file}: the first line has to name each column once, it is {', '.join(header)}")
    wanted = [*dict.fromkeys([*(columns or header), *(targets or ())])]
    for name in wanted:
        if name not in header:
            raise unknown_name(f"column of {file}", name, header)
    return wanted, _numbers(lines.read(), file, wanted, [header.index(name) for name in wanted], delimiter)


def _numbers(text: str, file: str, names: Sequence[str], places: Sequence[int], delimiter: str) -> np.ndarray:
    """The columns at these places (rows, columns); refuses what is no finite number."""
    if not text.strip():
        raise DamagedResultError(f"{file} has names and no line of numbers below them; put the series there")
    try:
        values = np.loadtxt(
            io.StringIO(text), delimiter=delimiter, usecols=places, ndmin=2, quotechar='"', comments=None
        )
    except ValueError as error:
        raise DamagedResultError(
            f"{file}: every line after the first must have a number in each column ({error} Rows count from 0 after the first "
            "line.)"
        ) from None
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        raise DamagedResultError(
            f"{file}: line {row + 2} has {values[row, column]} in column {names[column]!r}; fill or remove such lines"
        )
    return values
