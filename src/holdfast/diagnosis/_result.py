"""Diagnosis: everything that was found of a model, as one object that can be printed, drawn and saved."""

from __future__ import annotations

import html
import math
import os
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from holdfast._files import write_atomically
from holdfast._page import document, paragraph, picture
from holdfast._record import Record, as_path, writable_file
from holdfast.decay import DecayFit, TaskStudy
from holdfast.decay._result import Reach
from holdfast.diagnosis._advice import Advice
from holdfast.diagnosis._forgetting import Forgetting
from holdfast.diagnosis._learning import Learning
from holdfast.diagnosis._reaching import Reaching, TrainingPlan
from holdfast.diagnosis._trial import Outcome, Trial
from holdfast.diagnosis._weights import Edge, LongRun, Survival, Tolerance
from holdfast.diagnosis._words import blocks
from holdfast.errors import ArgumentError
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Rule
from holdfast.memory import DataMemory, MemoryCurve
from holdfast.stability import Certificate, PerturbationCurve

MIN_SHARE = 1e-4  # share left at the foot of the figure
RECORDS: tuple[type[Record], ...] = (MemoryCurve, DecayFit, TaskStudy, Certificate, PerturbationCurve)


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Record):
    """The result of `diagnose`: what was measured of a model, and advice.

    Args:
        name: name of the model.
        about: its kind, number of weights and inputs, in one line.
        memory: its memory of one input and of a lasting change, in steps; empty where it could not be measured.
        on_data: its memory of an input of the data given, in steps; None without data.
        edge: its recurrences and their margins, per step; None where none is known.
        survival: the largest change of its recurrent weights that leaves outputs within 10%.
        learning: gradients at the start of training, and the largest stable learning rate.
        task: the memory that the data given need, in steps.
        needs: steps that you gave, or that the data need.
        reaching: how far training can lengthen its memory, in steps until 1% is left.
        advice: calls that help, each tried on a copy; the one with the smallest held-out loss first.
        dropped: calls that were tried and did not help, with the reason.
        untried: calls that might help, for which there was no time.
        unseen: what could not be measured, each with its reason.
        notes: how the model was read.
        trained: whether the model counts as trained.
        seconds: CPU time of each part, in seconds.
    """

    _parts: ClassVar[tuple[type, ...]] = (
        *(
            Forgetting,
            Reach,
            Edge,
            LongRun,
            Survival,
            Tolerance,
            Learning,
            Reaching,
            TrainingPlan,
            Advice,
            Trial,
            Outcome,
        ),
        *(DataMemory, *DataMemory._parts),
        *(kind for record in RECORDS for kind in (record, *record._parts)),
    )

    name: str
    about: str
    memory: tuple[Forgetting, ...] = ()
    on_data: DataMemory | None = None
    edge: Edge | None = None
    survival: Survival | None = None
    learning: Learning | None = None
    task: TaskStudy | None = None
    needs: int | None = None
    reaching: Reaching | None = None
    advice: tuple[Advice, ...] = ()
    dropped: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trained: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        """Whether an unstable recurrence makes outputs grow, or the memory grows or could not be measured."""
        unstable = self.edge is not None and self.edge.explodes
        return unstable or not self.memory or any(one.curve.status == "not finite" for one in self.memory)

    def lines(self, *, details: bool = False, width: int = 80) -> list[str]:
        """The screen, plain words first.

        Args:
            details: also laws, spectra and bounds, in the papers' words.
            width: columns that there are.
        """
        from holdfast.diagnosis._words import screen

        return screen(self, details=details, width=width)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def summary(self) -> str:
        """A line: how far it remembers, how near it is to the edge, and what to do first."""
        from holdfast.diagnosis._words import advice, edge, memory

        said = [*memory(self)[:1], *edge(self)[:1]] or [f"not measured: {reason[:200]}" for reason in self.unseen[:1]]
        first = [f"{len(self.advice)} to do, first: {self.advice[0].trouble}"] if self.advice else advice(self)
        return f"{self.name}: {'; '.join([*said, *first])}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and texts, for JSON."""
        parts: dict[str, Any] = {
            "edge": self.edge,
            "survival": self.survival,
            "training": self.learning,
            "task": self.task,
        }
        parts["reach"] = self.reaching
        plain: dict[str, Any] = {"name": self.name, "about": self.about, "needs": self.needs}
        plain["memory"] = [one.to_dict() for one in self.memory]
        plain["memory_on_data"] = _data_numbers(self.on_data)
        plain |= {"trained": self.trained, "seconds": self.seconds}
        plain |= {name: None if part is None else part.to_dict() for name, part in parts.items()}
        plain["advice"] = [advice.to_dict() for advice in self.advice]
        plain |= {"tried_in_vain": list(self.dropped), "not_tried": list(self.untried)}
        return _finite(plain | {"not_seen": list(self.unseen), "notes": list(self.notes)})

    def figure(self) -> Figure:
        """What is left after so many steps, as data: of one input, of a step, and what the task needs."""
        layers: list[Layer] = [Line(_label(one), *_share(one)) for one in self.memory]
        if self.on_data is not None and len(self.on_data.shares):
            lags, shares = self.on_data.lags[1:], self.on_data.shares[:, 1:]
            low, middle, high = (np.quantile(shares, share, axis=0) for share in (0.1, 0.5, 0.9))
            layers.append(Line("an exchanged input of the data", lags, middle, low, high))
        if self.task is not None:
            peak = float(self.task.curve.values.max()) or 1.0
            lags = self.task.curve.time
            layers.append(Line("what the task needs", lags[1:], self.task.curve.values[1:] / peak, dash="dash"))
        layers.append(Rule("1%", y=0.01))
        caption = f"{self.name}: the share of an input that is left, by the steps since."
        panel = Panel(
            "what is left", Axis("steps since", log=True), Axis("share left", log=True, limits=(MIN_SHARE, 2.0)), layers
        )
        return Figure("diagnosis", caption, [panel], columns=1)

    def html(self) -> str:
        """One page with the figure in it, which needs nothing else to be shown."""
        from holdfast.diagnosis._result import page

        return page(self)

    def _repr_html_(self) -> str:
        return f"{super()._repr_html_()}<pre>{escape(str(self))}</pre>"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page to look at (.html), or a file from which `load` gives the diagnosis back (.json).

        Args:
            path: the file; its ending says which. Folders on the way are made.
        """
        suffix = as_path(path).suffix
        if suffix not in (".html", ".json"):
            raise ArgumentError(f"path must end in .html or .json, got {suffix!r}")
        if suffix == ".json":
            return super().save(path)
        file = writable_file(path)
        write_atomically(file.resolve(), self.html().encode("utf-8", "backslashreplace"))
        return file

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads back what `save` wrote into a .json file.

        Args:
            path: of the file.
        """
        if as_path(path).suffix == ".html":
            raise ArgumentError(
                f"path must be a .json file, got the page {path}; load the file that save('NAME.json') wrote"
            )
        return super().load(path)


