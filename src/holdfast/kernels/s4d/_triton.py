"""S4D's matrices of a block on GPUs as torch operators: two launches where torch's own take 250."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.kernels._common import gpu

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_MODES = "Tensor a, Tensor b, Tensor c"
_LIBRARY.define(f"s4d_tables_triton_forward({_MODES}, int steps, ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"s4d_tables_triton_backward({_MODES}, Tensor grad_response, Tensor grad_gather, Tensor grad_emit, Tensor grad_leap) "
    "-> (Tensor, Tensor, Tensor)"
)


def _constants(a: Tensor, steps: int) -> dict[str, Any]:
    import triton.language as tl

    # one warp: a program's work is a chain of 64 products, and there are as many programs as features
    return {
        "STEPS": steps, "PARTS": 2 if a.is_complex() else 1, "MODES": gpu.power_of_two(a.shape[1]), "num_warps": 1,
        "ACC": tl.float64 if a.real.dtype == torch.float64 else tl.float32,
    }  # fmt: skip


def _numbers(x: Tensor) -> Tensor:
    dense = x.resolve_conj().contiguous()
    return torch.view_as_real(dense) if x.is_complex() else dense


def tables_forward(
    a: Tensor, b: Tensor, c: Tensor, steps: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Response (features, steps), gather and emit (features, steps, numbers) in `dtype`, and a^steps."""
    from holdfast.kernels.s4d._triton_kernels import tables_forward_kernel

    made = _forward_meta(a, b, c, steps, dtype)
    response, gather, emit, leap = made
    modes = [_numbers(x) for x in (a, b, c)]
    results = (response, gather, emit, _numbers(leap))
    gpu.launch(tables_forward_kernel, a.shape[:1], a, *modes, *results, a.shape[1], **_constants(a, steps))
    return made


def tables_backward(a: Tensor, b: Tensor, c: Tensor, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a, b and c."""
    from holdfast.kernels.s4d._triton_kernels import tables_backward_kernel

    made = _backward_meta(a, b, c, *grads)
    modes, results = [_numbers(x) for x in (a, b, c)], [_numbers(x) for x in made]
    response, gather, emit, leap = (g.contiguous() for g in grads)
    gpu.launch(
        tables_backward_kernel, a.shape[:1], a, *modes, response, gather, emit, _numbers(leap), *results, a.shape[1],
        **_constants(a, response.shape[1]),
    )  # fmt: skip
    return made


def _forward_meta(
    a: Tensor, b: Tensor, c: Tensor, steps: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    features, modes = a.shape
    numbers = 2 * modes if a.is_complex() else modes
    response = torch.empty((features, steps), dtype=a.real.dtype, device=a.device)
    gather, emit = (torch.empty((features, steps, numbers), dtype=dtype, device=a.device) for _ in range(2))
    return response, gather, emit, a.new_empty(a.shape)


def _backward_meta(a: Tensor, b: Tensor, c: Tensor, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return a.new_empty(a.shape), a.new_empty(a.shape), a.new_empty(a.shape)


for _name, _kernel, _meta in (
    ("s4d_tables_triton_forward", tables_forward, _forward_meta),
    ("s4d_tables_triton_backward", tables_backward, _backward_meta),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _meta, "Meta")
