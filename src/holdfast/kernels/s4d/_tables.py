"""The matrices that take S4D over one block of time, by torch's operators on any device or by a Triton kernel.

Three matrices turn a block of inputs and the state before it into outputs and the state after it. They are made from the
modes in double and rounded once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from holdfast.kernels._common import autograd
from holdfast.kernels.s4d import _triton  # noqa: F401  (defines torch.ops.holdfast.s4d_tables_triton_*)

Modes = Shaped[Tensor, "features modes"]


class Tables(NamedTuple):
    """`inside` from inputs to outputs, `gather` from inputs to the state, `emit` from the state to outputs.

    `inside` is the Toeplitz matrix of the impulse response; `leap` is what a block does to a state.
    """

    inside: Float[Tensor, "features steps steps"]
    gather: Float[Tensor, "features steps numbers"]
    emit: Float[Tensor, "features numbers steps"]
    leap: Modes


def _powers(a: Shaped[Tensor, "features modes"], count: int) -> Shaped[Tensor, "count features modes"]:
    """a^0 .. a^(count - 1) by doubling: log2(count) roundings each, and finite for every |a| <= 1."""
    powers = torch.ones_like(a).unsqueeze(0)
    while len(powers) < count:
        powers = torch.cat((powers, powers * (powers[-1] * a)))
    return powers[:count]


def planar(x: Shaped[Tensor, "... modes"], sign: int) -> Float[Tensor, "... numbers"]:
    """Real and (times sign) imaginary parts side by side."""
    return torch.cat((x.real, sign * x.imag), -1) if x.is_complex() else x


def tables_chunked(a: Modes, b: Modes, c: Modes, steps: int, dtype: torch.dtype) -> Tables:
    """The matrices of a block of `steps` steps in `dtype`; differentiable, also twice.

    Args:
        a: what one step does to a mode.
        b: weights of the inputs.
        c: weights of the modes in the output.
        steps: length of a block.
        dtype: of the matrices.
    """
    powers = _powers(a, steps + 1)
    response = ((c * b) * powers[:steps]).sum(-1)
    response = (response.real if response.is_complex() else response).T
    gather = (b * powers[:steps].flip(0)).transpose(0, 1)
    emit = (c * powers[1:]).transpose(0, 1)
    matrices = (planar(gather, 1).to(dtype), planar(emit, -1).transpose(1, 2).to(dtype))
    return Tables(_toeplitz(response).to(dtype), *matrices, powers[steps])


def _toeplitz(response: Float[Tensor, "features steps"]) -> Float[Tensor, "features steps steps"]:
    """[from, to] holds the response after to - from steps, and 0 above."""
    steps = response.shape[1]
    lag = torch.arange(steps, device=response.device)
    lag = lag - lag.unsqueeze(-1) + steps - 1
    return functional.pad(response, (steps - 1, 0))[:, lag]


class _GPUTables(torch.autograd.Function):
    """The tables with a response in the place of its matrix, and emit with steps first; saves the modes."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        response, gather, emit, leap = torch.ops.holdfast.s4d_tables_triton_forward(*arguments)
        return _toeplitz(response.to(arguments[-1])), gather, emit, leap

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.steps, ctx.dtype = inputs[3:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, b, c = modes = ctx.saved_tensors
        need = ctx.needs_input_grad[:3]
        if autograd.again():
            inside, gather, emit, leap = tables_chunked(a, b, c, ctx.steps, ctx.dtype)
            outputs = (inside, gather, emit.transpose(1, 2), leap)
            return (*autograd.differentiable_gradients(outputs, grads, modes, need), None, None)
        of_inside, *others = grads
        found = torch.ops.holdfast.s4d_tables_triton_backward(*modes, _diagonal_sums(of_inside, modes[0]), *others)
        return (*(g if n else None for g, n in zip(found, need, strict=True)), None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        """Runs mapped calls one after another."""
        return autograd.one_by_one(_GPUTables, info, in_dims, arguments)


def _diagonal_sums(x: Float[Tensor, "features steps steps"], like: Tensor) -> Float[Tensor, "features steps"]:
    """The sum of each diagonal from the main one up, in double: the gradient of a response in its matrix."""
    steps = x.shape[1]
    # rows one number longer begin one number later each, so that diagonals become columns; below the main one are zeros
    skewed = functional.pad(x.triu().flatten(1), (0, steps)).unflatten(1, (steps, steps + 1))
    return skewed.sum(1, dtype=like.real.dtype)[:, :steps]


def tables_gpu(a: Modes, b: Modes, c: Modes, steps: int, dtype: torch.dtype) -> Tables:
    """What `tables_chunked` gives, by a Triton kernel.

    Args:
        a: what one step does to a mode.
        b: weights of the inputs.
        c: weights of the modes in the output.
        steps: length of a block.
        dtype: of the matrices.
    """
    inside, gather, emit, leap = autograd.apply(_GPUTables, a, b, c, steps, dtype)
    return Tables(inside, gather, emit.transpose(1, 2), leap)
