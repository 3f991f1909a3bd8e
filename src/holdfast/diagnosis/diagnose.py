"""diagnose: one call that looks at a model from every side and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast.diagnosis.advice import Findings, advise
from holdfast.diagnosis.forgetting import measure_memory
from holdfast.diagnosis.learning import look_at_learning
from holdfast.diagnosis.reading import Reading, read_model
from holdfast.diagnosis.result import Diagnosis
from holdfast.diagnosis.task import TaskMemory, look_at_task
from holdfast.diagnosis.weights import look_at_edge, look_at_survival
from holdfast.errors import ArgumentError, HoldfastError
from holdfast.memory._subject import INPUT_ERRORS, first_output

Found = TypeVar("Found")
LENGTH = 64  # steps of the sequences on which weights are changed and gradients taken


@checked
def diagnose(
    model: Callable[..., Any],
    *,
    input_size: int | None = None,
    data: tuple[Tensor, Tensor] | None = None,
    needs: int | None = None,
    horizon: int = 4096,
    name: str | None = None,
    seed: int = 0,
    progress: Callable[[str, int | None, int | None], None] | None = None,
) -> Diagnosis:
    """Looks at a model from every side and says in plain words what is wrong and which call helps.

    How far it remembers (`memory_function`, until 1% is left), how near its worst recurrence is to the edge (`certify`),
    how large a change of its recurrent weights it survives (`perturbation_error`), what training does to it at its start,
    and with data the memory that the task needs. A copy of the model is looked at; the model stays as it is. What cannot
    be looked at is said, and the rest is done all the same.

    Args:
        model: any sequence model: a module or a function, batch first; torch's RNN, GRU and LSTM in any layout, models of
            tokens (transformers' too), models that keep a state or read both ways, classifiers that pool.
        input_size: number of input features; None: what the model tells.
        data: inputs (rows, time, features) and targets (rows, time, outputs), or (rows, outputs) at the end of each.
        needs: steps that the model is to remember; None: what the data need.
        horizon: most steps to follow its memory for.
        name: what to call it; None is its class.
        seed: of random inputs and changes.
        progress: called as `progress(text, done, total)` along the way.
    """
    positive(horizon=horizon)
    if data is not None:
        data = _pair(data)
    if needs is not None:
        positive(needs=needs)
    with torch.random.fork_rng(devices=[]):
        return _looked_at(
            model, input_size, data, needs, horizon, name or type(model).__name__, seed, progress or _quiet
        )


def _looked_at(
    model: Callable[..., Any], input_size: int | None, data: tuple[Tensor, Tensor] | None, needs: int | None, horizon: int,
    called: str, seed: int, announce: Callable[[str, int | None, int | None], None],
) -> Diagnosis:  # fmt: skip
    try:
        reading = read_model(model, input_size, seed)
    except (HoldfastError, *INPUT_ERRORS) as error:
        why = f"the model could not be run: {_line(error)}"
        return Diagnosis(called, _about(model, None), needs=needs, task=_task(data), unseen=(why,))
    unseen: list[str] = []

    def look(what: str, step: int, at: Callable[..., Found], *arguments: Any) -> Found | None:
        announce(what, step, 5)
        try:
            return at(reading, *arguments)
        except (HoldfastError, *INPUT_ERRORS, NotImplementedError) as error:
            unseen.append(f"{what}: {_line(error)}")
            return None

    measured = look("memory", 0, measure_memory, horizon, seed)
    memory, notes = measured if measured is not None else ([], [])
    edge = look("edge", 1, look_at_edge, LENGTH, seed)
    survival = look("change of the weights", 2, look_at_survival, LENGTH, seed)
    announce("task", 3, 5)
    task = _task(data)
    learning = look("training", 4, look_at_learning, LENGTH, seed, _for_training(reading, data))
    wanted = needs if needs is not None else task.steps if task is not None and task.tells else None
    findings = Findings(model, memory, edge, survival, learning, wanted)
    return Diagnosis(
        name=called,
        about=_about(model, reading),
        memory=tuple(memory),
        edge=edge,
        survival=survival,
        learning=learning,
        task=task,
        needs=wanted,
        advice=tuple(advise(findings)),
        unseen=tuple(unseen),
        notes=(*reading.notes, *notes),
    )


def _pair(data: Any) -> tuple[Tensor, Tensor]:
    if len(data) != 2:
        raise ArgumentError(f"data must be (inputs, targets), came {len(data)} items")
    inputs, targets = (torch.as_tensor(part) for part in data)
    return inputs, targets


def _task(data: tuple[Tensor, Tensor] | None) -> TaskMemory | None:
    return None if data is None else look_at_task(*data)


def _for_training(reading: Reading, data: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
    """The data where they fit the model's outputs at every step; otherwise the stand-in is taken."""
    if data is None or data[1].ndim != 3 or data[0].shape[-1] != reading.input_size:
        return None
    weight = next(reading.model.parameters(), None)
    if weight is None:
        return None
    x, y = (part.to(weight.device, weight.dtype) for part in data)
    with torch.no_grad():
        fits = first_output(reading.model(x[:1, :2])).shape[-1] == y.shape[-1]
    return (x, y) if fits else None


def _about(model: Any, reading: Reading | None) -> str:
    count = sum(p.numel() for p in model.parameters()) if isinstance(model, nn.Module) else 0
    kind = type(model).__name__
    read = "" if reading is None else f", reads {reading.inputs}"
    return f"{kind}, {count:,} weights{read}"


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _quiet(text: str, done: int | None, total: int | None) -> None:
    """Shows nothing."""
