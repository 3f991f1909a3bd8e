"""x W' + b on a CPU whose products torch computes at half their speed, with its gradient; elsewhere torch's own.

torch takes float products from MKL, which runs its AVX2 code on every CPU that is not Intel's: with AVX-512 (AMD's EPYC and
Ryzen since Zen 4) that is 105 of 250 GFLOP/s of one core. The products of our own kernels have the full width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from holdfast.kernels._common import autograd, checks, library
from holdfast.kernels._common.calls import call, dense, empty, verify

# below, the way through an autograd.Function (25 us) and the packing of the weight cost more than the products gain
_MIN_PRODUCTS = 1 << 21
_MIN_TOKENS = 128
_PACKED_PER_TOKEN = 14  # as a power of 2: what more tokens a larger weight needs before its packing pays
# a larger weight, and the sums of its gradient for each thread, do not stay in the third cache
_MAX_WEIGHTS = 1 << 22
_MIN_OUTPUTS = 16  # fewer would leave lanes empty


@functools.cache
def pays() -> bool:
    """Whether torch's products leave half of this CPU's arithmetic unused."""
    return not library.missing() and torch.backends.mkl.is_available() and bool(library.number("mkl_lags"))


pays._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as in _common/library.py


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What `torch.nn.functional.linear` gives, to rounding; in C++ where that is faster, else by that function itself.

    Args:
        x: (..., inputs).
        weight: (outputs, inputs).
        bias: (outputs,), or None.
    """
    if not suits(x, weight, bias):
        return functional.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return forward(x, weight, bias)
    return autograd.apply(_Linear, x, weight, bias)


def suits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the C++ function takes these tensors and is the faster one."""
    # dimensions and sizes last: tracing would bind them
    if torch.compiler.is_compiling() or torch._C._is_tracing() or not pays() or not _plain(x, weight, bias):
        return False
    if x.ndim < 2 or weight.ndim != 2:
        return False
    outputs, inputs = weight.shape
    if (
        not inputs
        or inputs % library.number("width_grain")
        or outputs < _MIN_OUTPUTS
        or outputs * inputs > _MAX_WEIGHTS
    ):
        return False
    if x.shape[-1] != inputs or (bias is not None and bias.shape != (outputs,)):
        return False
    tokens = x.numel() // inputs
    return (
        tokens >= _MIN_TOKENS + (outputs * inputs >> _PACKED_PER_TOKEN) and tokens * inputs * outputs >= _MIN_PRODUCTS
    )


def _plain(*tensors: Tensor | None) -> bool:
    """Whether nothing but autograd's reverse mode follows dense CPU tensors of one full precision."""
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._len_torch_dispatch_stack() > 0 or torch.is_autocast_enabled("cpu"):
        return False
    dtypes = set()
    for t in tensors:
        if t is None:
            continue
        if not (type(t) in autograd.PLAIN and t.is_cpu and t.layout is torch.strided and not t.is_nested):
            return False
        if torch._C._functorch.is_legacy_batchedtensor(t):  # of is_grads_batched
            return False
        dtypes.add(t.dtype)
    return len(dtypes) == 1 and dtypes <= {*checks.REAL}


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor | None = None) -> Tensor:
    """The product in C++, of tensors that suit.

    Args:
        x: (..., inputs).
        weight: (outputs, inputs).
        bias: (outputs,), or None.
        y: takes the result; dense.
    """
    y = empty((*x.shape[:-1], weight.shape[0]), x.dtype) if y is None else y
    _run("forward", y, (weight.shape[0], weight.shape[1]), x=x, weight=weight, bias=bias, y=y)
    return y


def gradients(
    x: Tensor | None, weight: Tensor | None, grad: Tensor, sizes: tuple[int, int], needed: Sequence[bool],
    of_x: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of x, weight and bias in C++, None where not needed.

    Args:
        x: (..., inputs); None where the weight's gradient is not needed.
        weight: (outputs, inputs); None where that of x is not needed.
        grad: of the result, (..., outputs).
        sizes: of the weight.
        needed: a flag for each gradient.
        of_x: takes the gradient of x; dense.
    """
    shapes = ((*grad.shape[:-1], sizes[1]), sizes, sizes[:1])
    of = [empty(shape, grad.dtype) if need else None for shape, need in zip(shapes, needed, strict=True)]
    if needed[0] and of_x is not None:
        of[0] = of_x
    _run(
        "backward", grad, sizes, x=x, weight=weight, grad=grad, grad_x=of[0], grad_weight=of[1], grad_bias=of[2]
    )  # fmt: skip
    return tuple(of)


def _run(name: str, like: Tensor, sizes: tuple[int, int], **tensors: Tensor | None) -> None:
    """Calls C with tensors that are checked: inputs of any strides, results dense."""
    rows, (outputs, inputs) = like.shape[:-1], sizes
    by_x, by_y = (*rows, inputs), (*rows, outputs)
    shapes = {
        "x": by_x, "weight": sizes, "bias": sizes[:1], "y": by_y, "grad": by_y, "grad_x": by_x, "grad_weight": sizes,
        "grad_bias": sizes[:1],
    }  # fmt: skip
    verify("linear", like, *((value, shapes[key]) for key, value in tensors.items()))
    for key in ("y", "grad_x"):
        value = tensors.get(key)
        assert value is None or value.is_contiguous(), f"{key} takes the result"
    given = {key: value if key == "y" or key.startswith("grad_") else dense(value) for key, value in tensors.items()}
    call(
        "linear", f"linear_{name}", like.dtype, tokens=math.prod(rows), inputs=inputs, outputs=outputs, **given
    )  # fmt: skip


class _Linear(torch.autograd.Function):
    """Saves x for the gradient of the weight and the weight for that of x, as torch's own does."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return forward(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.sizes = (weight.shape[0], weight.shape[1])
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight if ctx.needs_input_grad[0] else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # compiled autograd runs this with tensors without memory
        if not torch.compiler.is_compiling() and not autograd.again() and _plain(x, weight, grad):
            return gradients(x, weight, grad, ctx.sizes, ctx.needs_input_grad)
        # reshape: a batch of gradients (is_grads_batched) has no rule for flatten
        rows = grad.reshape(-1, grad.shape[-1])
        each = (lambda: grad @ weight, lambda: rows.t() @ x.reshape(-1, x.shape[-1]), lambda: rows.sum(0))
        return tuple(make() if need else None for make, need in zip(each, ctx.needs_input_grad, strict=True))
