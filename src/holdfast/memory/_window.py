"""The reversed probe in the paper's own form: inputs (x, 0, ..., 0), (x, x, 0, ..., 0), ... that end at one moment."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.memory._probes import Measured, ProbePlan, output_size
from holdfast.memory._search import BestResponse
from holdfast.memory._subject import Subject

MAX_WINDOW_STEPS = 256  # longest horizon for which this form is taken without being asked for


def measure_window(
    subject: Subject,
    plan: ProbePlan,
    x: Float[Tensor, "rows inputs"],
    best: BestResponse,
    progress: Callable[[int, int], None] | None = None,
) -> list[Measured]:
    """M(t_k) from H(n copies of x, then zeros) at the last of horizon + 1 steps, n = horizon + 1 - k ("IAT", App. G).

    The difference over n is exact for linear models whatever their decay, where one pass over x and then zeros would
    miss rho(k + burn-in). Costs (horizon + 2)(horizon + 1) model steps for each x, in batches.
    """
    steps = plan.horizon + 1
    total = len(x) * (steps + 1)
    parts = []
    for row, one in enumerate(x):
        last = torch.cat(list(_last_outputs(subject, one, steps, progress, row * (steps + 1), total)))
        parts.append(_values(subject, plan, one, last))
        best.add(one.unsqueeze(0), parts[-1])
    return parts


def _last_outputs(
    subject: Subject, x: Tensor, steps: int, progress: Callable[[int, int], None] | None, before: int, total: int
) -> list[Tensor]:
    """The output at the last step for n = 0, 1, ..., steps copies of x."""
    outputs = []
    # x first and zeros after it, so that the last step sees each x at its own lag
    position = torch.arange(steps, device=subject.device)
    for copies in torch.arange(steps + 1, device=subject.device).split(subject.rows_at_once(steps)):
        mask = (position < copies.unsqueeze(1)).to(subject.dtype)
        with torch.no_grad():
            # a copy, so that the outputs of all other steps are freed
            outputs.append(subject(mask.unsqueeze(-1) * x.to(mask))[:, -1].clone())
        if progress is not None:
            progress(before + int(copies[-1]) + 1, total)
    return outputs


def _values(subject: Subject, plan: ProbePlan, x: Tensor, last: Float[Tensor, "copies outputs"]) -> Measured:
    divisor = plan.divisor(x.unsqueeze(0)).to(last.device)
    # n = steps - k, so that lag k comes from the difference between n = steps - k + 1 and n = steps - k; k = 0 is the
    # jump when the newest input, too, becomes 0
    response = torch.diff(last, dim=0).flip(0)
    values = output_size(response, plan.probe.norm).double() / divisor
    # every lag compares two outputs of the same size, that of the response to n copies
    floor = torch.nan_to_num(subject.rounding(last[1:].flip(0)) / divisor, nan=torch.inf, posinf=torch.inf)
    values = torch.nan_to_num(values, nan=torch.inf, posinf=torch.inf)
    return Measured(values.unsqueeze(0), floor.unsqueeze(0), last[0], 0.0)
