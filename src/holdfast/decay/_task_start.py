"""A model's modes and gates started from given time constants, in place and reversibly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from holdfast.errors import ArgumentError
from holdfast.nn import RecurrenceView, recurrences


@dataclass(frozen=True, eq=False, repr=False)
class TaskStart:
    """What was started, by the paths of the recurrences; `undo()` takes it back.

    Args:
        changed: the time constants of each recurrence before and after, in steps to 1/e.
        notes: which recurrences were left as they are, and why.
        _undo: the steps that `undo` takes.
    """

    changed: dict[str, tuple[Float64[np.ndarray, ...], Float64[np.ndarray, ...]]]
    notes: tuple[str, ...] = ()
    _undo: tuple[Callable[[], None], ...] = ()

    def undo(self) -> None:
        """Puts the weights back that were changed, as they were."""
        for step in reversed(self._undo):
            step()

    def __repr__(self) -> str:
        told = [
            f"{path or 'model'} {_range(old)} -> {_range(new)}" for path, (old, new) in list(self.changed.items())[:3]
        ]
        more = "" if len(self.changed) <= 3 else f" and {len(self.changed) - 3} more"
        return f"TaskStart(time constants in steps: {'; '.join(told)}{more})"


def _range(values: np.ndarray) -> str:
    return f"{values.min():.3g} to {values.max():.3g}"


def start_modes(model: nn.Module, time_constants: np.ndarray) -> TaskStart:
    """Gives every recurrence modes that follow the time constants; all of them, or none where one fails.

    Frozen weights stay as they are, and of weights that several recurrences share the first decides.

    Args:
        model: the model, changed in place.
        time_constants: in steps to 1/e.
    """
    views = [view for view in recurrences(model) if not view.stated]
    if not views:
        raise ArgumentError(
            f"model must have a recurrence that holdfast recognizes, got a {type(model).__name__} without one; describe its "
            "step with holdfast.nn.StepFunction"
        )
    steps = torch.from_numpy(np.asarray(time_constants, dtype=np.float64))
    changed: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    undo: list[Callable[[], None]] = []
    notes: list[str] = []
    seen: set[int] = set()
    try:
        for view in views:
            why = _left_alone(view, seen)
            if why is not None:
                notes.append(why)
                continue
            old = _numbers(view)
            undo.append(_set(view, steps))
            changed[view.path] = (old, _numbers(view))
    except BaseException:
        for step in reversed(undo):
            step()
        raise
    if not changed:
        raise ArgumentError(f"model: no start can be set for any of its recurrences; {'; '.join(notes)}")
    return TaskStart(changed, tuple(notes), tuple(undo))


def _left_alone(view: RecurrenceView, seen: set[int]) -> str | None:
    """Why a view is not touched; None where it is, and then its weights count as seen."""
    name = view.path or "the recurrence"
    own = view.time_weights()
    if not own:
        return f"{name}: {view.no_modes}"
    if not any(weight.requires_grad for weight in own):
        return f"{name}: its weights are frozen"
    if any(id(weight) in seen for weight in own):
        return f"{name}: it shares its weights with a recurrence before it"
    seen.update(map(id, own))
    return None


def _set(view: RecurrenceView, steps: Tensor) -> Callable[[], None]:
    """Sets the time constants, frozen weights apart; gives what puts weights and constants of parameterizations back."""
    held = [(weight, weight.detach().clone()) for weight in view.module.parameters()]
    forms = [_Form(m, form) for m in view.module.modules() if (form := m._modules.get("parameterization")) is not None]
    try:
        view.set_time_constants(steps)
    except BaseException:
        _restore(held, forms)
        raise
    _restore([(weight, value) for weight, value in held if not weight.requires_grad], [])
    moved = [(weight, value) for weight, value in held if not torch.equal(weight.detach(), value)]
    return partial(_restore, moved, forms)


class _Form:
    """The parameterization that a module has, with its buffers: a normal form keeps its basis in one."""

    def __init__(self, module: nn.Module, form: nn.Module) -> None:
        self.module, self.form = module, form
        self.buffers = {name: buffer.clone() for name, buffer in form.named_buffers(recurse=False)}

    def put_back(self) -> None:
        self.module.parameterization = self.form
        for name, value in self.buffers.items():
            setattr(self.form, name, value)


@torch.no_grad()
def _restore(weights: Iterable[tuple[Tensor, Tensor]], forms: Iterable[_Form]) -> None:
    for form in forms:
        form.put_back()
    for weight, value in weights:
        weight.copy_(value)


def _numbers(view: RecurrenceView) -> np.ndarray:
    return view.time_constants().detach().cpu().double().numpy()
