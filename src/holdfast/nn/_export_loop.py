"""A layer's forward for torch.export and ONNX: its step over time, in operators that exporters know, for any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import BackendError

ExportStep = Callable[[Tensor, Tensor, Any], tuple[Tensor, Tensor]]


def refuse_onnx(what: str) -> None:
    """Says what to export instead, where torch.onnx.export meets an operator of `what` that ONNX lacks."""
    if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():
        raise BackendError(
            f"ONNX has no operator for {what}; for whole sequences export holdfast.nn.exportable(model), a copy with computed "
            "matrices, and for one step at a time layer.stepper()"
        )


def by_steps(
    name: str,
    step: ExportStep,
    x: Tensor,
    state: Tensor,
    lengths: Tensor | None,
    dt: Tensor | float | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Outputs (batch, time, out) and the final state of `step(x_t, state, dt_t)` along x, (batch, time, features).

    One loop of the exported graph (`torch.ops.higher_order.scan`, ONNX's Scan): the number of steps may stay open.
    """
    scan, features = _loop(name), x.shape[-1]
    # all that changes with time in one tensor: exporters would give each a length of its own
    parts = [x]
    if isinstance(dt, Tensor):
        parts.append(dt.unsqueeze(-1))
    if lengths is not None:
        inside = torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(-1)
        parts.append(inside.unsqueeze(-1).to(x.dtype))

    def advance(h: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
        y, after = step(now[:, :features], h, now[:, features] if isinstance(dt, Tensor) else dt)
        if lengths is not None:
            running = now[:, -1:] > 0
            y = torch.where(running, y, torch.zeros_like(y))
            after = torch.where(running.view(-1, *(1,) * (h.ndim - 1)), after, h)
        return after.clone(), y.clone()  # the loop allows no output that is a view of another

    _forget_shapes()
    with torch.no_grad():  # what is exported runs forward only, and torch's loop has no gradients of complex numbers
        last, y = scan(advance, state, torch.cat(parts, -1).transpose(0, 1), reverse=reverse)
    return y.transpose(0, 1), last


def _forget_shapes() -> None:
    """Lets the loop be traced again: torch keeps the graph of an earlier export, with the sizes that were fixed in it."""
    if not torch.compiler.is_dynamo_compiling():
        torch._dynamo.reset_code_caches()


def _loop(name: str) -> Callable[..., Any]:
    try:
        from torch._higher_order_ops.scan import scan
    except ImportError:
        raise BackendError(
            f"{name}: this torch cannot export a loop over time; export one step with layer.stepper(), or use torch 2.9 "
            "or newer"
        ) from None
    return scan
