"""What the kernels' autograd functions share: faster ways in, second derivatives, torch.vmap, forward mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from holdfast.errors import BackendError

PLAIN = (Tensor, torch.nn.Parameter)  # the classes whose tensors are known to have memory of their own


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """What `function.apply(*arguments)` does, without its inspection of the signature at every call (35-60 us).

    For functions with a setup_context: that inspection fills in default arguments of their forward; here all are given. Under
    torch.compile and torch.func the full way is taken.
    """
    if torch.compiler.is_compiling() and not _tracked(arguments):
        # torch 2.13 hands a context to a forward of variable arguments where nothing is differentiated, and fails
        return function.forward(*arguments)
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


def _tracked(arguments: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments)


def again() -> bool:
    """True in a backward pass whose gradients will be differentiated themselves (create_graph=True).

    Then a kernel's own gradient will not do: autograd has to see torch operations. A compiler traces backward with grad
    mode on, and differentiates nothing again.
    """
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def differentiable_gradients(
    outputs: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """The gradients of `inputs` by autograd, as functions that it can differentiate again; None where not `needed`.

    Args:
        outputs: of a version in torch operations.
        gradients: that reached them; None for an unused output.
        inputs: of that version.
        needed: a flag for each of `inputs`; more may follow.
    """
    reached = [(y, g) for y, g in zip(outputs, gradients, strict=True) if g is not None]
    ys, gs = zip(*reached, strict=True)
    wanted = [x for x, need in zip(inputs, needed, strict=False) if need and x is not None]
    found = iter(torch.autograd.grad(ys, wanted, gs, create_graph=True, allow_unused=True) if wanted else ())
    return tuple(next(found) if need else None for _, need in zip(inputs, needed, strict=False))


def one_by_one(
    function: type[torch.autograd.Function], info: Any, in_dims: Sequence[Any], arguments: Sequence[Any]
) -> Any:
    """torch.vmap of a kernel that cannot take more rows: mapped calls one after another, results stacked."""
    # a loop and not more rows: weights differ from call to call, and what is saved has a size of its own
    dims = [dim if isinstance(dim, int) else None for dim in in_dims]  # a tuple of choices has a tuple of Nones
    runs = []
    for i in range(info.batch_size):
        own = (x if dim is None else x.select(dim, i) for x, dim in zip(arguments, dims, strict=True))
        runs.append(function.apply(*own))
    stacked = tuple(torch.stack(parts) for parts in zip(*runs, strict=True))
    return stacked, (0,) * len(stacked)


def untracked(*tensors: Tensor | None) -> bool:
    """True if all are None or dense, plain CPU tensors and nothing follows them: no autograd, tracing or transforms.

    Then a function of the native library can be called without torch's dispatcher and its way back into Python. A
    subclass (DTensor, FakeTensor) may have no memory of its own, whichever argument it is: only the dispatcher
    unwraps it.
    """
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return False
    # torch.jit.is_tracing() is _is_tracing() behind 0.1 us of Python
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._are_functorch_transforms_active():
        return False
    # inside a mode (FakeTensorMode, FlopCounterMode) also new tensors may be without memory
    if torch._C._len_torch_dispatch_stack() > 0:
        return False
    for t in tensors:  # a loop: all() over a generator takes 0.5 us more
        if t is not None and not (type(t) in PLAIN and t.is_cpu and t.layout is torch.strided and not t.is_nested):
            return False
    return True


def has_tangent(*tensors: Tensor | None) -> bool:
    """True where forward mode follows one of the tensors; inside a transform of torch.func, where it may."""
    if forward_ad._current_level < 0:
        return False
    if torch._C._are_functorch_transforms_active():  # an inner transform hides the tangents of an outer one
        return True
    return any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def refuse_tangents(function: str, backend: str, *tensors: Tensor | None) -> None:
    """Refuses forward mode, which only plain torch operations follow; a kernel would drop the tangents."""
    if has_tangent(*tensors):
        raise BackendError(
            f"{function}: backend {backend!r} differentiates in reverse mode only, got tensors with tangents (torch.func.jvp, "
            "jacfwd, forward_ad); use torch.func.vjp or jacrev, or backend='reference' (for a layer: its step in a loop)"
        )
