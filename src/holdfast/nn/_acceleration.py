"""Models with torch's LSTM, GRU and RNN, and those of transformers, on our kernels: in place, and back."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from holdfast.errors import ArgumentError, BackendError
from holdfast.kernels._common import library
from holdfast.kernels._linear import pays
from holdfast.nn._precision import AcceleratedLinear
from holdfast.nn._torch_recurrent import ACCELERATED, max_state, torch_class

TESTED_VERSION = "5.22"  # the version of transformers that the tests run with
FIRST_VERSION = "5.16"  # the first one whose mixers call the functions that are replaced; 5.14.1 and 5.15.1 do not
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
    "RecurrentGemmaRglru": "recurrent_gemma",
    "RwkvSelfAttention": "rwkv",
    "Qwen3NextGatedDeltaNet": "qwen3_next",
    "Qwen3_5GatedDeltaNet": "qwen3_5",
    "Qwen3_5MoeGatedDeltaNet": "qwen3_5_moe",
    "Qwen4ExpTextGatedDeltaNet": "qwen4_exp",
    "OlmoHybridGatedDeltaNet": "olmo_hybrid",
    "xLSTMBackend": "xlstm",
}


@dataclass(frozen=True)
class Acceleration:
    """What `accelerate` did to a model.

    Args:
        replaced: names of the modules that now run by our kernels; "" is the model itself.
        left: names of the modules of the same kind that do not, each with the reason.
        modules: the modules that were changed.
        products: the nn.Linear modules that were changed too, on a CPU whose products torch computes at half their speed.
    """

    replaced: tuple[str, ...]
    left: tuple[tuple[str, str], ...] = ()
    modules: tuple[nn.Module, ...] = field(default=(), repr=False)
    products: tuple[nn.Module, ...] = field(default=(), repr=False)

    def restore(self) -> None:
        """Gives every changed module its own class back."""
        changed = [*zip(self.replaced, self.modules, strict=True), *(("an nn.Linear", each) for each in self.products)]
        for name, module in changed:
            if not type(module).__name__.startswith(CLASS_PREFIX):
                raise ArgumentError(
                    f"restore: expected {name} as accelerate left it, got a {type(module).__name__}, which has been restored "
                    "or changed since; remove a parametrization first (undo() of stabilize)"
                )
        for _, module in changed:
            module.__class__ = next(kind for kind in type(module).__mro__[1:] if issubclass(kind, nn.Module))


def accelerate(model: nn.Module) -> Acceleration:
    """Runs the recurrences of a model on our kernels, in place: outputs, gradients, weights and files stay the same.

    torch.nn.LSTM, GRU and RNN run by `holdfast.kernels.lstm`, `gru` and `rnn` on a CPU in float32 and float64: packed
    sequences, layers, both directions, dropout and states as torch has them, the same numbers to rounding. What the kernels
    do not take (another device or dtype, autocast, `proj_size`, export) torch runs as before.

    Of transformers, the mixers of Mamba, FalconMamba, Jamba and Zamba, and of the Mamba-2 family (Mamba2, Zamba2, Bamba,
    FalconH1, GraniteMoeHybrid, NemotronH) keep their own code; the functions that it calls are ours for this model alone:
    `holdfast.kernels.causal_conv`, `holdfast.kernels.selective` and, for heads with one rate each, `selective_heads`,
    whose time and memory are linear in the length, and shorter ways through a step of one token. Packed sequences
    (`seq_idx`, `cu_seq_lens_q`) are kept apart. So for RecurrentGemma and RWKV-4, whose loops over time become
    `holdfast.kernels.scan`, and for the gated delta rule of Qwen3-Next, Qwen3.5, Qwen4 and OlmoHybrid and the mLSTM of xLSTM,
    which run in blocks with a gradient of their own. On a machine without the C++ kernels, and on other devices, their torch
    versions run.

    On a CPU with AVX-512 that is not Intel's, torch computes products at half the speed that the CPU has. There plain
    nn.Linear modules of a model with such a recurrence run by our own product too, where it is faster;
    `torch.ao.quantization.quantize_dynamic`, which selects by class, then leaves them as they are.

    Args:
        model: a model with torch's recurrent modules or one of these mixers in it, such as MambaForCausalLM.

    Returns what was replaced and what was left, with the reason, and how to undo it: `accelerate(model).restore()`.
    Where nothing could be replaced it warns.
    Tested with transformers 5.22; a version whose mixers call other functions (before 5.16) is refused, and `diagnose` runs
    it as it is and says so.

    Returns:
        an Acceleration: what was `replaced`, what was `left` and why; `restore()` undoes it.

    Raises:
        ArgumentError: the model has nothing to replace, or transformers is older than 5.16.

    Example:
        >>> import torch, holdfast
        >>> model = torch.nn.LSTM(4, 8, batch_first=True)
        >>> done = holdfast.accelerate(model)
        >>> model(torch.randn(2, 5, 4))[0].shape
        torch.Size([2, 5, 8])
        >>> done.restore()
    """
    cells, mixers = torch_modules_of(model), mixers_of(model)
    if not cells and not mixers:
        raise ArgumentError(
            "accelerate: expected a model that contains torch.nn.LSTM, GRU or RNN, or one of transformers' mixers "
            f"({', '.join(FAMILIES)}), got {type(model).__name__} without any; to build new blocks, use holdfast.nn.Mamba"
        )
    for module in mixers.values():
        if (reason := _other_version(module)) is not None:
            raise BackendError(f"accelerate: {reason}; pip install 'transformers=={TESTED_VERSION}.*'")
    done = accelerate_quietly(model) if mixers else Acceleration(())
    if cells:
        done = _joined(done, _change(cells, _reason_to_leave_torch, torch_class))
    if done.replaced or any(reason == ALREADY for _, reason in done.left):
        done = replace(done, products=done.products + _change_products(model))
    # a second call finds everything done, which does not need a warning
    reasons = [(name, reason) for name, reason in done.left if reason != ALREADY]
    if not done.replaced and reasons:
        name, reason = reasons[0]
        warnings.warn(
            f"the model runs as before, since accelerate replaced nothing: {name or 'the model'}: {reason}",
            stacklevel=2,
        )
    return done


def _joined(one: Acceleration, other: Acceleration) -> Acceleration:
    parts = ("replaced", "left", "modules", "products")
    return Acceleration(*(getattr(one, part) + getattr(other, part) for part in parts))


def _change_products(model: nn.Module) -> tuple[nn.Module, ...]:
    """The plain nn.Linear modules, which run by our own product from now on; none where torch's is as fast."""
    changed = tuple(module for module in model.modules() if type(module) is nn.Linear) if pays() else ()
    for module in changed:
        module.__class__ = AcceleratedLinear
    return changed


