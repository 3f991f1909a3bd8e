"""diagnose: one call that looks at a model from every side and says what to do."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast.decay import TaskStudy, study_task
from holdfast.diagnosis._advice import Advice, advise
from holdfast.diagnosis._candidates import Evidence, candidates
from holdfast.diagnosis._forgetting import ahead_of, measure_memory
from holdfast.diagnosis._learning import (
    FEW_RUN_STEPS,
    RATES,
    RUN_STEPS,
    Learning,
    look_at_learning,
    release_copies,
    signs_of_training,
)
from holdfast.diagnosis._on_data import (
    CHANGE_ROWS,
    CHANGE_STEPS,
    EDGE_ROWS,
    EDGE_STEPS,
    checked_inputs,
    measure_on_data,
)
from holdfast.diagnosis._reaching import USUAL_LR, USUAL_STEPS, TrainingPlan, confirmed, look_at_reach
from holdfast.diagnosis._reading import HUGE, Reading, count_weights, features_of, on_our_kernels, read_model, runnable
from holdfast.diagnosis._result import Diagnosis
from holdfast.diagnosis._samples import Samples, data_samples, stand_in_samples, task_form
from holdfast.diagnosis._trial import MAX_RATE, USUAL_RATE, Trials
from holdfast.diagnosis._weights import DRAWS, FEW_DRAWS, Edge, Survival, look_at_edge, look_at_survival
from holdfast.errors import ArgumentError, HoldfastError
from holdfast.memory import DataMemory
from holdfast.memory._curve import NotCausalError, NotRepeatableError
from holdfast.memory._subject import INPUT_ERRORS
from holdfast.memory.preserve import modules_of, random_states_kept, undisturbed
from holdfast.nn import network_inside
from holdfast.nn._call_arguments import first_known_size
from holdfast.nn._inside import recurrent_modules

Part = TypeVar("Part")
LENGTH = 64  # steps of the sequences on which weights are changed
# share of the time that each part takes, of small models and of large ones, for a progress bar
PART_SHARES = {
    "memory": 25,
    "memory on your data": 10,
    "edge": 5,
    "change of the weights": 10,
    "task": 10,
    "training": 15,
    "reach": 5,
    "trying advice": 20,
}


@checked
def diagnose(
    model: Any,
    *,
    input_size: int | None = None,
    data: tuple[Tensor, Tensor] | None = None,
    inputs: Tensor | None = None,
    lengths: Tensor | None = None,
    needs: int | None = None,
    lr: float | None = None,
    steps: int | None = None,
    horizon: int = 4096,
    name: str | None = None,
    seed: int = 0,
    progress: Callable[[str, int | None, int | None], None] | None = None,
) -> Diagnosis:
    """Diagnoses a model: memory, stability, learning rate, and which call helps.

    How far it remembers (`memory_function`, until 1% is left), how near its worst recurrence is to the edge (`certify`),
    how large a change of its recurrent weights it survives (`perturbation_error`), what training does to it at its start,
    and with data the memory that the task needs. With `inputs` (or `data`) memory, edge and survival are also measured along
    them, by exchanging one input for another: at rest and on data are reported side by side, since a nonlinear model may keep
    an input for quite another time where it works. Every call under ADVICE was run on a copy, and that copy trained beside
    an unchanged one; what did not help is dropped. All of it runs on copies; the model stays unchanged. What cannot be measured
    is listed, and the rest still runs.

    Args:
        model: any sequence model: a module or a function, batch first; torch's RNN, GRU and LSTM in any layout, models of
            tokens (transformers' too), models that keep a state or read both ways, classifiers that pool. Or an object
            that holds one, such as a forecaster or a policy (`holdfast.nn.network_inside`). Of a module that takes no
            tensor alone its first recurrence is looked at, and the screen says so.
        input_size: number of input features; None: what the model tells.
        data: inputs (rows, time, features) or tokens (rows, time), and targets: numbers (rows, time, outputs), or
            (rows, outputs) where a sequence has one answer; or class labels (rows, time) or (rows,), as integers.
        inputs: sequences as the model reads them where it works, without targets: numbers (rows, time, features) or tokens
            (rows, time); None: those of `data`.
        lengths: of the rows of `inputs`, where they are padded.
        needs: steps that the model is to remember; None: what the data need.
        lr: learning rate that it will be trained at, for how far training can lengthen its memory; None is 1e-3.
        steps: optimizer steps that it will be trained for; None is 1,000.
        horizon: most steps to follow its memory for.
        name: what to call it; None is its class.
        seed: of random inputs and changes.
        progress: called as `progress(text, done, total)` along the way.

    Returns:
        a Diagnosis; `print` shows the screen, `advice` holds the calls that helped a copy.

    Raises:
        ArgumentError: `model` is neither a module nor a function, or data have wrong shapes. What cannot be measured
            is listed in `unseen` instead.

    Example:
        >>> import torch, holdfast
        >>> _ = torch.manual_seed(0)
        >>> report = holdfast.diagnose(torch.nn.RNN(1, 4, batch_first=True), horizon=64)
        >>> [one.kind for one in report.memory]
        ['impulse', 'step']
    """
    positive(horizon=horizon)
    called = name or type(model).__name__
    model = model if callable(model) else network_inside(model)
    if data is not None:
        data = _pair(data)
        inputs = data[0] if inputs is None else inputs
    if inputs is not None:
        inputs = checked_inputs(model, inputs, lengths)
    positive(needs=needs, steps=steps)
    if lr is not None and not 0 < lr < math.inf:
        raise ArgumentError(f"lr: expected a number above 0, got {lr}")
    plan = TrainingPlan(lr or USUAL_LR, steps or USUAL_STEPS, given=lr is not None or steps is not None)
    with random_states_kept(), _protected(model):
        torch.manual_seed(seed)
        wanted = _Wanted(input_size, data, inputs, lengths, needs, plan, horizon, seed)
        return _Examination(model, wanted, progress or _quiet).diagnosis(called)


@contextmanager
def _protected(model: Callable[..., Any]) -> Iterator[None]:
    """Of a function the modules that it runs are put back at the end; a module is copied instead."""
    if isinstance(model, nn.Module) or not modules_of(model):
        yield
        return
    with undisturbed(model):
        yield


@dataclass(frozen=True, eq=False)
class _Wanted:
    """What was asked for, as `diagnose` takes it."""

    input_size: int | None
    data: tuple[Tensor, Tensor] | None
    inputs: Tensor | None
    lengths: Tensor | None
    needs: int | None
    plan: TrainingPlan
    horizon: int
    seed: int


class _Examination:
    """One side of a model after the other, and what could not be looked at."""

    def __init__(
        self, model: Callable[..., Any], wanted: _Wanted, announce: Callable[[str, int | None, int | None], None]
    ) -> None:
        self.model, self.wanted, self.announce = model, wanted, announce
        self.unseen: list[str] = []
        self.seconds: dict[str, float] = {}
        self.done = 0  # of 100, by the time that parts take

    def look(self, what: str, at: Callable[..., Part], *arguments: Any) -> Part | None:
        """One side; None and a line under NOT SEEN where it cannot be looked at."""
        self.announce(what, self.done, 100)
        start = time.process_time()
        try:
            return at(*arguments)
        except (HoldfastError, *INPUT_ERRORS) as error:
            self.unseen.append(f"{what}: {_line(error)}")
            return None
        finally:
            self.seconds[what] = time.process_time() - start
            self.done += PART_SHARES[what]
            if isinstance(self.model, nn.Module):
                release_copies(self.model)

    def diagnosis(self, called: str) -> Diagnosis:
        """Everything, in the order of the screen."""
        wanted = self.wanted
        size = features_of(wanted.inputs) if wanted.input_size is None else wanted.input_size
        try:
            reading = read_model(self.model, size, wanted.seed)
        except (HoldfastError, *INPUT_ERRORS) as error:
            if self._looks_at_part(error):
                return self.diagnosis(called)
            self.unseen.append(f"the model could not be run: {_line(error)}")
            return self._of_data_alone(called)
        left_out = _left_out(reading)
        self.unseen += left_out
        if left_out:
            self.announce("; ".join(left_out), 0, 100)
        measured = self.look("memory", measure_memory, reading, wanted.horizon, wanted.seed)
        memory, notes = measured if measured is not None else ([], [])
        found = self._on_data()
        edge = self.look("edge", self._edge, reading)
        survival = self.look("change of the weights", self._survival, reading)
        samples = self._data_samples(reading)
        task = None if wanted.data is None else self.look("task", self._task, samples)
        needs = wanted.needs if wanted.needs is not None else task.steps if task is not None and task.tells else None
        # by comparison with one that is rebuilt
        compared = isinstance(self.model, nn.Module) and not reading.huge
        trained = signs_of_training(self.model, samples) if compared else None  # type: ignore[arg-type]
        if samples is None and trained is None and not reading.huge:
            samples = stand_in_samples(reading, needs, wanted.seed)
        samples = None if reading.huge else samples
        learning = None if samples is None else self.look("training", self._learning, reading, samples)
        # not asked of a trained model: it starts from gates alone, and the screen tells what memory they have together
        asked = trained is None or wanted.plan.given or needs is not None
        reaching = self.look("reach", look_at_reach, self.model, wanted.plan, needs) if asked else None
        given = samples is not None and samples.given
        evidence = Evidence(self.model, memory, edge, survival, learning, needs, trained, given, reaching)
        advice, dropped, untried = self._advice(evidence, None if learning is None else samples)
        return Diagnosis(
            name=called,
            about=_about(self.model, reading),
            memory=tuple(memory),
            on_data=found,
            edge=edge,
            survival=survival,
            learning=learning,
            task=task,
            needs=needs,
            reaching=confirmed(reaching, [one.call for one in advice], dropped),
            advice=tuple(advice),
            dropped=tuple(dropped),
            untried=tuple(untried),
            unseen=tuple(self.unseen),
            notes=(*reading.notes, *notes, *_reduced(reading), *self._remarks(trained, given)),
            trained=trained is not None,
            seconds=dict(self.seconds),
        )

    def _looks_at_part(self, error: BaseException) -> bool:
        """Turns to the first recurrence of a model that could not be run as a whole; whether there is one."""
        # one that runs and is noisy, or is given a wrong size, is the user's to fix
        if isinstance(error, (NotRepeatableError, NotCausalError)) or self.wanted.input_size is not None:
            return False
        parts = recurrent_modules(self.model) if isinstance(self.model, nn.Module) else {}
        if not parts or "" in parts:
            return False
        whole = type(self.model).__name__
        name, self.model = next(iter(parts.items()))
        others = f"; it also has {', '.join(list(parts)[1:])}" if len(parts) > 1 else ""
        self.unseen.append(
            f"the whole {whole}, which could not be run on a tensor ({_line(error)}): model is its {name}{others}"
        )
        size = first_known_size(self.model)
        x = self.wanted.inputs
        if x is not None and (not x.is_floating_point() or x.shape[-1] != size):
            self.unseen.append(f"memory on your data: {name} takes {size} inputs, the data have other ones")
            x = None
        self.wanted = replace(self.wanted, input_size=None, inputs=x)
        return True

    def _on_data(self) -> DataMemory | None:
        wanted, what = self.wanted, "memory on your data"
        if wanted.inputs is None:
            return None

        def progress(done: int, total: int) -> None:
            self.announce(f"{what}, {done} of {total} places", self.done, 100)

        return self.look(what, measure_on_data, self.model, wanted.inputs, wanted.lengths, wanted.seed, progress)

    def _edge(self, reading: Reading) -> Edge:
        data = reading.along(self.wanted.inputs, EDGE_ROWS, EDGE_STEPS)
        return look_at_edge(reading, LENGTH, self.wanted.seed, data=data)

    def _survival(self, reading: Reading) -> Survival:
        data = reading.along(self.wanted.inputs, CHANGE_ROWS, CHANGE_STEPS)
        return look_at_survival(reading, LENGTH, self.wanted.seed, data)

    def _learning(self, reading: Reading, samples: Samples) -> Learning:
        return look_at_learning(reading, self._subject(reading, samples), samples)

    def _of_data_alone(self, called: str) -> Diagnosis:
        task = None if self.wanted.data is None else self.look("task", self._task, None)
        return Diagnosis(
            called, _about(self.model, None), needs=self.wanted.needs, task=task, unseen=tuple(self.unseen)
        )

    def _data_samples(self, reading: Reading) -> Samples | None:
        """The user's data where the model runs on them and answers what they ask; otherwise it is said."""
        if self.wanted.data is None or not isinstance(self.model, nn.Module):
            return None
        try:
            return data_samples(copy.deepcopy(self.model), reading, self.wanted.data)
        except (HoldfastError, *INPUT_ERRORS) as error:
            self.unseen.append(f"training on your data: {_line(error)}; a stand-in task is used instead")
            return None

    def _subject(self, reading: Reading, samples: Samples) -> nn.Module:
        """What is run on the samples."""
        if not samples.given or not isinstance(self.model, nn.Module):
            return reading.model
        return runnable(on_our_kernels(copy.deepcopy(self.model)))

    def _task(self, samples: Samples | None) -> TaskStudy:
        assert self.wanted.data is not None
        task = study_task(*task_form(self.wanted.data, samples))
        if samples is None or not isinstance(self.model, nn.Module):
            return task
        error = samples.error_beside_kernel(runnable(copy.deepcopy(self.model)), task.lags)
        return replace(task, model_error=error)

    def _advice(self, evidence: Evidence, samples: Samples | None) -> tuple[list[Advice], list[str], list[str]]:
        if not isinstance(self.model, nn.Module):
            return [], [], []
        if count_weights(self.model) > HUGE:
            return [], [], [candidate.call for candidate in candidates(evidence)]
        self.announce("trying advice", 100 - PART_SHARES["trying advice"], 100)
        start = time.process_time()
        learning, edge = evidence.learning, evidence.edge
        safe = USUAL_RATE if learning is None else learning.safe or min(RATES)
        margin = None if edge is None else edge.worst.margin
        trials = Trials(
            self.model,
            self.wanted.input_size,
            samples,
            rate=min(safe, MAX_RATE),
            memory=ahead_of(evidence.memory),
            margin=margin,
            horizon=self.wanted.horizon,
            seed=self.wanted.seed,
        )
        made = advise(evidence, trials)
        self.seconds["trying advice"] = time.process_time() - start
        return made

    def _remarks(self, trained: str | None, given: bool) -> list[str]:
        if trained is not None:
            blind = "" if given else "; without its data no change is proposed, since none could be tested: pass data="
            return [f"the model counts as trained ({trained}), so no advice overwrites its weights{blind}"]
        if not isinstance(self.model, nn.Module) and not modules_of(self.model):
            return [
                "the model is a function without a visible module, so what it keeps between calls cannot be restored"
            ]
        return []


def _reduced(reading: Reading) -> list[str]:
    if not reading.large:
        return []
    rates = "" if reading.huge else f", {FEW_RUN_STEPS} steps of training at each learning rate instead of {RUN_STEPS}"
    return [
        f"the model is large ({count_weights(reading.model):,} weights), so less was run: {FEW_DRAWS} random changes "
        f"of the weights at each size instead of {DRAWS}{rates}, and fewer tokens and settling steps"
    ]


def _pair(data: Any) -> tuple[Tensor, Tensor]:
    if len(data) != 2:
        raise ArgumentError(f"data must be (inputs, targets), got {len(data)} items")
    inputs, targets = (torch.as_tensor(part) for part in data)
    if inputs.ndim < 2 or targets.ndim < 1 or len(inputs) != len(targets):
        raise ArgumentError(
            f"data: expected inputs (rows, time, features) or tokens (rows, time), and one target for each row, got "
            f"{tuple(inputs.shape)} and {tuple(targets.shape)}"
        )
    return inputs, targets


def _left_out(reading: Reading) -> list[str]:
    """What is not looked at of a huge model, and why, said before anything is measured."""
    if not reading.huge:
        return []
    count = count_weights(reading.model)
    return [
        f"training and advice are left out: {count:,} weights, and a copy in training takes {16 * count / 1e9:.0f} GB; "
        "diagnose a smaller model of the same kind for them"
    ]


def _about(model: Any, reading: Reading | None) -> str:
    count = count_weights(model)
    kind = type(model).__name__
    read = "" if reading is None else f", reads {reading.inputs}"
    return f"{kind}, {count:,} weights{read}"


def _line(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return line if isinstance(error, HoldfastError) else f"{type(error).__name__}: {line}"


def _quiet(text: str, done: int | None, total: int | None) -> None:
    """Shows nothing."""
