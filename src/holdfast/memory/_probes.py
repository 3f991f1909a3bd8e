"""Probe inputs, and the memory values of one batch of them.

Step k of the probe (k = 0, 1, ...) is time t_k = k dt. The Heaviside input is x from step 0 on, the impulse x at step 0
only, the reversed input x before step 0 and 0 from then on. The model's output after step k is H at the end of that
step, so the forward difference over dt at t_k is (y_k - y_{k-1}) / dt; at k = 0 it is the jump from the rest value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.memory._options import Probe
from holdfast.memory._subject import Subject, spread


@dataclass(frozen=True)
class ProbePlan:
    """How a probe is laid out in time and measured: `lead` steps before step 0, then steps 0 to `horizon`.

    With `start`, the state of one row after the burn-in, all rows begin from it and there is no lead.
    """

    probe: Probe
    lead: int
    horizon: int
    start: Any = None

    @property
    def steps(self) -> int:
        return self.lead + self.horizon + 1

    def inputs(self, subject: Subject, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows+1 steps inputs"]:
        """The probes of all x, and zero input as the last row."""
        # zero input in the same batch: it is subtracted, and a batch of another shape would round otherwise
        u = subject.zeros(len(x) + 1, self.steps)
        part = {
            "heaviside": slice(self.lead, None),
            "impulse": slice(self.lead, self.lead + 1),
            "reversed": slice(0, self.lead),
        }[self.probe.name]
        u[:-1, part] = x.to(u).unsqueeze(1)
        return u

    def outputs(self, subject: Subject, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows+1 steps outputs"]:
        """What the model answers to them."""
        start = None if self.start is None else spread(self.start, subject.row_axes, len(x) + 1)
        return subject(self.inputs(subject, x), start)

    def divisor(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, " rows"]:
        """|x|_inf or |x|_inf + 1, times dt.

        A one-step impulse in a discretized continuous-time model has area x dt, so dividing by dt gives rho there too.
        """
        size = x.abs().amax(-1).double()
        return (size + 1 if self.probe.normalization == "x+1" else size) * self.probe.dt


@dataclass(frozen=True)
class Measured:
    """Memory values of each probe, their rounding floors, and the output at rest.

    `leak` is how far outputs before the probe moved because of it, over what rounding may do: above 1 is not causal.
    """

    values: Float[Tensor, "rows times"]
    floors: Float[Tensor, "rows times"]
    rest: Float[Tensor, " outputs"]
    leak: float
    responses: Float[Tensor, "rows times outputs"] | None = None

    def without_responses(self) -> Measured:
        """The same without the large part."""
        return replace(self, responses=None)


def measure(subject: Subject, plan: ProbePlan, x: Float[Tensor, "rows inputs"], *, keep: bool = False) -> Measured:
    """Runs the probes of `x` in one batch; `keep` also returns the differenced responses themselves."""
    y = plan.outputs(subject, x)
    zero = y[-1]
    divisor = plan.divisor(x).to(y.device)
    # the step before the probe too: the first difference is the jump at t = 0
    before = max(plan.lead - 1, 0)
    values = torch.empty(len(x), plan.horizon + 1, dtype=torch.float64, device=y.device)
    floors = torch.empty_like(values)
    leak = 0.0
    kept = []
    # a row at a time: a row of 10,000 steps and 64 outputs stays in cache, the whole batch does not
    for i in range(len(x)):
        adjusted = y[i, before:] - zero[before:]
        response = difference(adjusted, plan)
        values[i] = output_size(response, plan.probe.norm).double() / divisor[i]
        floors[i] = subject.rounding(y[i, plan.lead :]) / divisor[i]
        if plan.probe.name != "reversed" and plan.lead:
            leak = max(leak, float((y[i, : plan.lead] - zero[: plan.lead]).abs().max() / subject.tolerance(y[i])))
        if keep:
            kept.append(response)
    return Measured(
        # a model that diverges has no memory to speak of there: inf, never a NaN that max would drop
        values=torch.nan_to_num(values, nan=torch.inf, posinf=torch.inf),
        floors=torch.nan_to_num(floors, nan=torch.inf, posinf=torch.inf),
        rest=zero[before],
        leak=leak,
        responses=torch.stack(kept) if keep else None,
    )


def output_size(response: Float[Tensor, "*rows outputs"], norm: float) -> Float[Tensor, "*rows"]:
    """The norm over outputs."""
    if math.isinf(norm):
        return response.abs().amax(-1)  # vector_norm takes 100 times as long for this one
    return torch.linalg.vector_norm(response, norm, dim=-1)


def difference(adjusted: Float[Tensor, "*rows steps outputs"], plan: ProbePlan) -> Float[Tensor, "*rows times outputs"]:
    """dt times d/dt H for the step probes, H itself for the impulse.

    `adjusted` is the output minus the zero-input response from the step before step 0 on, or from step 0 if there is
    none before: then the model was at rest, where the adjusted output is 0.
    """
    if plan.lead == 0:
        adjusted = torch.cat([torch.zeros_like(adjusted[..., :1, :]), adjusted], -2)
    if plan.probe.name == "impulse":
        return adjusted[..., 1:, :]
    return adjusted[..., 1:, :] - adjusted[..., :-1, :]
