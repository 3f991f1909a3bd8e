"""Models of transformers on our kernels: in place, and back."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from holdfast.errors import ArgumentError, BackendError

TESTED = "5.22"  # the version of transformers that the tests run with
# mixers of the same family that our kernels do not compute as they stand
OTHERS = {
    "Mamba2Mixer": "its scan has one rate for each head, which has no kernel here",
    "FalconMambaMixer": "it normalises B, C and the step sizes in between",
    "JambaMambaMixer": "it normalises B, C and the step sizes in between",
    "ZambaMambaMixer": "its heads have projections of their own",
    "Zamba2MambaMixer": "its scan has one rate for each head, which has no kernel here",
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
        for module in self.modules:
            module.__class__ = type(module).__mro__[1]


def accelerate(model: nn.Module) -> Acceleration:
    """Lets a transformers Mamba run on our kernels, in place: outputs, gradients, weights and files stay as they are.

    Whole sequences, in training and before generation, go through `holdfast.kernels.causal_conv` and
    `holdfast.kernels.selective`, whose time and memory are linear in the length; steps of one token, as `generate` takes
    them, are left as they are. On a machine without the C++ kernels, and on other devices, their torch versions run.

    Args:
        model: a model with transformers' MambaMixer in it, such as MambaForCausalLM.

    Returns what was replaced and what was left, with the reason, and how to undo it: `accelerate(model).restore()`.
    Tested with transformers 5.22; a version whose Mamba is made of other functions is refused.
    """
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    found = {name: kind for name, kind in kinds.items() if kind in ("MambaMixer", "AcceleratedMambaMixer", *OTHERS)}
    if not found:
        raise ArgumentError(
            f"accelerate: expected a model with transformers' MambaMixer in it, came {type(model).__name__} without; "
            "own blocks can be built with holdfast.nn.Mamba"
        )
    left = [(name, OTHERS[kind]) for name, kind in found.items() if kind in OTHERS]
    left += [(name, "it is accelerated already") for name, kind in found.items() if kind == "AcceleratedMambaMixer"]
    changed: dict[str, nn.Module] = {}
    if "MambaMixer" in found.values():
        fast = _fast_mixer()
        plain = fast.__mro__[1]
        for name in (name for name, kind in found.items() if kind == "MambaMixer"):
            module: Any = model.get_submodule(name)
            if not issubclass(plain, type(module)):
                left.append((name, "it is another MambaMixer than transformers'"))
            elif module.activation not in ("silu", "swish"):
                left.append((name, f"its activation is {module.activation}, and the kernel has silu"))
            else:
                module.__class__ = fast
                changed[name] = module
    return Acceleration(tuple(changed), tuple(left), tuple(changed.values()))


def _fast_mixer() -> type[Any]:
    if importlib.util.find_spec("transformers") is None:
        raise BackendError("accelerate: transformers is not installed; pip install 'holdfast[hf]'")
    import transformers
    from transformers.models.mamba import modeling_mamba

    needed = ("MambaMixer", "mamba_selective_scan", "causal_conv1d_fn", "apply_mask_to_padding_states")
    absent = [name for name in needed if not hasattr(modeling_mamba, name)]
    if absent:
        raise BackendError(
            f"accelerate: expected a Mamba like that of transformers {TESTED}, came {transformers.__version__}, which "
            f"lacks {', '.join(absent)}; pip install 'transformers=={TESTED}.*'"
        )
    from holdfast.nn.transformers_mamba import AcceleratedMambaMixer

    return AcceleratedMambaMixer
