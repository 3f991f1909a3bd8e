"""How a model is called on data: checked first, batch first on both sides, with the hidden states that can be seen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ArgumentError, ShapeError
from holdfast.memory._checks import refuse_unrepeatable
from holdfast.memory._curve import ModelError
from holdfast.memory._options import Run
from holdfast.memory._subject import (
    INPUT_ERRORS,
    first_float,
    first_real,
    refuse_time_first,
    tolerance_of,
    widened_copy,
)
from holdfast.memory.preserve import modules_of


@dataclass(eq=False)
class Runner:
    """Calls a model on data, batch first on both sides, in the dtype of its weights."""

    model: Callable[..., Any]
    time_first: bool
    dtype: torch.dtype | None
    device: torch.device
    takes_lengths: bool
    numbers: int = 1  # in the outputs of one row

    @classmethod
    def of(cls, model: Callable[..., Any], run: Run, double: bool) -> Runner:
        """The model as the options say; a float64 copy with `double`."""
        if not callable(model):
            raise ArgumentError(f"model must be a module or a function of tensors, got {type(model).__name__}")
        if double and not isinstance(model, nn.Module):
            raise ArgumentError(
                "double=True needs an nn.Module; give a function float64 inputs and Run(dtype=torch.float64)"
            )
        own = widened_copy(model) if double and isinstance(model, nn.Module) else model
        refuse_time_first(own, run.layout == "time_first")
        weight = first_float(own)
        dtype = run.dtype or (None if weight is None else weight.dtype)
        device = torch.device(run.device or ("cpu" if weight is None else weight.device))
        forward = own.forward if isinstance(own, nn.Module) else own
        return cls(own, run.layout == "time_first", dtype, device, _has_argument(forward, "lengths"))

    def checked(self, inputs: Tensor) -> Tensor:
        """Inputs with the batch first, in the dtype that the model takes; errors name what is wrong with them."""
        x = inputs.transpose(0, 1) if self.time_first and inputs.ndim > 1 else inputs
        if x.ndim < 2 or x.shape[0] < 1 or x.shape[1] < 2:
            raise ShapeError(
                "inputs: expected numbers (rows, time, features) or tokens (rows, time) with at least 2 steps, got "
                f"{tuple(inputs.shape)}"
            )
        if x.is_complex() or x.dtype == torch.bool:
            raise ArgumentError(f"inputs: expected real numbers or tokens, got {x.dtype}")
        if x.is_floating_point():
            return _finite(x).to(self.device, self.dtype or x.dtype)
        return self._tokens(x)

    def _tokens(self, x: Tensor) -> Tensor:
        tables = [m for root in modules_of(self.model) for m in root.modules() if isinstance(m, nn.Embedding)]
        if not tables:
            return x.to(self.device, self.dtype or torch.get_default_dtype())  # whole numbers, and no model of tokens
        low, high = int(x.min()), int(x.max())
        if low < 0 or high >= tables[0].num_embeddings:
            raise ArgumentError(
                f"inputs: expected tokens from 0 to {tables[0].num_embeddings - 1}, got {low} to {high}"
            )
        return x.to(self.device).long()

    def row_lengths(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """One number per row, the whole length where none are given."""
        if lengths is None:
            return torch.full((len(x),), x.shape[1])
        lengths = lengths.cpu().long()
        if lengths.shape != (len(x),) or int(lengths.min()) < 1 or int(lengths.max()) > x.shape[1]:
            raise ArgumentError(
                f"lengths: expected {len(x)} numbers from 1 to {x.shape[1]}, got shape {tuple(lengths.shape)}"
                + (f", {int(lengths.min())} to {int(lengths.max())}" if lengths.numel() else "")
            )
        return lengths

    def eps(self, y: Tensor) -> float:
        """Relative rounding of the outputs."""
        return torch.finfo(y.dtype).eps

    def answers_each_step(self, x: Tensor) -> bool:
        """Whether outputs are as long as inputs, at two lengths; ModelError for outputs of another length."""
        steps = x.shape[1]
        lengths = torch.full((min(2, len(x)),), steps) if self.takes_lengths else None
        y = self(x[:2], lengths)
        refuse_unrepeatable(y, self(x[:2], lengths), tolerance_of(y, torch.finfo(y.dtype).eps))
        self.numbers = max(y[0].numel(), x[0].numel())
        shorter = max(1, steps - max(1, steps // 4))
        try:
            short = self(x[:2, :shorter], None if lengths is None else lengths.clamp(max=shorter))
        except ModelError:  # a model of one length
            return y.ndim > 1 and y.shape[1] == steps
        if y.shape == short.shape:
            return False
        if y.ndim > 1 and y.shape[1] == steps and short.shape[1] == shorter:
            return True
        raise ModelError(
            f"expected one output per step, or one answer per sequence; inputs of {steps} and {shorter} steps gave outputs "
            f"{tuple(y.shape)} and {tuple(short.shape)}. Wrap the model in a function that gives one of these."
        )

    def __call__(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        given = x.transpose(0, 1).contiguous() if self.time_first else x
        named = {"lengths": lengths} if self.takes_lengths and lengths is not None else {}
        try:
            y = first_real(self.model(given, **named))
        except INPUT_ERRORS as error:
            line = (str(error).strip().splitlines() or [""])[0]
            raise ModelError(
                f"the model failed on inputs {x.dtype} of shape {tuple(given.shape)}: {type(error).__name__}: {line}"
            ) from error
        return y.transpose(0, 1) if self.time_first and y.ndim > 1 else y

    def with_states(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Outputs, and the hidden states of torch's recurrent modules side by side where they can be seen."""
        with _tapped(self.model, tuple(x.shape[:2])) as seen:
            y = self(x, lengths)
        return y, torch.cat(seen, -1) if seen else None


@contextmanager
def _tapped(model: Callable[..., Any], shape: tuple[int, ...]) -> Iterator[list[Tensor]]:
    """Collects the outputs of torch's RNN, GRU and LSTM, which are their hidden states, (rows, time, units)."""
    seen: list[Tensor] = []

    def hook(module: nn.Module, _given: Any, out: Any) -> None:
        states = out[0] if isinstance(out, tuple) else out
        if isinstance(states, Tensor) and states.ndim == 3:
            states = states if getattr(module, "batch_first", True) else states.transpose(0, 1)
            if tuple(states.shape[:2]) == shape:
                seen.append(states)

    found = [m for root in modules_of(model) for m in root.modules() if isinstance(m, nn.RNNBase)]
    handles = [module.register_forward_hook(hook) for module in dict.fromkeys(found)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _finite(x: Tensor) -> Tensor:
    bad = int((~torch.isfinite(x)).sum())
    if bad:
        raise ArgumentError(
            f"inputs: expected finite numbers, got {bad} of {x.numel()} that are NaN or infinite; fill or remove them"
        )
    return x


def _has_argument(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
