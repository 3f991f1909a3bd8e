"""The log of a run: one JSON object a line, appended; and the arrays that are read back from it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

LOG = "log.jsonl"


@dataclass(frozen=True, eq=False)
class History:
    """What a run recorded, as arrays.

    Args:
        steps: optimizer steps done at each line of the log.
        loss: mean training loss since the line before.
        lr: learning rate of the weights that are not recurrent.
        recurrent_lr: that of the recurrent weights.
        norm: norm of the gradient at that step, before clipping.
        seconds: time spent so far.
        tokens_per_second: input steps taken in a second since the line before.
        evaluated: optimizer steps done at each evaluation.
        metrics: validation metrics by name ("loss", "accuracy", "perplexity"), one number for each evaluation.
        gradients: gradient over weight by "weight/quantity", as pairs of arrays (steps, values).
    """

    steps: Int64[np.ndarray, " lines"]
    loss: Float64[np.ndarray, " lines"]
    lr: Float64[np.ndarray, " lines"]
    recurrent_lr: Float64[np.ndarray, " lines"]
    norm: Float64[np.ndarray, " lines"]
    seconds: Float64[np.ndarray, " lines"]
    tokens_per_second: Float64[np.ndarray, " lines"]
    evaluated: Int64[np.ndarray, " evaluations"]
    metrics: Mapping[str, np.ndarray] = field(default_factory=dict)
    gradients: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


class Log:
    """Lines appended to a file, each whole or absent.

    Args:
        path: the file.
        size: bytes of it that count; what was written after the checkpoint that a run goes on from is cut off.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self._file = open(path, "a+b")  # noqa: SIM115 - lives as long as the run
        self._file.truncate(min(size, self._file.seek(0, os.SEEK_END)))
        self._file.seek(0, os.SEEK_END)

    def write(self, event: str, **values: Any) -> None:
        """Adds a line; a number that is not finite is left out, since JSON has no word for it."""
        finite = {k: v for k, v in values.items() if not isinstance(v, float) or math.isfinite(v)}
        self._file.write(json.dumps({"event": event, **finite}, allow_nan=False).encode() + b"\n")

    def settle(self) -> int:
        """Puts all lines on disk and gives the file's size."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; a last one that a kill cut short is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    entries = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def history_of(entries: Iterable[Mapping[str, Any]]) -> History:
    """The arrays of a log's lines."""
    by_event: dict[str, list[Mapping[str, Any]]] = {"train": [], "evaluate": [], "gradients": []}
    for entry in entries:
        by_event.get(str(entry.get("event")), []).append(entry)
    train, evaluations = by_event["train"], by_event["evaluate"]
    names = [k for k in (evaluations[0] if evaluations else {}) if k not in ("event", "step", "split")]
    names_of = ("loss", "lr", "recurrent_lr", "norm", "seconds", "tokens_per_second")
    columns = {name: np.array([e.get(name, math.nan) for e in train], dtype=np.float64) for name in names_of}
    return History(
        steps=np.array([e["step"] for e in train], dtype=np.int64),
        **columns,
        evaluated=np.array([e["step"] for e in evaluations], dtype=np.int64),
        metrics={n: np.array([e.get(n, math.nan) for e in evaluations], dtype=np.float64) for n in names},
        gradients=_gradients(by_event["gradients"]),
    )


def _gradients(entries: Iterable[Mapping[str, Any]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    pairs: dict[str, list[tuple[int, float]]] = {}
    for entry in entries:
        for name, value in entry["values"].items():
            pairs.setdefault(name, []).append((entry["step"], value))
    return {name: (np.array([s for s, _ in rows]), np.array([v for _, v in rows])) for name, rows in pairs.items()}
