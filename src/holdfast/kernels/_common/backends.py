"""The one place where a kernel's backends are registered and chosen.

A kernel is an operator `torch.ops.holdfast.<name>`, so that graphs can hold it and torch picks its function by the device.
`define` makes it from the C++ version: the schema is read from that function's signature, so that it is written once. A
version for another device is `implement("scan_forward", forward, "CUDA")` in `kernels/scan/_triton.py`, and a row in
`OPERATORS`; `choose` then takes it for tensors on that device.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.errors import BackendError
from holdfast.kernels._common import checks, gpu, library

Backend = Literal["auto", "reference", "chunked", "native", "triton"]
# the backend behind the operators on each type of device; sizes on "meta" are those of the CPU's kernels
OPERATORS = {"cpu": "native", "meta": "native"}
# kernels that have a version in Triton; the others run by torch's operators on a GPU
TRITON = ("causal_conv", "gate", "gru", "lru", "lstm", "rnn", "s4d", "scan", "selective", "selective_heads")

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_KINDS: dict[Any, str] = {
    Tensor: "Tensor", Tensor | None: "Tensor?", bool: "bool", str: "str", float: "float", float | None: "float?",
    Sequence[bool]: "bool[]",
}  # fmt: skip
# operators that are defined: of each parameter its class, None for a plain one, and where its fields begin and end
_SPREAD: dict[str, list[tuple[Any, int, int]]] = {}


def choose(
    device: torch.device | str = "cpu", backend: Backend = "auto", *, function: str = "choose"
) -> tuple[str, str]:
    """The backend that a kernel takes for tensors on `device`, and why: a pair of its name and a sentence.

    Args:
        device: where the tensors are.
        backend: what was asked for: "auto", "native", "triton", "chunked" or "reference".
        function: the kernel, which error messages name as the caller.
    """
    checks.backend(function, backend)
    if backend in ("reference", "chunked"):
        return backend, "asked for by name"
    kind = torch.device(device).type
    if backend == "triton" or (backend == "auto" and gpu.preferred(device)):
        return _choose_triton(device, backend, function)
    if kind not in OPERATORS:
        raise BackendError(
            f"{function}: the native backend needs tensors on the CPU, got {kind}; "
            "move them with .cpu(), or use backend='chunked'"
        )
    missing = library.missing()
    if missing and backend == "native":
        raise BackendError(f"{function}: the native kernels are {missing}; or use backend='chunked'")
    if missing:
        return "chunked", f"the native kernels are {missing}"
    return OPERATORS[kind], "asked for by name" if backend == "native" else "fastest on a CPU"


def _choose_triton(device: torch.device | str, backend: Backend, function: str) -> tuple[str, str]:
    lacking = gpu.missing(device)
    if function not in TRITON and function != "choose":  # asked for no kernel in particular
        lacking = lacking or f"without a version of {function}"
    if not lacking:
        return "triton", "asked for by name" if backend == "triton" else "made for this device"
    if backend == "triton":
        raise BackendError(f"{function}: the Triton kernels are {lacking}; or use backend='chunked'")
    return "chunked", f"the Triton kernels are {lacking}"


def takes_resets(x: object, backend: Backend, function: str) -> bool:
    """Whether the backend for `x` reads resets itself; otherwise rows are cut at them, where a mistake is named too.

    Args:
        x: the sequence, or what was given in its place.
        backend: what was asked for.
        function: the name that error messages give to the caller.
    """
    return isinstance(x, Tensor) and choose(x.device, backend, function=function)[0] == "triton"


def define(name: str, function: Callable[..., Any], meta: Callable[..., Any], key: str = "CPU") -> None:
    """Makes the operator `name` of `function`, with `meta` for tensors without memory; both take the same arguments.

    Args:
        name: of the operator.
        function: what runs it for tensors of `key`. A parameter that is a NamedTuple becomes one argument of the operator
            for each of its fields.
        meta: gives results of the right shapes without looking at values.
        key: torch's dispatch key.
    """
    hints = typing.get_type_hints(function)
    results = len(typing.get_args(hints.pop("return")))
    fields: dict[str, Any] = {}
    spread: list[tuple[Any, int, int]] = []
    for argument, kind in hints.items():
        own = typing.get_type_hints(kind) if _is_spread(kind) else {argument: kind}
        spread.append((kind if _is_spread(kind) else None, len(fields), len(fields) + len(own)))
        fields |= own
    _SPREAD[name] = spread
    arguments = ", ".join(f"{_KINDS[kind]} {argument}" for argument, kind in fields.items())
    _LIBRARY.define(f"{name}({arguments}) -> ({', '.join(['Tensor'] * results)})")
    implement(name, function, key)
    implement(name, meta, "Meta")


def implement(name: str, function: Callable[..., Any], key: str) -> None:
    """Gives the operator `name` a version for the dispatch key `key` ("CPU", "CUDA", "Meta").

    Args:
        name: of an operator that `define` made.
        function: takes the arguments that the function given to `define` takes.
        key: torch's dispatch key.
    """
    spread = _SPREAD[name]
    (call, _, end), *others = spread

    # tuple.__new__ takes a third of the time of the NamedTuple's own constructor, which looks at keywords too
    def run(*arguments: Any) -> Any:
        return function(
            *[arguments[i] if kind is None else tuple.__new__(kind, arguments[i:j]) for kind, i, j in spread]
        )

    def run_call(*arguments: Any) -> Any:  # the same in half the time, where only the first parameter is spread
        return function(tuple.__new__(call, arguments[:end]), *arguments[end:])

    alone = call is not None and all(kind is None for kind, *_ in others)
    _LIBRARY.impl(name, run_call if alone else run, key)


def _is_spread(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, tuple) and hasattr(kind, "_fields")
