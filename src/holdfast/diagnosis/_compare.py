"""compare: several models side by side, in one table and one figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast._codec import plain
from holdfast._record import Record
from holdfast.decay import DecayFit
from holdfast.diagnosis._cost import cost_of
from holdfast.diagnosis._forgetting import followed_impulse
from holdfast.diagnosis._on_data import (
    CHANGE_ROWS,
    CHANGE_STEPS,
    EDGE_ROWS,
    EDGE_STEPS,
    checked_inputs,
    measure_on_data,
)
from holdfast.diagnosis._reading import Reading, features_of, read_model
from holdfast.diagnosis._weights import Edge, look_at_edge, look_at_survival, random_inputs
from holdfast.errors import ArgumentError, HoldfastError
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Rule
from holdfast.memory import DataMemory
from holdfast.memory._subject import INPUT_ERRORS
from holdfast.memory.preserve import random_states_kept

LENGTH = 64  # steps of the random inputs on which weights are changed without data
SHOWN_SHARE = 1e-4  # share left at the foot of the figure
Announce = Callable[[str, int | None, int | None], None]
Inputs = Tensor | Mapping[str, Tensor] | None


@dataclass(frozen=True, eq=False)
class ComparedModel:
    """What was found of one of several models; None where it could not be measured, with the reason in `unseen`.

    Args:
        name: name of the model.
        kind: its class.
        weights: number of trainable weights.
        operations: multiply-adds per step, counted and not timed.
        steps: steps until 1% of the effect of one input is left at rest; inf where it does not fade.
        law: decay law of the memory at rest, with its constant.
        time_constant: of its slowest recurrence at rest, in steps.
        margin: of the recurrence nearest to instability, per step.
        data_steps: median of the steps until 1% of an exchanged input is left on data; inf where more is left to the end.
        exponent: growth rate of small deviations along the data, per step.
        survival: largest random change of its recurrent weights, as a share of them, that moves outputs by less than 10%.
        bits: fewest bits per recurrent weight that keep outputs on data within 10%.
        lags: steps since the input, for `left`, (lags,).
        left: share of the effect of one input that is left at rest after so many steps, (lags,).
        data_lags: steps since the exchanged input, for `data_left`, (data lags,).
        data_left: median share that is left on data, (data lags,).
        unseen: what could not be measured, each with its reason.
    """

    name: str
    kind: str
    weights: int | None = None
    operations: float | None = None
    steps: float | None = None
    law: str | None = None
    time_constant: float | None = None
    margin: float | None = None
    data_steps: float | None = None
    exponent: float | None = None
    survival: float | None = None
    bits: int | None = None
    lags: Float64[np.ndarray, " lags"] | None = None
    left: Float64[np.ndarray, " lags"] | None = None
    data_lags: Float64[np.ndarray, " data_lags"] | None = None
    data_left: Float64[np.ndarray, " data_lags"] | None = None
    unseen: tuple[str, ...] = ()


COLUMNS: dict[str, str] = {
    "steps": "at rest: steps to 1%",
    "law": "law",
    "time_constant": "time constant",
    "margin": "margin",
    "data_steps": "on data: steps to 1%",
    "exponent": "exponent",
    "survival": "survives",
    "bits": "bits",
    "weights": "weights",
    "operations": "multiply-adds",
}


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Record):
    """The rows of several models and their table, figure and numbers: the result of `compare`.

    Args:
        models: one row each, in the order in which they were given.
        on_data: whether inputs were given.
    """

    _parts: ClassVar[tuple[type, ...]] = (ComparedModel,)

    models: tuple[ComparedModel, ...]
    on_data: bool = False

    def __getitem__(self, name: str) -> ComparedModel:
        """The row of that name."""
        for one in self.models:
            if one.name == name:
                return one
        raise KeyError(f"expected the name of a model ({', '.join(one.name for one in self.models)}), got {name!r}")

    def rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Heads and cells as text; columns in which no model has a number are left out."""
        used = [column for column in COLUMNS if any(getattr(one, column) is not None for one in self.models)]
        heads = ("model", *(COLUMNS[column] for column in used))
        return heads, [(one.name, *(_cell(column, one) for column in used)) for one in self.models]

    def table(self) -> str:
        """The table as lines of Markdown, with what could not be measured below it."""
        heads, rows = self.rows()
        widths = [max(len(row[k]) for row in (heads, *rows)) for k in range(len(heads))]

        def line(cells: tuple[str, ...]) -> str:
            return f"| {' | '.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))} |"

        lines = [line(heads), line(tuple("-" * width for width in widths)), *map(line, rows)]
        missing = [f"{one.name}: {reason}" for one in self.models for reason in one.unseen]
        return "\n".join([*lines, *([""] if missing else []), *missing])

    def __str__(self) -> str:
        return self.table()

    def summary(self) -> str:
        """A line: how long each model remembers, on data where inputs were given."""
        name = "data_steps" if self.on_data else "steps"
        said = [f"{one.name} {_cell(name, one) or 'not measured'}" for one in self.models]
        where = "on data" if self.on_data else "at rest"
        return f"steps until 1% of one input is left {where}: {', '.join(said)}"

    def to_dict(self) -> dict[str, Any]:
        """Every number, without the curves, for JSON; an infinite one becomes None."""
        curves = {"lags", "left", "data_lags", "data_left"}
        names = [field.name for field in fields(ComparedModel) if field.name not in curves]
        rows = [{name: getattr(one, name) for name in names} for one in self.models]
        shown: dict[str, Any] = plain({"on_data": self.on_data, "models": rows}, exact=False)
        return shown

    def figure(self) -> Figure:
        """The share of one input that is left over the steps since: at rest, and on data where inputs were given."""
        rest = [_line(k, one.name, one.lags, one.left) for k, one in enumerate(self.models)]
        data = [_line(k, one.name, one.data_lags, one.data_left) for k, one in enumerate(self.models)]
        panels = [_panel("at rest", rest)]
        if self.on_data:
            panels.append(_panel("on data (median)", data))
        return Figure("comparison", f"{self.summary()}.", panels)


