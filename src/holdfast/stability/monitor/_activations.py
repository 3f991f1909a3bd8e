"""The largest state, and the step sizes of selective recurrences, seen by hooks during forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.kernels.selective._watch import watching
from holdfast.nn import RecurrenceView

MAX_SAMPLES = 1 << 12  # step sizes of one call that quantiles are taken of
STEP_SIZE_LEVELS = (0.5, 0.99)


class Activations:
    """Listens to the modules of recurrences while they are trained: outputs and states at every step.

    Step sizes cost a pass over all of them, so only a step in `every` looks. A copied or unpickled model has deaf hooks.

    Args:
        views: the recurrences.
        every: steps between two looks at step sizes.
    """

    def __init__(self, views: Sequence[RecurrenceView], every: int) -> None:
        self.views, self.every = views, every
        self._calls = 0
        self._peaks: list[Tensor] = []
        self._step_sizes: list[Tensor] = []
        self._handles: list[Any] = []

    def open(self) -> None:
        """Begins to listen."""
        if self._handles:
            return
        for module in dict.fromkeys(view.module for view in self.views):
            self._handles.append(module.register_forward_hook(_Hook(self._after)))
        for view in self.views:
            if view.selective:
                stack = ExitStack()
                self._handles.append(
                    view.module.register_forward_pre_hook(_Hook(lambda m, _, s=stack: self._enter(m, s)))
                )
                self._handles.append(
                    view.module.register_forward_hook(_Hook(lambda *_, s=stack: s.close()), always_call=True)
                )
            # the module that projects inputs to step sizes before softplus, where a library calls one
            owner = "" if view.steps is None else (view.steps.bias or "").rpartition(".")[0]
            if view.selective and owner:
                self._handles.append(view.module.get_submodule(owner).register_forward_hook(_Hook(self._projected)))

    def close(self) -> None:
        """Stops listening."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def read(self) -> tuple[float, tuple[float, ...]]:
        """The largest |state| or output, and quantiles of step sizes, since the last call; NaN where nothing was seen."""
        peak = float(torch.stack(self._peaks).max()) if self._peaks else math.nan
        levels = (math.nan,) * len(STEP_SIZE_LEVELS)
        if self._step_sizes:
            ordered = torch.cat(self._step_sizes).cpu().sort().values
            levels = tuple(float(ordered[round(q * (len(ordered) - 1))]) for q in STEP_SIZE_LEVELS)
        self._peaks, self._step_sizes = [], []
        self._calls += 1
        return peak, levels

    def _due(self, module: nn.Module) -> bool:
        return _trained(module) and self._calls % self.every == 0

    def _after(self, module: nn.Module, given: Any, output: Any) -> None:
        if _trained(module):
            for tensor in _tensors(output):
                low, high = tensor.detach().aminmax()
                self._peaks.append(torch.maximum(-low, high).float().cpu())

    def _enter(self, module: nn.Module, stack: ExitStack) -> None:
        if self._due(module):
            stack.enter_context(watching(lambda delta, _: self._keep(delta)))

    def _projected(self, module: nn.Module, given: Any, output: Any) -> None:
        if self._due(module):
            self._keep(functional.softplus(output.detach()))

    def _keep(self, step_sizes: Tensor) -> None:
        flat = step_sizes.detach().reshape(-1)
        self._step_sizes.append(flat[:: -(-len(flat) // MAX_SAMPLES) or 1].float())


class _Hook:
    """A hook that is deaf in a copy of its module: what a monitor listens to is not part of the model."""

    def __init__(self, function: Any = None) -> None:
        self.function = function

    def __call__(self, *args: Any) -> None:
        if self.function is not None and not torch.compiler.is_compiling():
            self.function(*args)

    def __reduce__(self) -> Any:
        return _Hook, ()


def _trained(module: nn.Module) -> bool:
    return module.training and torch.is_grad_enabled()


def _tensors(output: Any) -> list[Tensor]:
    parts = output if isinstance(output, tuple | list) else [output]
    nested = [_tensors(part) if isinstance(part, tuple | list) else [part] for part in parts]
    return [t for group in nested for t in group if isinstance(t, Tensor) and t.is_floating_point() and t.numel()]
