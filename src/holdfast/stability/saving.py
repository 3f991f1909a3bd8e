"""save_pretrained of a stabilised model: plain weights, so that from_pretrained reads them as any other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


def plain_state_dict(model: nn.Module, state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """`state` (that of the model by default) with plain weights in place of parametrized ones, under their own names."""
    plain = dict(model.state_dict() if state is None else state)
    for prefix, module in model.named_modules():
        if not parametrize.is_parametrized(module):
            continue
        for name, stack in module.parametrizations.items():
            dot = f"{prefix}." if prefix else ""
            behind = f"{dot}parametrizations.{name}."
            kept = {key: plain.pop(key) for key in list(plain) if key.startswith(behind)}
            if kept:
                plain[dot + name] = _value(stack, {key.removeprefix(behind): v for key, v in kept.items()})
    return plain


@torch.no_grad()
def _value(stack: nn.Module, state: dict[str, Tensor]) -> Tensor:
    """What the parametrizations make of the saved free weights, which may be others than the present ones."""
    weights = {key: value for key, value in state.items() if not key.endswith("_extra_state")}
    return torch.func.functional_call(stack, weights, ()).detach().contiguous()


class PlainSave:
    """Stands in for the `save_pretrained` of one model; an object, so that a deep copy saves itself and not the original."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, *args: Any, state_dict: dict[str, Tensor] | None = None, **choices: Any) -> Any:
        """The model's own save_pretrained, given plain weights."""
        plain = plain_state_dict(self.model, state_dict)
        own: Any = type(self.model)
        return own.save_pretrained(self.model, *args, state_dict=plain, **choices)


def save_plainly(model: nn.Module) -> list[nn.Module]:
    """Sets `PlainSave` on every part of `model` that knows save_pretrained; gives back those parts."""
    parts = [m for m in model.modules() if callable(getattr(type(m), "save_pretrained", None))]
    for part in parts:
        part.save_pretrained = PlainSave(part)  # type: ignore[assignment]
    return parts


def save_as_before(parts: list[nn.Module]) -> None:
    """Takes `save_plainly` back."""
    for part in parts:
        part.__dict__.pop("save_pretrained", None)
