"""Models of transformers on our kernels: in place, and back."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from holdfast.errors import ArgumentError, BackendError

TESTED = "5.22"  # the version of transformers that the tests run with


@dataclass(frozen=True)
class Acceleration:
    """What `accelerate` did to a model.

    Args:
        replaced: names of the modules that now run by our kernels; "" is the model itself.
        left: names of the modules of the same kind that do not, each with the reason.
        modules: the modules that were changed.
    """

    replaced: tuple[str, ...]
    left: tuple[tuple[str, str], ...] = ()
    modules: tuple[nn.Module, ...] = field(default=(), repr=False)

    def restore(self) -> None:
        """Gives every changed module its own class back."""
        for module in self.modules:
            module.__class__ = type(module).__mro__[1]


def accelerate(model: nn.Module) -> Acceleration:
    """Lets a transformers Mamba run on our kernels, in place: outputs, gradients, weights and files stay as they are.

    The mixers of Mamba, FalconMamba, Jamba and Zamba, and of the Mamba-2 family (Mamba2, Zamba2, Bamba, FalconH1,
    GraniteMoeHybrid, NemotronH) keep their own code; the functions that it calls are ours for this model alone:
    `holdfast.kernels.causal_conv`, `holdfast.kernels.selective` and, for heads with one rate each, `selective_heads`,
    whose time and memory are linear in the length, and shorter ways through a step of one token. On a machine without the
    C++ kernels, and on other devices, their torch versions run.

    Args:
        model: a model with one of these mixers in it, such as MambaForCausalLM.

    Returns what was replaced and what was left, with the reason, and how to undo it: `accelerate(model).restore()`.
    Tested with transformers 5.22; a version whose mixers call other functions is refused.
    """
    if importlib.util.find_spec("transformers") is None:
        raise BackendError("accelerate: transformers is not installed; pip install 'holdfast[hf]'")
    from holdfast.nn import transformers_mixers as mixers

    known = {name: module for name, module in model.named_modules() if _kind(module) in mixers.FAMILIES}
    if not known:
        raise ArgumentError(
            f"accelerate: expected a model with transformers' MambaMixer or a relative of it in it "
            f"({', '.join(mixers.FAMILIES)}), came {type(model).__name__} without; own blocks can be built with "
            "holdfast.nn.Mamba"
        )
    changed: dict[str, nn.Module] = {}
    left: list[tuple[str, str]] = []
    for name, module in known.items():
        reason = _reason_to_leave(module)
        if reason is None:
            module.__class__ = getattr(mixers, mixers.PREFIX + _kind(module))
            changed[name] = module
        else:
            left.append((name, reason))
    return Acceleration(tuple(changed), tuple(left), tuple(changed.values()))


def _kind(module: nn.Module) -> str:
    return type(module).__name__.removeprefix("Accelerated")


def _reason_to_leave(module: Any) -> str | None:
    from holdfast.nn import transformers_mixers as mixers

    kind = _kind(module)
    if type(module).__name__ != kind:
        return "it is accelerated already"
    plain = mixers.own_mixer(kind)
    if type(module) is not plain:
        return f"it is another {kind} than transformers'"
    activation = getattr(module, "activation", None)
    if activation not in ("silu", "swish"):
        return f"its activation is {activation}, and the kernel has silu"
    absent = mixers.missing_functions(plain)
    if absent:
        import transformers

        raise BackendError(
            f"accelerate: expected mixers like those of transformers {TESTED}, came {transformers.__version__}, whose "
            f"{kind} does not call {', '.join(absent)}; pip install 'transformers=={TESTED}.*'"
        )
    return None
