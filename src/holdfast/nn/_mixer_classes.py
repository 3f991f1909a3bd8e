"""transformers' recurrent modules with our kernels in them, made when asked for; imported only by `holdfast.accelerate`.

A module's own forward is kept to the letter: only the functions that it calls by name are others. A module becomes an
accelerated one by its class alone, so that copies, `torch.save` and `save_pretrained` see nothing new.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor

from holdfast.nn._acceleration import CLASS_PREFIX, FAMILIES
from holdfast.nn._mixer_functions import FUNCTIONS, METHODS, NEEDED
from holdfast.nn._packed_calls import BOUNDS, UNPACKED, packed_call

_CLASSES: dict[str, type[Any]] = {}


def own_mixer(kind: str) -> type[Any] | None:
    """transformers' class of this name; None where the installed version has none."""
    family = FAMILIES[kind]
    try:
        return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), kind, None)
    except ImportError:
        return None


def missing_functions(mixer: type[Any]) -> list[str]:
    """Functions of the scan and the convolution that the mixer's forward does not call by the names known here."""
    called = inspect.unwrap(mixer.forward).__code__.co_names
    if mixer.__name__ in NEEDED:
        return [name for name in NEEDED[mixer.__name__] if name not in called]
    if FAMILIES[mixer.__name__] == "rwkv":
        return [name for name in ("rwkv_linear_attention",) if name not in called]
    scans = ("mamba_selective_scan", "mamba2_chunk_scan", "torch_chunk_gated_delta_rule")
    needed = ["causal_conv1d_fn", "causal_conv1d_update"]
    return [name for name in needed if name not in called] + ([] if {*scans} & {*called} else [*scans[:1]])


def __getattr__(name: str) -> type[Any]:
    """`AcceleratedMambaMixer` and the others, which pickled models name."""
    kind = name.removeprefix(CLASS_PREFIX)
    if kind == name or kind not in FAMILIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _CLASSES:
        plain = own_mixer(kind)
        if plain is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}: transformers has no {kind}")
        forward = _chosen(plain.forward, _rebound(plain.forward), packed=kind not in UNPACKED)
        body = {"forward": forward, "__module__": __name__, "__doc__": f"{kind} on our kernels."}
        _CLASSES[name] = type(name, (plain,), body | METHODS.get(kind, {}))
    return _CLASSES[name]


def _chosen(own: Any, fast: Any, packed: bool) -> Any:
    """The own forward for exporters, which know its operators, else the fast one, given where packed sequences begin."""

    @functools.wraps(fast)
    def forward(self: Any, *given: Any, **named: Any) -> Any:
        if torch.compiler.is_exporting() or torch.jit.is_tracing():
            return own(self, *given, **named)
        if not packed or not any(named.get(name) is not None for name in ("seq_idx", *BOUNDS)):
            return fast(self, *given, **named)
        # the cuts depend on numbers in tensors: a compiled model runs these calls as they are (wrapped here, not at import,
        # which would load the compiler)
        run = torch.compiler.disable(_run_packed) if torch.compiler.is_compiling() else _run_packed
        return run(fast, self, given, named)

    return forward


def _run_packed(fast: Any, self: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    x: Tensor = given[0] if given else named["hidden_states"]
    with packed_call(x, named):
        return fast(self, *given, **named)


def _rebound(function: Any) -> Any:
    """The same function, decorators included, with ours in the place of the functions that it calls."""
    inner = getattr(function, "__wrapped__", None)
    scope, cells = function.__globals__, function.__closure__
    if inner is None:
        scope = {**scope, **FUNCTIONS}
    else:
        own = _rebound(inner)
        cells = tuple(CellType(own) if cell.cell_contents is inner else cell for cell in cells)
    made = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__, made.__doc__, made.__qualname__ = (
        function.__kwdefaults__,
        function.__doc__,
        function.__qualname__,
    )
    if inner is not None:
        made.__wrapped__ = own  # type: ignore[attr-defined]
    return made
