"""What a run found, and its file: plain JSON, written whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast._files import write_atomically
from holdfast._provenance import Provenance
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast_papers.benchmarks.case import Match, Sense, Shape
from holdfast_papers.benchmarks.growth import Growth
from holdfast_papers.benchmarks.memory import Peak
from holdfast_papers.benchmarks.timing import Quartiles

FORMAT = "holdfast bench 1"
LARGEST = 2**24  # bytes; a whole table with peers is below 2**17
Status = Literal["met", "missed", "information", "not run", "wrong"]


@dataclass(frozen=True)
class Row:
    """One line of the table: ours against one contender at one shape.

    Args:
        case: name of the case.
        row: the row of the speed table that it belongs to.
        shape: the sizes.
        against: name of the contender.
        goal: the ratio that is to be reached, if any.
        sense: whether the goal is a lower ("at least") or an upper bound ("at most").
        status: "met", "missed", "information" (no goal), "not run" (the contender could not be timed) or "wrong" (our
            own result failed its check).
        note: why it is "not run" or "wrong".
        ours_ms: our median time of a step, in milliseconds.
        against_ms: the contender's.
        ratio: quartiles of (its time) / (our time), or of the inverse where the goal is "at most".
        rounds: how often both were timed.
        ours_error: largest error of our results against the float64 truth, as a share of its largest entry.
        against_error: the contender's.
        tolerance: how large such an error may be.
    """

    case: str
    row: str
    shape: Shape
    against: str
    goal: float | None
    sense: Sense
    status: Status
    note: str = ""
    ours_ms: float | None = None
    against_ms: float | None = None
    ratio: Quartiles | None = None
    rounds: int = 0
    ours_error: float | None = None
    against_error: float | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class Report:
    """All that a run measured.

    Args:
        command: the command line.
        provenance: versions, machine, time.
        rows: ours against contenders.
        growth: how the time of each kernel grows with its sizes.
        memory: peak memory of each kernel, and what is promised.
    """

    command: str
    provenance: Provenance
    rows: tuple[Row, ...]
    growth: tuple[Growth, ...]
    memory: tuple[Peak, ...]

    def save(self, path: str | Path) -> None:
        """Writes everything as JSON.

        Args:
            path: of the file.
        """
        content = {"format": FORMAT, **asdict(self)}
        write_atomically(Path(path), (json.dumps(_without_infinity(content), indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Reads back what `save` wrote.

        Args:
            path: of the file.
        """
        try:
            with open(path, "rb") as file:
                text = file.read(LARGEST + 1)
            content = json.loads(text) if len(text) <= LARGEST else None
        except FileNotFoundError:
            raise ArgumentError(f"{path} does not exist; write it with `holdfast bench --json {path}`") from None
        except ValueError as error:
            raise DamagedResultError(
                f"{path} is not valid JSON ({error}); write it again with `holdfast bench --json`"
            ) from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DamagedResultError(
                f"{path} was not written by `holdfast bench --json` of this version (format {FORMAT!r}); write it again"
            )
        return cls(
            command=content["command"],
            provenance=Provenance(**content["provenance"]),
            rows=tuple(_row(entry) for entry in content["rows"]),
            growth=tuple(Growth(**_tuples(entry)) for entry in content["growth"]),
            memory=tuple(Peak(**_tuples(entry)) for entry in content["memory"]),
        )


def judge(match: Match, ratio: Quartiles) -> Status:
    """The median decides."""
    if match.goal is None:
        return "information"
    reached = ratio.median >= match.goal if match.sense == "at least" else ratio.median <= match.goal
    return "met" if reached else "missed"


def _row(entry: Mapping[str, Any]) -> Row:
    values = _tuples(entry)
    if values["ratio"] is not None:
        values["ratio"] = Quartiles(**values["ratio"])
    return Row(**values)


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}


def _without_infinity(value: Any) -> Any:
    """JSON has no infinity; an infinite error (a NaN in a result) becomes the largest number."""
    if isinstance(value, dict):
        return {key: _without_infinity(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(item) for item in value]
    return 1e308 if isinstance(value, float) and math.isinf(value) else value
