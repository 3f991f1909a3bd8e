"""The learning-rate range test: a rate that rises at every step, on recurrent weights and on the others apart."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast._codec import plain
from holdfast.data._base import AbstractTask
from holdfast.errors import ArgumentError
from holdfast.nn import AbstractRecurrent, recurrences
from holdfast.parameterizations import AbstractParameterization
from holdfast.stability import parameter_groups
from holdfast.training._descent import Order, mixed
from holdfast.training._fabric import seed_all, undisturbed
from holdfast.training._objective import Loss, Objective, check_batch

BETAS = (0.9, 0.999)  # Adam's own
EPSILON = 1e-8
Group = Literal["recurrent", "other"]
SMOOTHING = 0.9  # of the loss over steps, as a running mean
MAX_LOSS_RATIO = 4.0  # times the smallest smoothed loss: past it the ramp has seen enough
SAFETY_FACTOR = 10.0  # the suggestion is this many times below the rate of the smallest loss


@dataclass(eq=False)
class _Shadow:
    weight: nn.Parameter
    form: AbstractParameterization
    time: str
    lam: Tensor
    first: Tensor
    second: Tensor


class DirectShadow:
    """Eigenvalues lam = f(w) moved with Adam as if they were weights, with dLoss/dlam = (dLoss/dw) / f'(w).

    The gradients are those that the model meets on its own, stable way: this says when direct weights would first leave
    the stable region, not how they would go on.

    Args:
        model: its recurrent layers of independent modes are followed; `left` stays None where it has none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.left: int | None = None
        self._shadows = [
            shadow
            for view in recurrences(model)
            if isinstance(view.module, AbstractRecurrent)
            for shadow in _of(view.module)
        ]

    @torch.no_grad()
    def step(self, rate: float, number: int) -> None:
        """One step of Adam; `left` becomes its number when the first eigenvalue is at or past the boundary."""
        for shadow in self._shadows:
            if shadow.weight.grad is None:
                continue
            slope = shadow.form.derivative(shadow.weight).double()
            # f' is 0 where a parameterization is flat: there no step of lam can be distinguished from that of w
            gradient = (shadow.weight.grad.double() / slope).nan_to_num(0.0, 0.0, 0.0)
            shadow.first.lerp_(gradient, 1 - BETAS[0])
            shadow.second.lerp_(gradient.square(), 1 - BETAS[1])
            mean = shadow.first / (1 - BETAS[0] ** (number + 1))
            size = (shadow.second / (1 - BETAS[1] ** (number + 1))).sqrt()
            shadow.lam -= rate * mean / (size + EPSILON)
            out = shadow.lam >= 0 if shadow.time == "continuous" else shadow.lam.abs() >= 1
            if self.left is None and bool(out.any()):
                self.left = number


def _of(layer: AbstractRecurrent) -> list[_Shadow]:
    name, form = layer.boundary_name, layer.boundary_form
    weight = None if name is None else getattr(layer, name)
    if not isinstance(form, AbstractParameterization) or not isinstance(weight, nn.Parameter):
        return []
    lam = form(weight).detach().double()
    return [_Shadow(weight, form, layer.time, lam, torch.zeros_like(lam), torch.zeros_like(lam))]


@dataclass(frozen=True, eq=False)
class RangeCurve:
    """One ramp of the learning rate: one group of weights is trained, the others are fixed.

    Args:
        rates: learning rate of each step, (steps,).
        loss: loss before that step, (steps,).
        smoothed: running mean of the loss, (steps,).
        ratio: |dLoss/dw|_2 / |w|_2 of the group at that step.
        suggestion: a tenth of the rate at which the smoothed loss was smallest; None where no rate lowered it.
        ended: the rate at which the loss was not finite or four times its smallest value; None where the ramp reached
            its end.
    """

    rates: Float64[np.ndarray, " steps"]
    loss: Float64[np.ndarray, " steps"]
    smoothed: Float64[np.ndarray, " steps"]
    ratio: Float64[np.ndarray, " steps"]
    suggestion: float | None
    ended: float | None