def _line(slot: int, name: str, lags: np.ndarray | None, left: np.ndarray | None) -> Line | None:
    if lags is None or left is None:
        return None
    # a logarithmic axis has no lag 0
    return Line(name, lags[1:], left[1:], colour=slot)


def _panel(title: str, lines: list[Line | None]) -> Panel:
    layers: list[Layer] = [*(line for line in lines if line is not None), Rule("1%", y=0.01)]
    y = Axis("share of one input left", log=True, limits=(SHOWN_SHARE, 2.0))
    return Panel(title, Axis("steps since", log=True), y, layers)


def _cell(column: str, one: ComparedModel) -> str:
    value = getattr(one, column)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return value
    if math.isinf(value) and column == "data_steps" and one.data_lags is not None:
        return f"more than {one.data_lags[-1]:.0f}"
    if math.isinf(value):
        return "no end"
    if column == "survival":
        return f"{100 * value:.0f}%" if value >= 0.1 else f"{100 * value:.2g}%"
    if column == "exponent":
        return f"{value:.4f}"
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.3g}"


@checked
def compare(
    models: Mapping[str, Callable[..., Any]],
    inputs: Inputs = None,
    *,
    input_size: int | None = None,
    horizon: int = 1024,
    seed: int = 0,
    progress: Announce | None = None,
) -> Comparison:
    """Compares several models in one table and one figure.

    Of each: the memory of one input at rest and its law (`memory_function`, `fit_decay`), time constant and margin of its
    recurrences (`certify`), how large a random change of the recurrent weights moves outputs by less than 10%, its weights
    and the multiply-adds of a step, which are counted, never timed. With inputs also the memory, the exponent, the survival
    and the bits along them. A model that cannot be measured, or a side of it, is a gap in the table with the reason below.

    Args:
        models: by name: modules or functions, of numbers or of tokens, as `diagnose` takes them.
        inputs: sequences as the models read them, (rows, time, features) or tokens (rows, time); or by name, where models
            read different ones.
        input_size: number of input features where a model does not tell; None: what it tells.
        horizon: most steps to follow a memory at rest for.
        seed: of random inputs and changes.
        progress: called as `progress(text, done, total)` along the way.

    Returns:
        a Comparison: `table()`, `plot()`, and one row per model in `models`.

    Raises:
        ArgumentError: no models, or inputs by names that are not those of the models.

    Example:
        >>> import torch, holdfast
        >>> models = {"gru": torch.nn.GRU(1, 4, batch_first=True), "sum": lambda x: x.cumsum(1)}
        >>> [row.name for row in holdfast.compare(models, horizon=64).models]
        ['gru', 'sum']
    """
    positive(horizon=horizon)
    if not models:
        raise ArgumentError("models must be a dict with at least one model, as {'mine': model}, got none")
    given = dict(inputs) if isinstance(inputs, Mapping) else dict.fromkeys(models, inputs)
    if unknown := sorted(set(given) - set(models)):
        raise ArgumentError(f"inputs: expected names of models ({', '.join(models)}), got {', '.join(unknown)}")
    rows = []
    with random_states_kept():
        for k, (name, model) in enumerate(models.items()):
            if progress is not None:
                progress(name, k, len(models))
            torch.manual_seed(seed)
            rows.append(_row(name, model, given.get(name), _Choices(input_size, horizon, seed)))
    return Comparison(tuple(rows), inputs is not None)


