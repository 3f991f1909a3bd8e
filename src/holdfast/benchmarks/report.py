"""What a run found, and its file: plain JSON, written whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast._files import write_atomically
from holdfast.benchmarks.case import Match, Sense, Shape
from holdfast.benchmarks.growth import Growth
from holdfast.benchmarks.memory import Peak
from holdfast.benchmarks.timing import Quartiles
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast.results import Provenance

FORMAT = "holdfast bench 1"
Status = Literal["met", "missed", "information", "not run", "wrong"]


@dataclass(frozen=True)
class Row:
    """One line of the table: ours against one contender at one shape.

    `ratio` is (its time) / (our time), or the inverse where the goal is "at most". "not run" says in `note` why the
    contender could not be timed; "wrong" that our own result failed its check.
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
    """A whole run."""

    command: str
    provenance: Provenance
    rows: tuple[Row, ...]
    growth: tuple[Growth, ...]
    memory: tuple[Peak, ...]

    def save(self, path: str | Path) -> None:
        """Writes everything as JSON."""
        content = {"format": FORMAT, **asdict(self)}
        write_atomically(Path(path), (json.dumps(_without_infinity(content), indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Reads back what `save` wrote."""
        try:
            content = json.loads(Path(path).read_text())
        except FileNotFoundError:
            raise ArgumentError(f"no file {path}; make one with `holdfast bench --json {path}`") from None
        except ValueError as error:
            raise DamagedResultError(f"{path} is not JSON ({error}); run `holdfast bench --json` again") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DamagedResultError(f"{path} was not written by `holdfast bench --json` of this version ({FORMAT!r})")
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
