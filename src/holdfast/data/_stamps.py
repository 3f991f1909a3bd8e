"""Time stamps as whole steps on a grid: numbers, dates in ISO 8601, or pandas' own."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from holdfast.errors import ArgumentError, DamagedResultError

SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
MONTH = "month"
DAY = SECONDS["d"]
MAX_OFF = 1e-3  # share of a step that a stamp may lie off the grid: clocks that are rounded


def read_stamps(cells: Sequence[Any] | np.ndarray, where: str) -> tuple[Float64[np.ndarray, " rows"], bool]:
    """Seconds since 1970 of dates, or numbers as they are, and whether they are dates.

    Args:
        cells: numbers, texts, or an array of datetime64.
        where: of them, for messages.
    """
    array = np.asarray(cells)
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            raise DamagedResultError(f"{where}: row {int(np.isnat(array).argmax())} has no time stamp; remove the row")
        return array.astype("datetime64[us]").astype(np.int64) / 1e6, True
    try:
        numbers = array.astype(np.float64)
    except (TypeError, ValueError):
        return np.array([_seconds(str(cell), f"{where}, row {i}") for i, cell in enumerate(cells)]), True
    if not np.isfinite(numbers).all():
        raise DamagedResultError(
            f"{where}: row {int((~np.isfinite(numbers)).argmax())} has no time stamp; remove the row"
        )
    return numbers, False


def _seconds(text: str, where: str) -> float:
    try:
        date = datetime.fromisoformat(text.strip())
    except ValueError:
        raise DamagedResultError(
            f"{where}: expected a date such as 2026-01-31 12:00 or a number, got {text!r:.60}; for other formats read the "
            "file with pandas, convert the column with pandas.to_datetime, and pass the DataFrame"
        ) from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def grid_step(stamps: Sequence[np.ndarray], dates: bool, every: float | str | None) -> float | str:
    """The step between two stamps: as asked for, else the most common one; "month" for dates a month apart.

    Args:
        stamps: those of each series, sorted.
        dates: whether they are seconds.
        every: a number (of seconds, for dates), or a text such as "15min", "1h", "1d" or "month"; None: as the stamps say.
    """
    if every is not None:
        return _parsed(every, dates)
    steps = np.concatenate([np.diff(some) for some in stamps])
    steps = steps[steps > 0]  # the same stamp twice is refused later, with its place
    if not len(steps):
        return 1.0
    values, counts = np.unique(steps.round(6), return_counts=True)
    common = float(values[counts.argmax()])
    monthly = dates and 28 * DAY <= common <= 31 * DAY
    return MONTH if monthly and all(_months(some)[1] for some in stamps) else common


def _parsed(every: float | str, dates: bool) -> float | str:
    if not isinstance(every, str):
        if not 0 < every < math.inf:
            raise ArgumentError(f"every: expected a finite step above 0, got {every}")
        return float(every)
    match = re.fullmatch(r"(\d*\.?\d*) *(s|min|h|d|w|month)", every.strip().lower())
    if match is None or not dates or (match[2] == MONTH and match[1] not in ("", "1")):
        raise ArgumentError(
            f"every: expected a number, or for dates a text such as '15min', '1h', '1d', '1w' or 'month', got {every!r}"
        )
    return MONTH if match[2] == MONTH else float(match[1] or 1) * SECONDS[match[2]]


def on_grid(stamps: np.ndarray, origin: float, step: float | str, where: str) -> Int64[np.ndarray, " rows"]:
    """How many steps after the origin each stamp lies; refuses those off the grid, and repeated ones.

    Args:
        stamps: sorted, of one series.
        origin: the first stamp of all.
        step: as `grid_step` gives it.
        where: of them, for messages.
    """
    if step == MONTH:
        months, same = _months(np.append(origin, stamps))
        if not same:
            raise ArgumentError(
                f"{where}: expected dates one month apart on the same day of the month; pass another every="
            )
        places = months[1:] - months[0]
    else:
        exact = (stamps - origin) / float(step)
        places = exact.round().astype(np.int64)
        off = np.abs(exact - places) > MAX_OFF
        if off.any():
            i = int(off.argmax())
            raise ArgumentError(
                f"{where}: expected time stamps a whole number of steps apart, got stamp {i} at {exact[i]:.6g} steps "
                f"of {step:g} after the first; pass the step as every=, or resample the series (pandas: "
                "frame.resample('1h').mean())"
            )
    twice = np.diff(places) == 0
    if twice.any():
        raise ArgumentError(
            f"{where}: expected one row for each time, got stamps {int(twice.argmax())} and {int(twice.argmax()) + 1} at the "
            "same time; pass the column that identifies the series as series=, or remove one row"
        )
    return places


def _months(seconds: np.ndarray) -> tuple[np.ndarray, bool]:
    """Months since the year 0, and whether all stamps have the same place in theirs."""
    dates = [datetime.fromtimestamp(float(s), UTC) for s in seconds]
    places = {(d.day, d.hour, d.minute, d.second) for d in dates}
    return np.array([12 * d.year + d.month for d in dates]), len(places) <= 1