@dataclass(frozen=True, eq=False)
class RangeTest:
    """Losses against learning rates, and the pair of rates that they suggest.

    Args:
        curves: a RangeCurve for "recurrent" and for "other"; a model without recurrent weights has the second alone.
        direct_step: the step of the recurrent ramp at which the eigenvalues would have left the stable region if they
            had been the weights themselves ("direct"), moved with Adam along the gradients that were met; None where they
            would not, or where no layer says how its weights become eigenvalues.
        direct_rate: the learning rate of that step.
    """

    curves: Mapping[Group, RangeCurve]
    direct_step: int | None = None
    direct_rate: float | None = None

    @property
    def suggestion(self) -> dict[str, float]:
        """`lr` and `recurrent_lr` for a config, those that could be reported."""
        names = {"other": "lr", "recurrent": "recurrent_lr"}
        suggestions = {names[group]: curve.suggestion for group, curve in self.curves.items()}
        return {name: rate for name, rate in suggestions.items() if rate is not None}

    def lines(self) -> list[str]:
        """What was found, in sentences."""
        said = []
        for group, curve in self.curves.items():
            end = f"ended at {curve.ended:.3g}" if curve.ended is not None else f"sound up to {curve.rates[-1]:.3g}"
            advice = "no rate lowered the loss" if curve.suggestion is None else f"suggested {curve.suggestion:.2g}"
            span = f"{curve.ratio.min():.2g} to {curve.ratio.max():.2g}"
            said.append(f"{group} weights: {advice}; {end}; gradient over weight {span}")
        if self.direct_step is not None:
            said.append(
                f"direct eigenvalues would leave the stable region at step {self.direct_step}, rate {self.direct_rate:.3g}"
            )
        return said

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON's own types; what is not finite becomes None."""
        return {**plain(self, exact=False), "suggestion": self.suggestion}

    def plot(self, axes: Any = None) -> Any:
        """Draws the smoothed losses against the rates into matplotlib `axes`, made where None; gives them back."""
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(layout="constrained").add_subplot()
        for group, curve in self.curves.items():
            axes.semilogx(curve.rates, curve.smoothed, label=f"{group} weights")
        if self.direct_rate is not None:
            axes.axvline(self.direct_rate, color="grey", linestyle=":", label="direct would leave")
        axes.set(xlabel="learning rate", ylabel="loss")
        axes.legend()
        return axes

    def _repr_html_(self) -> str:
        return "".join(f"<p>{html.escape(line)}</p>" for line in self.lines())