@dataclass(frozen=True)
class _Choices:
    """What holds for every model."""

    input_size: int | None
    horizon: int
    seed: int


def _row(name: str, model: Callable[..., Any], inputs: Tensor | None, choices: _Choices) -> ComparedModel:
    row = ComparedModel(name, type(model).__name__)
    unseen: list[str] = []

    def look(what: str, at: Callable[[], Any]) -> Any:
        try:
            return at()
        except (HoldfastError, *INPUT_ERRORS) as error:
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            unseen.append(f"{what}: {line}")
            return None

    data = None if inputs is None else look("inputs", lambda: checked_inputs(model, inputs))
    found = None if data is None else look("memory on data", lambda: _memory_on_data(model, data, choices.seed))
    size = features_of(data) if choices.input_size is None else choices.input_size
    reading = look("model", lambda: read_model(model, size, choices.seed))
    if found is not None:
        row = _with_data(row, found)
    if reading is None:
        return replace(row, unseen=tuple(unseen))
    cost = cost_of(reading.model, lambda steps: random_inputs(reading, 1, steps, choices.seed))
    row = replace(row, weights=cost.weights, operations=cost.operations)
    if (memory := look("memory at rest", lambda: followed_impulse(reading, choices.horizon, choices.seed))) is not None:
        row = _with_memory(row, memory)
    if (edge := look("edge", lambda: _edge(reading, data, choices.seed))) is not None:
        row = _with_edge(row, edge)
    survival = look("survival", lambda: _survival(reading, data, choices.seed))
    if survival is not None:
        row = replace(row, survival=survival.random.share, bits=survival.bits)
    return replace(row, unseen=tuple(unseen))


def _memory_on_data(model: Callable[..., Any], data: Tensor, seed: int) -> DataMemory:
    return measure_on_data(model, data, None, seed, lambda done, total: None)


def _edge(reading: Reading, data: Tensor | None, seed: int) -> Edge:
    return look_at_edge(reading, LENGTH, seed, data=reading.along(data, EDGE_ROWS, EDGE_STEPS), run=False)


def _survival(reading: Reading, data: Tensor | None, seed: int) -> Any:
    x = reading.along(data, CHANGE_ROWS, CHANGE_STEPS)
    return look_at_survival(reading, LENGTH, seed, x, search_worst=False)


def _with_memory(row: ComparedModel, memory: Any) -> ComparedModel:
    fit: DecayFit = memory.fit
    rest = fit.envelope / max(float(fit.envelope[0]), 1e-300)
    law = fit.law if fit.constant is None else f"{fit.law}, {fit.constant[0]} {fit.constant[1]:.3g}"
    return replace(row, steps=memory.steps, law=law, lags=fit.time, left=rest)


def _with_data(row: ComparedModel, found: DataMemory) -> ComparedModel:
    if not len(found.shares):
        return row
    return replace(row, data_steps=found.steps, data_lags=found.lags, data_left=np.median(found.shares, axis=0))


def _with_edge(row: ComparedModel, edge: Edge) -> ComparedModel:
    along_data = [part.along.exponent for part in edge.parts if part.along is not None]
    lasting = [part.time_constant for part in edge.parts]
    # a negative time constant is one of growth, which lasts longest of all
    slowest = next((steps for steps in lasting if not steps >= 0), max(lasting))
    margin = edge.worst.margin
    return replace(
        row,
        time_constant=slowest,
        margin=margin if math.isfinite(margin) else None,
        exponent=max(along_data, default=None),
    )
