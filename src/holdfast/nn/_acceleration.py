"""Models of transformers on our kernels: in place, and back."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from holdfast.errors import ArgumentError, BackendError

TESTED_VERSION = "5.22"  # the version of transformers that the tests run with
ALREADY = "it is accelerated already"
CLASS_PREFIX = "Accelerated"  # of the class of a changed mixer
# each mixer, and the part of transformers.models that it comes from
FAMILIES = {
    "MambaMixer": "mamba",
    "FalconMambaMixer": "falcon_mamba",
    "JambaMambaMixer": "jamba",
    "ZambaMambaMixer": "zamba",
    "Mamba2Mixer": "mamba2",
    "Zamba2MambaMixer": "zamba2",
    "BambaMixer": "bamba",
    "FalconH1Mixer": "falcon_h1",
    "GraniteMoeHybridMambaLayer": "granitemoehybrid",
    "NemotronHMamba2Mixer": "nemotron_h",
}


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
        for name, module in zip(self.replaced, self.modules, strict=True):
            if type(module).__name__ != CLASS_PREFIX + str(kind_of(module)):
                raise ArgumentError(
                    f"restore: {name} is a {type(module).__name__} by now, so a parametrization was put on it after "
                    "accelerate; take that off first (the undo() of stabilize)"
                )
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
    Where nothing could be replaced it warns.
    Tested with transformers 5.22; a version whose mixers call other functions is refused.
    """
    done = accelerate_quietly(model)
    reasons = [(name, reason) for name, reason in done.left if reason != ALREADY]
    if not done.replaced and reasons:
        name, reason = reasons[0]
        warnings.warn(f"accelerate replaced nothing: {name or 'the model'}: {reason}", stacklevel=2)
    return done


def accelerate_quietly(model: nn.Module) -> Acceleration:
    """`accelerate` for a measurement, which goes on where nothing is replaced."""
    if importlib.util.find_spec("transformers") is None:
        raise BackendError("accelerate: transformers is not installed; pip install 'holdfast[hf]'")
    known = mixers_of(model)
    if not known:
        raise ArgumentError(
            f"accelerate: expected a model with transformers' MambaMixer or a relative of it in it "
            f"({', '.join(FAMILIES)}), got {type(model).__name__} without; own blocks can be built with "
            "holdfast.nn.Mamba"
        )
    from holdfast.nn import _mixer_classes as mixers

    reasons = {
        name: _reason_to_leave(module) for name, module in known.items()
    }  # all are looked at before one is changed
    changed = {name: module for name, module in known.items() if reasons[name] is None}
    for module in changed.values():
        module.__class__ = getattr(mixers, CLASS_PREFIX + str(kind_of(module)))
    left = tuple((name, reason) for name, reason in reasons.items() if reason is not None)
    return Acceleration(tuple(changed), left, tuple(changed.values()))


def mixers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The known mixers in a model by their names, accelerated or not; "" is the model itself."""
    return {name: module for name, module in model.named_modules() if kind_of(module) is not None}


def kind_of(module: nn.Module) -> str | None:
    """The name of the mixer that a module is, also under a class of ours or a parametrization; None for others."""
    names = (kind.__name__ for kind in type(module).__mro__)
    return next((name for name in names if name in FAMILIES), None)


def _reason_to_leave(module: Any) -> str | None:
    from holdfast.nn import _mixer_classes as mixers

    kind = str(kind_of(module))
    if any(base.__name__ == CLASS_PREFIX + kind for base in type(module).__mro__):
        return ALREADY
    plain = mixers.own_mixer(kind)
    if hasattr(module, "parametrizations"):
        return "its weights are parametrized; call accelerate first and stabilize after it"
    if type(module) is not plain:
        return f"it is another {kind} than transformers'"
    activation = getattr(module, "activation", None)
    if activation not in ("silu", "swish"):
        return f"its activation is {activation}, and the kernel has silu"
    absent = mixers.missing_functions(plain)
    if absent:
        import transformers

        raise BackendError(
            f"accelerate: expected mixers like those of transformers {TESTED_VERSION}, got {transformers.__version__}, whose "
            f"{kind} does not call {', '.join(absent)}; pip install 'transformers=={TESTED_VERSION}.*'"
        )
    return None