def _data_numbers(found: DataMemory | None) -> dict[str, Any] | None:
    if found is None:
        return None
    low, high = found.quantile(0.1), found.quantile(0.9)
    steps = {"steps": found.steps, "low": low, "high": high, "state_steps": found.state_steps, "left": found.left}
    return steps | {"places": len(found.sizes), "horizon": float(found.lags[-1]), "notes": list(found.notes)}


def _label(one: Forgetting) -> str:
    what = "one input" if one.kind == "impulse" else "an input that stays"
    return what if one.way == "ahead" else f"{what}, read backwards"


def _share(one: Forgetting) -> tuple[np.ndarray, np.ndarray]:
    """Steps 1, 2, ... up to where the curve ends, and the share that is left of its largest value."""
    rest = one.fit.envelope
    peak = float(rest[0]) if math.isfinite(rest[0]) and rest[0] > 0 else 1.0
    last = int(np.searchsorted(one.curve.time, one.fit.window[1])) + 1
    below = np.flatnonzero(rest / peak < MIN_SHARE)  # the axis of steps ends where the curve leaves the figure
    last = max(2, min(last, int(below[0]) + 1)) if len(below) else max(2, last)
    return one.curve.time[1:last], rest[1:last] / peak


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page(diagnosis: Diagnosis) -> str:
    """The page as text; names and messages in it are escaped.

    Args:
        diagnosis: what the page shows.
    """
    body = [paragraph(diagnosis.about)]
    for head, sentences in blocks(diagnosis, details=False):
        body.append(f"<h2>{head}</h2>")
        body += _advice(diagnosis) if head == "ADVICE" and diagnosis.advice else map(paragraph, sentences)
        if head == "MEMORY":
            body.append(picture(diagnosis.figure()))
    details = "".join(map(paragraph, dict(blocks(diagnosis, details=True)).get("DETAILS", [])))
    body.append(f"<details><summary>details, in the papers' words</summary>{details}</details>")
    return document(diagnosis.name, body)


def _advice(diagnosis: Diagnosis) -> list[str]:
    return [
        f'<div class="advice">{paragraph(f"{one.trouble}: {one.number}")}<code>{html.escape(one.call)}</code>'
        f"{paragraph(one.effect)}</div>"
        for one in diagnosis.advice
    ]
