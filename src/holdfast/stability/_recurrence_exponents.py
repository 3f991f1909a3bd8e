"""Logarithms of growth along data, recurrence by recurrence, for models that keep their states to themselves."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from holdfast.errors import ArgumentError
from holdfast.memory.preserve import undisturbed
from holdfast.nn import RecurrenceView, recurrences
from holdfast.nn._views.reads import Reads, read_along
from holdfast.nn._views.rest import Driven

NUDGE = 1e-5  # of central differences in float64: their error is 1e-10


@torch.no_grad()
def jacobians_of(
    model: nn.Module, inputs: Tensor
) -> list[Iterator[Float64[Tensor, "rows n n"]] | Float64[Tensor, "time rows n"]]:
    """Of each recurrence its Jacobians step by step, or the log factors of its modes where they do not mix.

    A recurrence that feeds another does not hear of it: the Jacobian of all states together is block triangular, and its
    exponents are those of the blocks.

    Args:
        model: whose recurrences are known, in any mode.
        inputs: as the model takes them.
    """
    with undisturbed(model):
        views = recurrences(model)
        reads = read_along(model, views, inputs) if views else Reads()
    found = [_block(view, reads) for view in views]
    if not found:
        raise ArgumentError(
            "model must have a recurrence that holdfast recognizes, got none; describe its step with holdfast.nn.StepFunction"
        )
    return found


def _block(view: RecurrenceView, reads: Reads) -> Iterator[Tensor] | Tensor:
    x = reads.inputs.get(view.module)
    # a selective layer is diagonal: its exponents are the sums of delta times rate, without a Jacobian
    if view.module in reads.steps:
        delta, rates = (part.detach().cpu().double() for part in reads.steps[view.module])
        return (delta.unsqueeze(-1) * (rates if rates.ndim == 2 else rates.unsqueeze(-1))).flatten(2).transpose(0, 1)
    driven = view.driven()
    if x is None or (driven is None and view.nonlinear):
        raise ArgumentError(
            f"model: {view.path or view.kind} cannot be run along inputs, since holdfast knows only one step of it; "
            "leave inputs out"
        )
    if driven is not None:
        return _derivatives(driven, driven.drive(x))
    # a linear recurrence moves alike at every step and on every input
    steps = view.step_map()
    factors = (
        torch.linalg.eigvals(steps.jacobians(steps, torch.zeros(1, steps.size, dtype=torch.float64))[0]).abs().log()
    )
    return factors.expand(x.shape[1], x.shape[0], -1)


def _derivatives(driven: Driven, drives: Float64[Tensor, "rows time numbers"]) -> Iterator[Float64[Tensor, "rows n n"]]:
    """Central differences along every unit vector, at each step of the trajectory from 0."""
    rows, n = len(drives), driven.size
    unit = NUDGE * torch.eye(n, dtype=torch.float64)
    state = drives.new_zeros(rows, n)
    for drive in drives.unbind(1):
        moved = torch.cat([state.unsqueeze(1) + unit, state.unsqueeze(1) - unit], 1).flatten(0, 1)
        after = driven.step(moved, drive.repeat_interleave(2 * n, 0)).reshape(rows, 2, n, n)
        yield ((after[:, 0] - after[:, 1]) / (2 * NUDGE)).transpose(1, 2)
        state = driven.step(state, drive)
