"""One page of a run's log, redrawn while it trains: loss, margins, time constants, reach, memory, gradients, alarms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast._page import document, paragraph, picture, table
from holdfast._words import duration
from holdfast.errors import ArgumentError
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Rule
from holdfast.stability.monitor.vitals import time_constant_of
from holdfast.training._folder import read_run
from holdfast.training._log import LOG, History, history_of, read_log

PAGE = "watch.html"
MAX_LINES = 8  # of a panel; of more recurrences those nearest to the edge, or of the largest gradient, are drawn
MAX_RULES = 3  # alarms that are marked in the panel of the loss; the table has all
MAX_LINEAR_RATIO = 100  # of a largest to a smallest loss; beyond it the axis is logarithmic
FEW_POINTS = 12  # of a line that has its points marked: margins of dense matrices are computed rarely
NEWEST_ALARMS = 5  # above the figures; earlier ones stand below them
Series = Mapping[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class RunView:
    """What a log says of its run so far.

    Args:
        title: name of its folder.
        steps: optimizer steps of the whole run; None where it was not recorded.
        history: its numbers as arrays.
        reach: steps and values for each recurrence.
        alarms: step and text of each warning, the first one first.
        status: "running", or how it ended.
        reason: why it ended so.
        memory: steps at which the memory on data was measured, and its values; None where it was not.
    """

    title: str
    steps: int | None
    history: History
    reach: Series
    alarms: tuple[tuple[int, str], ...]
    status: str = "running"
    reason: str = ""
    memory: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def step(self) -> int:
        """The last step that the log has a line of."""
        return int(self.history.steps[-1]) if len(self.history.steps) else 0

    def summary(self) -> str:
        """One line: status, step, loss, time, number of alarms."""
        of = "" if self.steps is None else f" of {self.steps:,}"
        parts = [f"{self.status}, step {self.step:,}{of}"]
        if len(self.history.loss):
            parts.append(f"loss {self.history.loss[-1]:.4g}")
            parts.append(duration(float(np.nan_to_num(self.history.seconds[-1]))))
        parts.append(f"{len(self.alarms)} alarm{'' if len(self.alarms) == 1 else 's'}")
        return ", ".join(parts) + (f": {self.reason}" if self.reason else "")

    def figures(self) -> list[Figure]:
        """Loss, margins against the edge, time constants with what they can reach, gradient over weight: what there is."""
        ratios, margins = (_of_quantity(self.history.gradients, name) for name in ("norm_ratio", "margin"))
        edge = Rule("the edge", y=0.0)
        alarms = [Rule(f"alarm at {step:,}", x=float(step)) for step in sorted({s for s, _ in self.alarms})[:MAX_RULES]]
        shown: tuple[tuple[str, Axis, list[Layer], list[Rule], str], ...] = (
            ("Loss", Axis("loss", log=_spans_decades(self.history.loss)), self._losses(), alarms,
             "Loss of training, and of evaluations where there are any."),
            ("Margin", Axis("margin per step"), _lines(margins, least=True), [edge],
             "Distance of each recurrence to the edge of stability: 1 less its spectral radius."),
            ("Time constants", Axis("steps to 1/e", log=True), self._time_constants(margins), [],
             "How long each recurrence remembers; dashed, the longest that the remaining steps can reach at this rate."),
            ("Memory", Axis("steps to 1%"), [] if self.memory is None else [Line("memory", *self.memory, markers=True)], [],
             "How long the model keeps an input of the data: until 1% of the change is left that another one makes."),
            ("Gradient over weight", Axis("|gradient| / |weight|", log=True), _lines(ratios), [],
             "Relative size of the gradient of each recurrent weight."),
        )  # fmt: skip
        return [
            Figure("watch", caption, [Panel(title, Axis("optimizer step"), y, [*layers, *rules])])
            for title, y, layers, rules, caption in shown
            if layers
        ]

    def _losses(self) -> list[Layer]:
        lines: list[Layer] = [Line("train", self.history.steps, self.history.loss)] if len(self.history.steps) else []
        if "loss" in self.history.metrics:
            lines.append(Line("valid", self.history.evaluated, self.history.metrics["loss"], markers=True))
        return lines

    def _time_constants(self, margins: Series) -> list[Layer]:
        times = {path: (at, np.array([time_constant_of(v) for v in values])) for path, (at, values) in margins.items()}
        now = _lines({path: (at, np.where(np.isfinite(v), v, np.nan)) for path, (at, v) in times.items()})
        ahead = (line for line in _lines(self.reach) if isinstance(line, Line))
        return [*now, *(Line(f"{line.label}, reach", line.x, line.y, dash="dash") for line in ahead)]

    def page(self, refresh_seconds: int | None = None) -> str:
        """The page as text, which needs nothing else to be shown.

        Args:
            refresh_seconds: after which a browser loads it again; None where the run has ended.
        """
        body = [paragraph(self.summary())]
        rows = [(f"{step:,}", text.replace(f"step {step}: ", "")) for step, text in reversed(self.alarms)]
        if rows:
            body += ["<h2>ALARMS</h2>", table(["step", "what was seen"], rows[:NEWEST_ALARMS])]
        body += [picture(figure) for figure in self.figures()] or [paragraph("Nothing has been logged yet.")]
        if len(rows) > NEWEST_ALARMS:
            older = table(["step", "what was seen"], rows[NEWEST_ALARMS:])
            body.append(f"<details><summary>{len(rows) - NEWEST_ALARMS} earlier alarms</summary>{older}</details>")
        return document(f"{self.title}: {self.status}", body, refresh_seconds=refresh_seconds)


def read_view(folder: Path) -> RunView:
    """What the log in `folder` says now: of `holdfast train`, or of `holdfast.integrations`."""
    if not folder.is_dir():
        raise ArgumentError(
            f"expected a folder that `holdfast train` or a TrainingWatch writes, got {folder}, which does not exist"
        )
    about, entries = read_run(folder), read_log(folder / LOG)
    if about is None and not entries:
        raise ArgumentError(
            f"expected a folder with a run ({LOG}, or run.json of one that has just begun), got {folder} without either"
        )
    told = [entry["steps"] for entry in entries if entry.get("event") == "begin" and entry.get("steps")]
    ends = [entry for entry in entries if entry.get("event") == "end"]
    return RunView(
        title=folder.resolve().name,
        steps=about["steps"] if about is not None else told[-1] if told else None,
        history=history_of(entries),
        reach=_reach(entries),
        alarms=tuple((int(e.get("step", 0)), str(e["text"])) for e in entries if e.get("event") == "warning"),
        status=str(ends[-1]["status"]) if ends else "running",
        reason=str(ends[-1].get("reason", "")) if ends else "",
        memory=_memory(entries),
    )


def _reach(entries: Iterable[Mapping[str, Any]]) -> Series:
    pairs: dict[str, list[tuple[int, float]]] = {}
    for entry in entries:
        if entry.get("event") == "reach":
            for path, value in entry["values"].items():
                pairs.setdefault(path, []).append((entry["step"], value))
    return {path: (np.array([s for s, _ in p]), np.array([v for _, v in p])) for path, p in pairs.items()}


def _memory(entries: Iterable[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray] | None:
    pairs = [(entry["step"], entry["value"]) for entry in entries if entry.get("event") == "memory"]
    return (np.array([s for s, _ in pairs]), np.array([v for _, v in pairs])) if pairs else None


def _of_quantity(gradients: Series, quantity: str) -> Series:
    ending = f"/{quantity}"
    # not by its end alone: "continuous_margin" ends like "margin"
    return {name.removesuffix(ending): pair for name, pair in gradients.items() if name.endswith(ending)}


def _lines(series: Series, *, least: bool = False) -> list[Layer]:
    """A line for each, of many the extreme ones: with `least` the lowest of their last values, else the highest."""
    known = {path: pair for path, pair in series.items() if np.isfinite(pair[1]).any()}
    order = sorted(known, key=lambda path: _last(known[path][1]), reverse=not least)
    kept = set(order[:MAX_LINES])
    few = {path: int(np.isfinite(values).sum()) <= FEW_POINTS for path, (_, values) in known.items()}
    return [Line(path, *pair, markers=few[path]) for path, pair in known.items() if path in kept]


def _last(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else math.nan


def _spans_decades(values: np.ndarray) -> bool:
    """Whether a linear axis would show the largest alone."""
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and 0 < MAX_LINEAR_RATIO * float(finite.min()) < float(finite.max())