def _change(
    modules: dict[str, nn.Module], reason: Callable[[Any], str | None], new_class: Callable[[nn.Module], type]
) -> Acceleration:
    """Gives modules their new classes, all or none where a reason cannot be determined."""
    # all reasons before the first change: one that raises leaves the model as it was
    reasons = {name: reason(module) for name, module in modules.items()}
    changed = {name: module for name, module in modules.items() if reasons[name] is None}
    # the class alone, so that weights, hooks, names and files stay what they are
    for module in changed.values():
        module.__class__ = new_class(module)
    left = tuple((name, text) for name, text in reasons.items() if text is not None)
    return Acceleration(tuple(changed), left, tuple(changed.values()))


def accelerate_quietly(model: nn.Module) -> Acceleration:
    """`accelerate` for a measurement, which continues where nothing is replaced, with another version of transformers too."""
    if importlib.util.find_spec("transformers") is None:
        raise BackendError("accelerate: transformers is not installed; pip install 'holdfast[hf]'")
    known = mixers_of(model)
    if not known:
        raise ArgumentError(
            f"accelerate: expected a model that contains one of transformers' mixers ({', '.join(FAMILIES)}), got "
            f"{type(model).__name__} without any; to build new blocks, use holdfast.nn.Mamba"
        )
    from holdfast.nn import _mixer_classes as mixers

    done = _change(known, _reason_to_leave, lambda module: getattr(mixers, CLASS_PREFIX + str(kind_of(module))))
    return replace(done, products=_change_products(model)) if done.replaced else done


def torch_modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """torch's recurrent modules in a model by their names, accelerated or not; "" is the model itself."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.RNNBase)}


def mixers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The known mixers in a model by their names, accelerated or not; "" is the model itself."""
    return {name: module for name, module in model.named_modules() if kind_of(module) is not None}


def kind_of(module: nn.Module) -> str | None:
    """The name of the mixer that a module is, also under a class of ours or a parametrization; None for others."""
    # by the names of all base classes: parametrize gives a module a class of its own
    names = (kind.__name__ for kind in type(module).__mro__)
    return next((name for name in names if name in FAMILIES), None)


def _reason_to_leave(module: Any) -> str | None:
    from holdfast.nn import _mixer_classes as mixers

    kind = str(kind_of(module))
    if any(base.__name__ == CLASS_PREFIX + kind for base in type(module).__mro__):
        return ALREADY
    plain = mixers.own_mixer(kind)
    if (reason := _other_version(module)) is not None:
        return reason
    if hasattr(module, "parametrizations"):
        return "its weights are parametrized; call accelerate first and stabilize after it"
    # a heir may compute something else between the calls that are replaced
    if type(module) is not plain:
        return f"its class is not the {kind} of transformers"
    activation = getattr(module, "activation", "silu")  # one without has no convolution
    if activation not in ("silu", "swish"):
        return f"its activation is {activation}, and the kernel supports silu only"
    return None


def _other_version(module: nn.Module) -> str | None:
    """Why the installed transformers' class of this kind cannot be changed; None where it can be."""
    from holdfast.nn import _mixer_classes as mixers

    kind = str(kind_of(module))
    if any(base.__name__ == CLASS_PREFIX + kind for base in type(module).__mro__):
        return None
    plain = mixers.own_mixer(kind)
    absent = [] if plain is None else mixers.missing_functions(plain)
    if not absent:
        return None
    import transformers

    return (
        f"expected mixers like those of transformers {TESTED_VERSION} ({FIRST_VERSION} or newer), got "
        f"{transformers.__version__}, whose {kind} does not call {', '.join(absent)}"
    )


def _reason_to_leave_torch(module: Any) -> str | None:
    if type(module) in ACCELERATED.values():
        return ALREADY
    if hasattr(module, "parametrizations"):
        return "its weights are parametrized; call accelerate first and stabilize after it"
    if type(module) not in ACCELERATED:
        return f"its class {type(module).__name__} is not torch's own and may compute something else"
    if module.proj_size:
        return "it has a proj_size, which the kernels do not support"
    if module.hidden_size > max_state(module):
        return f"it has {module.hidden_size} units; above {max_state(module)} torch's own products are as fast"
    return f"the native kernels are {library.missing()}" if library.missing() else None
