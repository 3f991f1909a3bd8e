"""x W' + b on a CPU whose products torch computes at half their speed, with its gradient; elsewhere torch's own.

torch takes float products from MKL, which runs its AVX2 code on every CPU that is not Intel's: with AVX-512 (AMD's EPYC and
Ryzen since Zen 4) that is 105 of 250 GFLOP/s of one core. The products of our own kernels have the full width.
"""

from __future__ import annotations

import functools
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
    return x.numel() >= _MIN_TOKENS * inputs and x.numel() * outputs >= _MIN_PRODUCTS


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
    _run("forward", x, weight, bias=bias, y=y)
    return y


def gradients(
    x: Tensor, weight: Tensor, grad: Tensor, needed: tuple[bool, bool, bool], of_x: Tensor | None = None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of x, weight and bias in C++, None where not needed.

    Args:
        x: (..., inputs).
        weight: (outputs, inputs).
        grad: of the result, (..., outputs).
        needed: a flag for each gradient.
        of_x: takes the gradient of x; dense.
    """
    shapes = (x.shape, weight.shape, weight.shape[:1])
    of = [empty(shape, x.dtype) if need else None for shape, need in zip(shapes, needed, strict=True)]
    if needed[0] and of_x is not None:
        of[0] = of_x
    _run("backward", x, weight, grad=grad, grad_x=of[0], grad_weight=of[1], grad_bias=of[2])
    return of[0], of[1], of[2]


def _run(name: str, x: Tensor, weight: Tensor, **rest: Tensor | None) -> None:
    outputs, inputs = weight.shape
    of_y, like_bias = (*x.shape[:-1], outputs), (outputs,)
    shapes = {
        "bias": like_bias, "y": of_y, "grad": of_y, "grad_x": tuple(x.shape), "grad_weight": (outputs, inputs),
        "grad_bias": like_bias,
    }  # fmt: skip
    verify("linear", x, (weight, (outputs, inputs)), *((value, shapes[key]) for key, value in rest.items()))
    given = {key: dense(value) if key in ("bias", "grad") else value for key, value in rest.items()}
    call(
        "linear", f"linear_{name}", x.dtype, tokens=x.numel() // inputs, inputs=inputs, outputs=outputs, x=dense(x),
        weight=dense(weight), **given,
    )  # fmt: skip


class _Linear(torch.autograd.Function):
    """Saves x and weight, as torch's own does."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return forward(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if not autograd.again() and _plain(x, weight, grad):
            return gradients(x, weight, grad, ctx.needs_input_grad)
        rows = grad.flatten(0, -2)
        each = (lambda: grad @ weight, lambda: rows.mT @ x.flatten(0, -2), lambda: rows.sum(0))
        return tuple(make() if need else None for make, need in zip(each, ctx.needs_input_grad, strict=True))