@checked
def range_test(
    model: nn.Module,
    task: AbstractTask,
    *,
    low: float = 1e-6,
    high: float = 1.0,
    steps: int = 100,
    batch: int = 32,
    seed: int = 0,
    loss: Loss | None = None,
    progress: Callable[[str, int | None, int | None], None] | None = None,
) -> RangeTest:
    """Raises the learning rate of one group of weights from `low` to `high`, then of the other, and suggests a pair.

    A ramp is one short training with Adam, its rate growing by the same factor at every step; it ends where the loss is
    not finite or four times its smallest value. The model is left as it was.

    Args:
        model: the model, as it would be trained.
        task: the data.
        low: rate of the first step.
        high: rate of the last step.
        steps: number of steps of a ramp.
        batch: examples of a step.
        seed: of the order of examples and of dropout.
        loss: `loss(outputs, batch)`, the mean over a batch, instead of the task's own.
        progress: called with a text, the step and the number of steps.

    Returns:
        a RangeTest: losses against rates for each group, and `suggestion`, a pair of rates for a TrainingConfig.

    Raises:
        ArgumentError: rates that do not rise, fewer than 3 steps, fewer examples than a batch has, or labels outside the
            classes of the task.
        ShapeError: outputs of the model that do not fit the task.

    Example:
        >>> import holdfast
        >>> from holdfast import data, training
        >>> task = data.load_task("functional", law="exponential", constants=[0.1], length=10)
        >>> test = training.range_test(holdfast.nn.LinearRNN(1, 1), task, low=1e-4, high=1e-2, steps=3)
        >>> sorted(test.curves), test.curves["other"].rates.round(6).tolist()
        (['other', 'recurrent'], [0.0001, 0.001, 0.01])
    """
    positive(batch=batch)
    if not 0 < low < high < math.inf or steps < 3:
        raise ArgumentError(f"expected 0 < low < high and at least 3 steps, got {low=}, {high=}, {steps=}")
    rates = np.geomspace(low, high, steps)
    ramp = _Ramp(model, task, Objective(model, task, loss), Order(task.size("train"), batch, seed), rates, progress)
    kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
    *others, recurrent = (group["params"] for group in parameter_groups(model, lr=1.0))
    other = [p for group in others for p in group]
    shadow = DirectShadow(model)
    training = model.training
    try:
        with undisturbed(None):
            curves: dict[Group, RangeCurve] = {}
            if recurrent:
                curves["recurrent"] = ramp.run("recurrent", recurrent, shadow)
                model.load_state_dict(kept)
            curves["other"] = ramp.run("other", other, None)
    finally:
        model.load_state_dict(kept)
        model.zero_grad(set_to_none=True)
        model.train(training)
    left = shadow.left
    return RangeTest(curves, left, None if left is None else float(rates[left]))


@dataclass
class _Ramp:
    model: nn.Module
    task: AbstractTask
    objective: Objective
    order: Order
    rates: np.ndarray
    progress: Callable[[str, int | None, int | None], None] | None

    def run(self, name: Group, moving: list[nn.Parameter], shadow: DirectShadow | None) -> RangeCurve:
        self.model.train()
        optimizer = torch.optim.Adam(moving)
        losses, smoothed, ratios, mean, ended = [], [], [], 0.0, None
        for step, rate in enumerate(self.rates):
            value = self._gradient(step)
            ratio = _ratio(moving)
            if not (math.isfinite(value) and math.isfinite(ratio)):
                ended = float(rate)
                break
            mean = SMOOTHING * mean + (1 - SMOOTHING) * value
            losses.append(value)
            smoothed.append(mean / (1 - SMOOTHING ** (step + 1)))
            ratios.append(ratio)
            if smoothed[-1] > MAX_LOSS_RATIO * min(smoothed) > 0:
                ended = float(rate)
                break
            if shadow is not None:
                shadow.step(float(rate), step)
            optimizer.param_groups[0]["lr"] = float(rate)
            optimizer.step()
            if self.progress is not None:
                self.progress(f"{name} weights, rate {rate:.2g}, loss {value:.4g}", step + 1, len(self.rates))
        rates = self.rates[: len(losses)]
        return RangeCurve(
            rates, np.array(losses), np.array(smoothed), np.array(ratios), _suggest(rates, smoothed), ended
        )

    def _gradient(self, step: int) -> float:
        seed_all(mixed(self.order.seed, step))
        batch = self.task.batch("train", self.order.indices(step))
        check_batch(self.task, batch)
        self.model.zero_grad(set_to_none=True)
        batch = batch.to(next(self.model.parameters()).device)
        loss = self.objective.totals(self.model, batch).loss / max(1, self.objective.count(batch))
        loss.backward()
        return float(loss.detach())


def _suggest(rates: np.ndarray, smoothed: list[float]) -> float | None:
    """None unless the loss fell by more than a hundredth below where it began."""
    if not smoothed or min(smoothed) > 0.99 * smoothed[0]:
        return None
    return float(rates[int(np.argmin(smoothed))] / SAFETY_FACTOR)


def _ratio(parameters: list[nn.Parameter]) -> float:
    with torch.no_grad():
        gradient = _norm([p.grad for p in parameters if p.grad is not None])
        return gradient / max(_norm([p.detach() for p in parameters]), 1e-300)


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))
