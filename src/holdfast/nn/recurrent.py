"""Which weights of a model are recurrent: those of our layers, of torch's, and of common state-space layers by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, listed
from holdfast.nn.base import AbstractRecurrent

# how a foreign weight stores its eigenvalue lam: as itself, as log(-lam), or as the inverse of softplus at -lam
Storage = Literal["value", "log_negative", "softplus_negative"]
_KNOWN_NAMES: dict[str, Storage] = {
    "A_log": "log_negative",
    "A_logs": "log_negative",
    "log_A_real": "log_negative",
    "Lambda_re": "value",
    "Lambda_real": "value",
}
# names that only a neighbour makes sure: RWKV's decay exp(-exp(time_decay)), Griffin's exp(-8 r softplus(recurrent_param))
_KNOWN_PAIRS: dict[tuple[str, str], Storage] = {
    ("time_decay", "time_first"): "log_negative",
    ("recurrent_param", "recurrent_gate_bias"): "softplus_negative",
}
_GRIFFIN = 8.0  # the exponent of Griffin's gate
_TORCH_WEIGHT = re.compile(r"weight_hh_l\d+(_reverse)?")


@dataclass(frozen=True)
class RecurrentWeight:
    """A recurrent weight found in a model: `module.name`, called `path` from the model's root."""

    path: str
    module: nn.Module
    name: str
    kind: Literal["layer", "torch", "named"]
    storage: Storage = "value"

    def eigenvalues(self) -> Tensor:
        """What a foreign weight stands for, in continuous time."""
        value: Tensor = getattr(self.module, self.name).detach()
        if self.storage == "value":
            return value
        return -torch.exp(value) if self.storage == "log_negative" else -nn.functional.softplus(value)

    def step_size(self) -> Tensor | None:
        """dt of each eigenvalue on zero input: of Mamba's mixers, RWKV (1) and Griffin; None where it is not known."""
        if self.name == "time_decay":
            return torch.ones_like(self.eigenvalues())
        if self.storage == "softplus_negative":
            return _GRIFFIN * torch.sigmoid(self.module.recurrent_gate_bias.detach()).flatten()  # type: ignore[operator]
        bias = getattr(self.module, "dt_bias", None)
        if not isinstance(bias, Tensor):
            bias = getattr(getattr(self.module, "dt_proj", None), "bias", None)
        value = getattr(self.module, self.name)
        if not isinstance(bias, Tensor) or bias.ndim != 1 or len(bias) != len(value):
            return None
        dt = nn.functional.softplus(bias.detach().to(value.dtype))
        return dt if value.ndim == 1 else dt.unsqueeze(-1)


def find_recurrent(model: nn.Module) -> list[RecurrentWeight]:
    """Every weight of `model` that a recurrence multiplies by, in the order of its modules."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an nn.Module, came {model!r}; a class is called first: nn.RNN(1, 8)")
    return list(_walk(model))


def _walk(model: nn.Module) -> Iterator[RecurrentWeight]:
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        if isinstance(module, AbstractRecurrent):
            yield from (RecurrentWeight(dot + n, module, n, "layer") for n in module.recurrent_names if _has(module, n))
            continue
        for name in _own_names(module):
            if isinstance(module, nn.RNNBase) and _TORCH_WEIGHT.fullmatch(name):
                yield RecurrentWeight(dot + name, module, name, "torch")
            elif (storage := _storage(module, name)) is not None:
                yield RecurrentWeight(dot + name, module, name, "named", storage)


def _storage(module: nn.Module, name: str) -> Storage | None:
    for (known, neighbour), storage in _KNOWN_PAIRS.items():
        if name == known and isinstance(getattr(module, neighbour, None), Tensor):
            return storage
    return _KNOWN_NAMES.get(name)


def _has(module: nn.Module, name: str) -> bool:
    return getattr(module, name, None) is not None


def _own_names(module: nn.Module) -> list[str]:
    """Names of the module's own weights, those behind a parametrization included."""
    behind = getattr(module, "parametrizations", None)
    return [name for name, _ in module.named_parameters(recurse=False)] + list(behind or ())


@checked
def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    recurrent_lr: float | None = None,
    weight_decay: float = 0.0,
    names: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    """Two groups for an optimizer: recurrent weights with their own learning rate and no weight decay, and the rest.

    Weight decay pulls a free weight towards 0, and with it the eigenvalue to wherever f(0) lies: it would change the
    memory and not the size of the model.

    Args:
        model: the model; its recurrent weights are found as `holdfast.stabilize` finds them.
        lr: learning rate of the other weights.
        recurrent_lr: learning rate of the recurrent weights; None is `lr`.
        weight_decay: weight decay of the other weights.
        names: paths (or prefixes of paths) of weights that are recurrent in your model and not known as such.
    """
    prefixes = {found.path for found in find_recurrent(model)} | set(names)
    every = dict(model.named_parameters())
    unknown = [n for n in names if not any(belongs(path, n) for path in every)]
    if unknown:
        raise ArgumentError(f"the model has no weight called {', '.join(unknown)}; its weights: {listed(every)}")
    recurrent = [p for path, p in every.items() if any(belongs(path, prefix) for prefix in prefixes)]
    chosen = {id(p) for p in recurrent}
    rest = [p for p in every.values() if id(p) not in chosen]
    return [
        {"params": rest, "lr": lr, "weight_decay": weight_decay},
        {"params": recurrent, "lr": lr if recurrent_lr is None else recurrent_lr, "weight_decay": 0.0},
    ]


def belongs(path: str, prefix: str) -> bool:
    """Whether the weight at `path` is `prefix`, lies below it, or stands behind its parametrization."""
    plain = re.sub(r"(^|\.)parametrizations\.(\w+)\.original\d*$", r"\1\2", path)
    return plain == prefix or plain.startswith(prefix + ".") or path.startswith(prefix + ".")
