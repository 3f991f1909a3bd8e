"""Small modules around a model that make it one from (batch, time, features) to (batch, time, outputs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.memory._subject import INPUT_ERRORS, first_output
from holdfast.memory.preserve import undisturbed


class Plain(nn.Module):
    """A function of tensors as a module without weights.

    Args:
        function: of one tensor.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """What the function gives."""
        return self.function(x)


class BatchFirst(nn.Module):
    """A model that takes (time, batch, features), read with the batch first.

    Args:
        inner: the model.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (batch, time, outputs)."""
        return first_output(self.inner(x.transpose(0, 1).contiguous())).transpose(0, 1)


class Fresh(nn.Module):
    """A model that keeps a state between calls, put back after each of them.

    Args:
        inner: the model.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        """What the model gives from its present state."""
        with undisturbed(self.inner):
            return self.inner(x)


class Around(nn.Module):
    """Inputs as deviations from a constant one: inner(centre + size x).

    Args:
        inner: the model.
        centre: the constant input (features,).
        size: what a deviation of 1 is.
    """

    centre: Tensor

    def __init__(self, inner: nn.Module, centre: Tensor, size: float) -> None:
        super().__init__()
        self.inner = inner
        self.size = size
        self.register_buffer("centre", centre.clone())

    @property
    def longest_input(self) -> int | None:
        """Most steps that the model takes."""
        return getattr(self.inner, "longest_input", None)

    def forward(self, x: Tensor) -> Any:
        """What the model gives around the centre."""
        return self.inner(self.centre.to(x) + self.size * x)


class ThroughEmbedding(nn.Module):
    """A model of tokens, given embeddings: what its table looks up is exchanged for the input.

    Args:
        inner: the model.
        path: of its table.
    """

    def __init__(self, inner: nn.Module, path: str) -> None:
        super().__init__()
        self.inner, self.path = inner, path

    def forward(self, x: Tensor) -> Tensor:
        """Outputs for embeddings x."""
        tokens = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        handle = self.inner.get_submodule(self.path).register_forward_hook(lambda *_: x)
        try:
            return first_output(self.inner(tokens))
        finally:
            handle.remove()


class BeforePooling(nn.Module):
    """The last output of one step each that a module inside a model gives.

    Args:
        inner: the model.
        path: of that module.
    """

    def __init__(self, inner: nn.Module, path: str) -> None:
        super().__init__()
        self.inner, self.path = inner, path

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (batch, time, outputs) of that module."""
        kept: list[Tensor] = []
        module = self.inner.get_submodule(self.path)
        handle = module.register_forward_hook(lambda _m, _i, out: kept.append(first_output(out)))
        try:
            self.inner(x)
        finally:
            handle.remove()
        return kept[-1]

    @classmethod
    def find(cls, model: nn.Module, input_size: int, steps: int) -> tuple[BeforePooling | None, str]:
        """The reading by the last module that gives (batch, time, outputs), and its path; None where there is none.

        Args:
            model: the model.
            input_size: number of input features.
            steps: of the run that shows it.
        """
        found: list[str] = []

        def watch(path: str) -> Callable[..., None]:
            def hook(_module: nn.Module, _inputs: Any, out: Any) -> None:
                first = out[0] if isinstance(out, (tuple, list)) and out else out
                if isinstance(first, Tensor) and first.ndim == 3 and first.shape[:2] == (2, steps):
                    found.append(path)

            return hook

        handles = [m.register_forward_hook(watch(path)) for path, m in model.named_modules() if path]
        weight = next(model.parameters())
        try:
            with torch.no_grad():
                model(torch.zeros(2, steps, input_size, dtype=weight.dtype, device=weight.device))
        except INPUT_ERRORS:
            return None, ""
        finally:
            for handle in handles:
                handle.remove()
        return (cls(model, found[-1]), found[-1]) if found else (None, "")
