"""The log of a run: one JSON object per line, appended; and the arrays that are read back from it."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from holdfast._files import damage
from holdfast.errors import DamagedResultError

LOG = "log.jsonl"
EMPTY_MARK = {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}  # the mark of a log without lines


@dataclass(frozen=True, eq=False)
class History:
    """What a run recorded, as arrays.

    Args:
        steps: optimizer steps done at each line of the log, (lines,), as the next six fields.
        loss: mean training loss since the line before.
        lr: learning rate of the weights that are not recurrent.
        recurrent_lr: that of the recurrent weights.
        norm: norm of the gradient at that step, before clipping.
        seconds: wall-clock time so far, in seconds.
        tokens_per_second: input steps per second since the line before.
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
        mark: what `settle` gave at the checkpoint that a run continues from: lines written later are cut off.
    """

    def __init__(self, path: Path, mark: Mapping[str, Any]) -> None:
        self._digest = check_log(path, mark)
        self._file = open(path, "a+b")  # noqa: SIM115 - lives as long as the run
        # lines after the checkpoint are written again, and must not be there twice
        self._file.truncate(mark["bytes"])
        self._file.seek(0, os.SEEK_END)

    def write(self, event: str, **values: Any) -> None:
        """Adds a line; a number that is not finite is left out, since JSON has no word for it."""
        finite = {k: v for k, v in values.items() if not isinstance(v, float) or math.isfinite(v)}
        line = json.dumps({"event": event, **finite}, allow_nan=False).encode() + b"\n"
        self._file.write(line)
        self._digest.update(line)

    def settle(self) -> dict[str, Any]:
        """Puts all lines on disk; gives the file's size and checksum."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"bytes": self._file.tell(), "sha256": self._digest.hexdigest()}

    def flush(self) -> None:
        """Hands all lines to the system, so that another process can read them."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def continued_log(path: Path, step: int) -> Log:
    """A log that continues at `step`: of an earlier part of the run, lines of this step and later ones are dropped.

    Args:
        path: the file; it need not exist.
        step: the first step that will be written.
    """
    kept = [entry for entry in read_log(path) if entry.get("step", 0) < step and entry.get("event") != "end"]
    content = b"".join(json.dumps(entry).encode() + b"\n" for entry in kept)
    path.write_bytes(content)
    return Log(path, {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})


def check_log(path: Path, mark: Mapping[str, Any]) -> Any:
    """The running checksum of a log up to a checkpoint; DamagedResultError where it is not the checkpoint's log.

    Args:
        path: the file.
        mark: what the checkpoint says of it.
    """
    advice = "Put back the log that belongs to the checkpoint, or start again in another folder."
    if path.is_dir():
        raise DamagedResultError(damage(path, "it is a folder instead of a file", advice))
    # only up to the mark: what a killed run wrote after its checkpoint may be cut anywhere
    content = path.read_bytes()[: mark["bytes"]] if path.exists() else b""
    digest = hashlib.sha256(content)
    if len(content) < mark["bytes"]:
        what = f"the checkpoint was written after {mark['bytes']:,} bytes of log, and only {len(content):,} are left"
        raise DamagedResultError(damage(path, what, advice))
    if digest.hexdigest() != mark["sha256"]:
        raise DamagedResultError(damage(path, "its lines changed after the checkpoint was written", advice))
    return digest


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
