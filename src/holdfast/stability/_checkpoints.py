"""State dicts of modules whose weights `stabilize` parametrized: plain ones are loaded, and the own ones never in silence.

torch keeps the free weights of `layer.weight` under `layer.parametrizations.weight.original`. Hooks on the module
translate a state dict that has `layer.weight` itself, whoever loads it, and leave a mark under that name in its own state
dicts, which a plain model refuses: torch reports a size that does not fit also where names that do not are let pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from holdfast._arguments import checked
from holdfast.errors import ArgumentError
from holdfast.nn._initial_weights import MAX_RATE
from holdfast.parameterizations import AbstractMatrixParameterization, AbstractParameterization
from holdfast.parameterizations._saved import Bounded, held_by, in_sequence, other_form

SAME_TO_ROUNDING = 1e-5  # relative; a float32 weight through the inverse of its form moves by less


class LogNegative(nn.Module):
    """A weight stored as log(-lam), as Mamba's A_log: log(-f(w)) of a free weight w.

    Args:
        f: the parameterization of lam.
    """

    def __init__(self, f: AbstractParameterization) -> None:
        super().__init__()
        self.f = f

    def forward(self, w: Tensor) -> Tensor:
        """The stored form of f(w)."""
        return torch.log((-self.f(w)).clamp(max=min(MAX_RATE, torch.finfo(w.dtype).max)))

    def right_inverse(self, stored: Tensor) -> Tensor:
        """The free weight of a stored value."""
        return self.f.inverse(-torch.exp(stored))


def is_stabilized(module: nn.Module, name: str) -> bool:
    """Whether a form of ours, and nothing else, stands behind `module.name`."""
    if not parametrize.is_parametrized(module, name):
        return False
    stack: Any = module.parametrizations[name]  # type: ignore[index]
    ours = AbstractParameterization | AbstractMatrixParameterization | Bounded | LogNegative
    return len(stack) == 1 and isinstance(stack[0], ours)


def follow_checkpoints(module: nn.Module) -> Callable[[], None]:
    """Hooks a module whose weights are parametrized; returns what takes the hooks away. Once for each module."""
    if any(getattr(hook, "hook", None) is _translate for hook in module._load_state_dict_pre_hooks.values()):
        return lambda: None
    handles = (
        module.register_load_state_dict_pre_hook(_translate),
        module.register_state_dict_post_hook(_mark),
    )

    def unhook() -> None:
        for handle in handles:
            handle.remove()

    return unhook


def _mark(module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: object) -> None:
    for name in _names(module):
        # an empty tensor under the plain name: a model that is not stabilized refuses its size, also with strict=False
        state[prefix + name] = torch.empty(0)


def _names(module: nn.Module) -> list[str]:
    return [name for name in getattr(module, "parametrizations", {}) if is_stabilized(module, name)]


def _translate(module: nn.Module, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
    """Plain weights, and free weights of another form, become free weights of the present one."""
    for name in _names(module):
        stack: Any = module.parametrizations[name]  # type: ignore[index]
        path, behind = prefix + name, f"{prefix}parametrizations.{name}."
        value = state.pop(path, None)
        if value is not None and value.numel() == 0 != stack().numel():
            value = None  # the mark
        if value is None:
            value = _saved_otherwise(stack[0], state, behind)
        if value is None:
            continue
        if value.shape != stack().shape:
            raise ArgumentError(
                f"{path} of the state dict has shape {tuple(value.shape)}, expected {tuple(stack().shape)}"
            )
        _write(stack, value, state, behind, path)


def _saved_otherwise(form: nn.Module, state: dict[str, Tensor], behind: str) -> Tensor | None:
    """The plain weight, where `state` has free weights of another form."""
    logarithmic = isinstance(form, LogNegative)
    inner: Any = form.f if logarithmic else form
    saved = other_form(state, f"{behind}0.f." if logarithmic else f"{behind}0.", inner)
    if saved is None:
        return None
    single = state.get(f"{behind}original")
    value = saved(*(in_sequence(state, f"{behind}original") if single is None else (single,))).detach()
    return torch.log(-value) if logarithmic else value


def _write(stack: Any, value: Tensor, state: dict[str, Tensor], behind: str, path: str) -> None:
    first = next(stack.parameters(), None)
    # a checkpoint may be in another dtype or on another device than the model
    value = value.detach().to(stack.original if first is None else first)
    form: Any = stack[0]
    fitted: nn.Module
    if isinstance(form, LogNegative):
        f, free = held_by(form.f, -torch.exp(value), path)
        assert isinstance(f, AbstractParameterization)
        fitted = LogNegative(f)
    else:
        fitted, free = held_by(form, value, path)
    # the form that was saved may have more free weights than the present one
    for key in [key for key in state if key.startswith(behind)]:
        del state[key]
    keys = ("original",) if stack.is_tensor else tuple(f"original{i}" for i in range(len(free)))
    state.update({behind + key: weight for key, weight in zip(keys, free, strict=True)})
    state.update({f"{behind}0.{key}": entry for key, entry in fitted.state_dict().items()})


@checked
def plain_state_dict(model: nn.Module, state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """`state` (that of the model by default) with plain weights instead of parametrized ones, under their own names.

    What a model that was never stabilized loads. Other parametrizations than those of `stabilize` are made plain too.

    Args:
        model: the stabilized model.
        state: a state dict of it.

    Returns:
        a state dict with the names, shapes and dtypes of the model before it was stabilized; `state` is left as it was.

    Raises:
        ArgumentError: a model that is not a module.

    Example:
        >>> import torch, holdfast
        >>> layer = torch.nn.RNN(1, 3)
        >>> _ = holdfast.stabilize(layer)
        >>> torch.nn.RNN(1, 3).load_state_dict(holdfast.stability.plain_state_dict(layer))
        <All keys matched successfully>
    """
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
    """Sets `PlainSave` on every part of `model` that knows save_pretrained; returns those parts."""
    parts = [m for m in model.modules() if callable(getattr(type(m), "save_pretrained", None))]
    for part in parts:
        part.save_pretrained = PlainSave(part)  # type: ignore[assignment]
    return parts


def save_as_before(parts: list[nn.Module]) -> None:
    """Takes `save_plainly` back."""
    for part in parts:
        part.__dict__.pop("save_pretrained", None)


def free_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The free weights behind parametrized ones, by their names."""
    stacks = [(n, m) for n, m in model.named_modules() if isinstance(m, parametrize.ParametrizationList)]
    return {f"{path}.{name}": p for path, stack in stacks for name, p in stack.named_parameters(recurse=False)}


@torch.no_grad()
def restore_free_weights(model: nn.Module, saved: dict[str, Tensor]) -> None:
    """Puts free weights back where they make, to rounding, the weights that the model has: an inverse has rounded these.

    Args:
        model: with the plain weights of a checkpoint loaded.
        saved: free weights by their names; those of a model that was stabilized otherwise are left out.
    """
    own = free_weights(model)
    if saved.keys() != own.keys() or any(saved[name].shape != p.shape for name, p in own.items()):
        return
    for name, p in own.items():
        stack: Any = model.get_submodule(name.rpartition(".")[0])
        before, plain = p.clone(), stack()
        p.copy_(saved[name])
        if not torch.allclose(stack(), plain, rtol=SAME_TO_ROUNDING, atol=SAME_TO_ROUNDING):
            p.copy_(before)  # the plain weights were changed since
