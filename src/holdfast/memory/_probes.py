"""Probe inputs, and the memory values of one batch of them.

Step k of the probe (k = 0, 1, ...) is time t_k = k dt. The Heaviside input is x from step 0 on, the impulse x at step 0
only, the reversed input x before step 0 and 0 from then on. The model's output after step k is H at the end of that
step, so the forward difference over dt at t_k is (y_k - y_{k-1}) / dt; at k = 0 it is the jump from the rest value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.memory._options import Probe
from holdfast.memory._subject import Subject, spread

PIECE_NUMBERS = 1 << 20  # of inputs or outputs that a model with a state is given at once: 4 MB, which stay in a cache
MIN_PIECE_STEPS = 64  # however many rows there are: each piece is a call of the model


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

    def pieces(
        self, subject: Subject, x: Float[Tensor, "rows inputs"]
    ) -> Iterator[Float[Tensor, "rows+1 steps outputs"]]:
        """The same in pieces of time, from state to state; all at once of a model that was not seen to have one."""
        if self.start is None:
            yield self.outputs(subject, x)
            return
        rows = len(x) + 1
        most = max(MIN_PIECE_STEPS, PIECE_NUMBERS // (rows * max(subject.input_size, subject.outputs)))
        # of equal length: a last piece of one step may be too short for a model
        count = math.ceil(self.steps / most)
        u = replace(self, horizon=math.ceil(self.steps / count) - 1).inputs(subject, x)
        state = spread(self.start, subject.row_axes, rows)
        for k in range(count):
            steps = self.steps * (k + 1) // count - self.steps * k // count
            y, state = subject.advance(u[:, :steps].contiguous(), state)
            yield y
            if self.probe.name == "impulse":
                u = torch.zeros_like(u)

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
    values = torch.empty(len(x), plan.horizon + 1, dtype=torch.float64, device=subject.device)
    floors = torch.empty_like(values)
    divisor = plan.divisor(x).to(values.device)
    # the step before the probe too: the first difference is the jump at t = 0
    before = max(plan.lead - 1, 0)
    leak, done = 0.0, 0
    kept: list[Tensor] = []
    last = rest = None
    for y in plan.pieces(subject, x):
        zero = y[-1]
        rest = zero[before].clone() if rest is None else rest
        responses = []
        times = slice(done, done + y.shape[1] - plan.lead)
        ends = (y[:-1, -1:] - zero[-1:]).clone()
        # a row at a time: a row of 10,000 steps and 64 outputs stays in cache, the whole batch does not
        for i in range(len(x)):
            adjusted = y[i, before:] - zero[before:]
            response = difference(adjusted, plan, None if last is None else last[i])
            values[i, times] = output_size(response, plan.probe.norm).double() / divisor[i]
            floors[i, times] = subject.rounding(y[i, plan.lead :]) / divisor[i]
            if plan.probe.name != "reversed" and plan.lead:
                leak = max(leak, float((y[i, : plan.lead] - zero[: plan.lead]).abs().max() / subject.tolerance(y[i])))
            if keep:
                responses.append(response)
        last, done = ends, times.stop
        kept += [torch.stack(responses)] if keep else []
    assert rest is not None
    return Measured(
        # a model that diverges has no memory to speak of there: inf, never a NaN that max would drop
        values=torch.nan_to_num(values, nan=torch.inf, posinf=torch.inf),
        floors=torch.nan_to_num(floors, nan=torch.inf, posinf=torch.inf),
        rest=rest,
        leak=leak,
        responses=torch.cat(kept, 1) if keep else None,
    )


def output_size(response: Float[Tensor, "*rows outputs"], norm: float) -> Float[Tensor, "*rows"]:
    """The norm over outputs."""
    if math.isinf(norm):
        return response.abs().amax(-1)  # vector_norm takes 100 times as long for this one
    return torch.linalg.vector_norm(response, norm, dim=-1)


def difference(
    adjusted: Float[Tensor, "*rows steps outputs"],
    plan: ProbePlan,
    last: Float[Tensor, "*rows one outputs"] | None = None,
) -> Float[Tensor, "*rows times outputs"]:
    """dt times d/dt H for the step probes, H itself for the impulse.

    `adjusted` is the output minus the zero-input response from the step before step 0 on, or from step 0 if there is
    none before: then the model was at rest, where the adjusted output is 0. In later pieces `last` is the step before.
    """
    if plan.lead == 0:
        adjusted = torch.cat([torch.zeros_like(adjusted[..., :1, :]) if last is None else last, adjusted], -2)
    if plan.probe.name == "impulse":
        return adjusted[..., 1:, :]
    return adjusted[..., 1:, :] - adjusted[..., :-1, :]
