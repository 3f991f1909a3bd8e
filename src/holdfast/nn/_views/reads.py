"""What each recurrence of a model reads while the model runs, seen by hooks: where it rests, and along data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from holdfast.errors import ArgumentError
from holdfast.kernels.selective._watch import watching
from holdfast.nn._acceleration import accelerate_quietly, mixers_of
from holdfast.nn._call_arguments import first_known_size
from holdfast.nn._views.step_function import MODEL_ERRORS
from holdfast.nn._views.view import RecurrenceView

FIRST_STEPS, FURTHER = 64, 4  # of a run on zeros, and how many times longer while what is read still moves
MAX_STEPS = 4096
MAX_ZERO_STEPS = 2000  # of a run that shows what a recurrence does that does not rest
MAX_WORK = 2e10  # weights times steps of such a run
MOVED_SHARE = 1e-3  # of its size: what is read has come to rest where its last quarter moves by less
Zeros = Callable[[int], Tensor]


@dataclass(eq=False)
class Reads:
    """What was seen, by module: inputs (rows, time, features) and, of selective scans, step sizes and rates."""

    inputs: dict[nn.Module, Tensor] = field(default_factory=dict)
    steps: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def add(self, module: nn.Module, x: Tensor) -> None:
        """One call more: calls of a loop over time lie one behind the other."""
        before = self.inputs.get(module)
        fits = before is not None and before.shape[0] == x.shape[0] and before.shape[2:] == x.shape[2:]
        self.inputs[module] = torch.cat([before, x], 1) if before is not None and fits else x

    def add_steps(self, module: nn.Module, delta: Tensor, rates: Tensor) -> None:
        """The same of step sizes (rows, time, channels)."""
        before = self.steps.get(module)
        fits = before is not None and before[0].shape[0] == delta.shape[0]
        self.steps[module] = (torch.cat([before[0], delta], 1) if before is not None and fits else delta, rates)


@contextmanager
def watched(model: nn.Module, views: Sequence[RecurrenceView]) -> Iterator[Reads]:
    """Collects what the modules of the views read until the end.

    Args:
        model: what will be run.
        views: its recurrences.
    """
    reads = Reads()
    running: list[nn.Module] = []  # selective modules may be nested: the innermost took the step

    def before(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        x = next((part for part in (*given, *named.values()) if isinstance(part, Tensor | PackedSequence)), None)
        x = None if x is None else _batch_first(module, x)
        if x is not None and not torch.compiler.is_compiling():
            reads.add(module, x.detach())

    def watcher(delta: Tensor, rates: Tensor) -> None:
        if running and delta.numel():
            reads.add_steps(running[-1], delta, rates)

    handles: list[Any] = []
    for module in dict.fromkeys(view.module for view in views):
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
    for module in dict.fromkeys(view.module for view in views if view.selective):
        handles.append(module.register_forward_pre_hook(lambda m, _: running.append(m)))
        handles.append(module.register_forward_hook(lambda *_: _left(running), always_call=True))
    changed = accelerate_quietly(model) if mixers_of(model) else None  # transformers' own loop cannot be watched
    try:
        with torch.no_grad(), watching(watcher):
            yield reads
    finally:
        if changed is not None:
            changed.restore()
        for handle in handles:
            handle.remove()


def _left(running: list[nn.Module]) -> None:
    running.pop()


def _batch_first(module: nn.Module, x: Tensor | PackedSequence) -> Tensor | None:
    """(rows, time, features), or None for what is no sequence of vectors."""
    if isinstance(x, PackedSequence):
        return pad_packed_sequence(x, batch_first=True)[0]
    if not x.is_floating_point():
        return None
    if isinstance(module, nn.RNNCellBase):
        return x.unsqueeze(1) if x.ndim == 2 else None
    if isinstance(module, nn.RNNBase):
        x = x.unsqueeze(0 if module.batch_first else 1) if x.ndim == 2 else x
        x = x if module.batch_first else x.transpose(0, 1)
    return x if x.ndim == 3 else None


def settle_views(model: nn.Module, views: Sequence[RecurrenceView], zeros: Zeros | None = None) -> str | None:
    """Tells each view what it reads where the whole model rests on zero input; the reason where that cannot be seen.

    A layer behind another, or behind a bias, does not read zeros while the model does. The model has to be in evaluation
    mode and is put back by the caller.

    Args:
        model: the whole model.
        views: its recurrences; `resting_input` and `resting_steps` of each are set.
        zeros: makes the zero input of so many steps; None: by the size that the model tells, or token 0.
    """
    for view in views:
        view.resting_input = view.resting_steps = None
    # a linear recurrence moves alike whatever it reads, and a model that is the recurrence reads the zeros itself
    asked = [view for view in views if view.selective or (view.nonlinear and view.module is not model)]
    if not asked:
        return None
    makers = [zeros] if zeros is not None else _guessed(model)
    for make in makers:
        try:
            reads, still = _settled(model, asked, make)
        except MODEL_ERRORS:
            continue
        for view in asked:
            _tell(view, reads)
        return None if still else "on zero input what its recurrences read does not come to rest"
    return "the model could not be run on zeros, so each recurrence is looked at on zeros of its own"


def read_along(model: nn.Module, views: Sequence[RecurrenceView], inputs: Tensor) -> Reads:
    """What the recurrences read on data; ArgumentError where the model does not take them, or runs none of them.

    Args:
        model: the whole model, in evaluation mode.
        views: its recurrences.
        inputs: as the model takes them.
    """
    with watched(model, views) as reads:
        try:
            model(inputs)
        except MODEL_ERRORS as error:
            raise ArgumentError(f"the model failed on inputs of shape {tuple(inputs.shape)}: {error}") from error
    if not reads.inputs and not reads.steps:
        raise ArgumentError(
            f"inputs: expected a model that calls its recurrent modules on them, got {type(model).__name__}, which calls none; "
            "leave inputs out"
        )
    return reads


def reads_on_zeros(model: nn.Module, view: RecurrenceView, zeros: Zeros | None) -> Reads | None:
    """What one recurrence reads along a long run on zero input; None where the model cannot be run so.

    Args:
        model: the whole model, in evaluation mode.
        view: one of its recurrences.
        zeros: makes the zero input; None: by the size that the model tells.
    """
    weights = max(sum(p.numel() for p in model.parameters()), 1)
    # weights times steps is the work of a run: a large model gets a short one
    steps = max(FIRST_STEPS, min(MAX_ZERO_STEPS, int(MAX_WORK / weights)))
    for make in [zeros] if zeros is not None else _guessed(model):
        try:
            with watched(model, [view]) as reads:
                model(make(steps))
        except MODEL_ERRORS:
            continue
        return reads
    return None


def _tell(view: RecurrenceView, reads: Reads) -> None:
    if view.module in reads.steps:
        view.resting_steps = reads.steps[view.module][0][0, -1].detach().cpu().double()
    if view.module in reads.inputs:
        view.resting_input = reads.inputs[view.module][0, -1].detach().cpu().double()


def _settled(model: nn.Module, views: Sequence[RecurrenceView], make: Zeros) -> tuple[Reads, bool]:
    """What is read at the end of a run on zeros that is prolonged until nothing moves, and whether that was reached."""
    weights = max(sum(p.numel() for p in model.parameters()), 1)
    most = max(FIRST_STEPS, min(MAX_STEPS, int(MAX_WORK / weights), getattr(model, "longest_input", None) or MAX_STEPS))
    steps = min(FIRST_STEPS, most)
    while True:
        with watched(model, views) as reads:
            model(make(steps))
        # what is read has to stand still, and so do the step sizes of selective layers
        seen = [*reads.inputs.values(), *(delta for delta, _ in reads.steps.values())]
        if all(_stands(x) for x in seen):
            return reads, True
        if steps >= most:
            return reads, False
        steps = min(most, steps * FURTHER)


def _stands(x: Tensor) -> bool:
    tail = x[:, -max(1, x.shape[1] // 4) :].double()
    return bool((tail - tail[:, -1:]).abs().max() <= MOVED_SHARE * max(float(x.abs().max()), 1e-30))


def _guessed(model: nn.Module) -> list[Zeros]:
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros((), device="cpu"))
    size = first_known_size(model)
    time_first = isinstance(model, nn.RNNBase) and not model.batch_first

    def numbers(steps: int) -> Tensor:
        shape = (steps, 1) if time_first else (1, steps)
        return torch.zeros(*shape, size or 1, dtype=weight.dtype, device=weight.device)

    def tokens(steps: int) -> Tensor:
        return torch.zeros(1, steps, dtype=torch.long, device=weight.device)

    reads_tokens = any(isinstance(module, nn.Embedding) for module in model.modules())
    return [tokens, numbers] if reads_tokens else [numbers]
