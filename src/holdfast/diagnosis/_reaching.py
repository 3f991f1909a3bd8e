"""How far training can lengthen a model's memory at a learning rate, and the rate that it would take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from holdfast.diagnosis._remedies import bias_in
from holdfast.errors import ArgumentError
from holdfast.nn import RecurrenceView, recurrences
from holdfast.stability import RecurrentRate, reach, recurrent_rate

USUAL_LR, USUAL_STEPS = 1e-3, 1000  # if not stated how the model will be trained
LOG100 = math.log(100.0)  # time constants until 1% is left
MAX_SAID_STEPS = 100_000  # beyond which the estimate is no number: sequences that would show it are not trained on
AUTO = 'recurrent_lr="auto"'  # by which the call for the rate is known among those that were tried


@dataclass(frozen=True)
class TrainingPlan:
    """How the model will be trained.

    Args:
        lr: learning rate of Adam, with a cosine schedule.
        steps: optimizer steps.
        given: whether they were given; else both are usual values.
    """

    lr: float = USUAL_LR
    steps: int = USUAL_STEPS
    given: bool = False


@dataclass(frozen=True)
class Reaching:
    """How far one run of training can lengthen the memory of the recurrence that gets farthest.

    Args:
        plan: how it is trained.
        path: the recurrence.
        now: steps until 1% of its slowest state is left.
        reached: those after training; inf where it can cross the stability boundary.
        needs: steps that the task needs; None if unknown.
        rate: the recurrent learning rate with which it can learn them; None where it need not, or none is known.
        bias: of a gate, the bias with which it starts with them; None where no gate decides.
        helped: for "rate" and "bias", whether it helped a copy of the model; none of what was not tried.
    """

    plan: TrainingPlan
    path: str
    now: float
    reached: float
    needs: int | None = None
    rate: float | None = None
    bias: float | None = None
    helped: Mapping[str, bool] = field(default_factory=dict)

    @property
    def short(self) -> bool:
        """Whether training at this rate cannot get to what the task needs."""
        return self.needs is not None and self.reached < self.needs

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        names = ("path", "now", "reached", "needs", "rate", "bias")
        plain = {"lr": self.plan.lr, "steps": self.plan.steps, **{name: getattr(self, name) for name in names}}
        return {**plain, "helped": dict(self.helped)}


def look_at_reach(model: Any, plan: TrainingPlan, needs: int | None) -> Reaching | None:
    """The longest memory that training can get to; None for what has no recurrence that is known.

    Args:
        model: the model.
        plan: how it is trained.
        needs: steps that the task needs, until 1% is left.
    """
    if not isinstance(model, nn.Module) or not recurrences(model):
        return None
    far = max(reach(model, plan.lr, plan.steps), key=lambda one: (one.reached, one.now))
    now, reached = LOG100 * far.now, LOG100 * far.reached
    if needs is None or reached >= needs:
        return Reaching(plan, far.path, now, reached, needs)
    view = next(view for view in recurrences(model) if view.path == far.path)
    try:
        rates = recurrent_rate(model, steps=plan.steps, memory=max(needs / LOG100, 1.0))
    except ArgumentError:  # its parameterization ends before: no rate helps
        return Reaching(plan, far.path, now, reached, needs, None, _bias(view, needs))
    return Reaching(plan, far.path, now, reached, needs, _rate(rates, far.path), _bias(view, needs))


def _rate(rates: RecurrentRate, path: str) -> float:
    return next((part.rate for part in rates.parts if part.path == path), rates.rate)


def _bias(view: RecurrenceView, needs: int) -> float | None:
    """sigmoid(b) = e^(-1/tau) of a gate that keeps the state, in a discrete step."""
    if view.gate is None or not view.gate.keeps:
        return None
    return -math.log(math.expm1(LOG100 / needs))


def confirmed(one: Reaching | None, helpful: Iterable[str], in_vain: Iterable[str]) -> Reaching | None:
    """The same with what became of its rate and its bias; of a bias that was tried, the one that was.

    Args:
        one: what was found.
        helpful: calls that helped a copy.
        in_vain: calls that did not, each with the reason after it.
    """
    tried = [*((call, True) for call in helpful), *((call, False) for call in in_vain if ": not tried" not in call)]
    for call, well in tried:
        if one is None or not one.short:
            break
        if AUTO in call:
            one = replace(one, helped={**one.helped, "rate": well})
        elif one.bias is not None and (bias := bias_in(call)) is not None:
            one = replace(one, bias=bias, helped={**one.helped, "bias": well})
    return one


def said(one: Reaching | None) -> list[str]:
    """The sentence on the screen."""
    if one is None:
        return []
    how = "" if one.plan.given else " (assumed)"
    if math.isinf(one.reached):
        can = f"training can lengthen its slowest memory from {_steps(one.now)} steps to any length, up to instability"
    else:
        can = f"training can lengthen its slowest memory from {_steps(one.now)} to {_steps(one.reached)} steps (to 1% left)"
    return [f"in {one.plan.steps:,} optimizer steps at learning rate {one.plan.lr:g}{how} {can}{_asked(one)}"]


def _asked(one: Reaching) -> str:
    """What the task needs, and the ways there: those that helped a copy, or were not tried, before those that did not."""
    if one.needs is None:
        return ""
    needs = f"; your task needs {one.needs:,} steps"
    if not one.short:
        return needs
    ways = {} if one.rate is None else {"rate": f"recurrent_lr={one.rate:.2g}"}
    ways |= {} if one.bias is None else {"bias": f"start from bias {one.bias:.1f}"}
    if not ways:
        return f"{needs}: start it with slower modes"
    open_ = [
        f"{way}{'' if name in one.helped else ' (not tried)'}"
        for name, way in ways.items()
        if one.helped.get(name, True)
    ]
    vain = [way for name, way in ways.items() if not one.helped.get(name, True)]
    text = f"{needs}: {', or '.join(open_)}" if open_ else needs
    return f"{text}; no gain on a copy: {', '.join(vain)}" if vain else text


def _steps(value: float) -> str:
    if value > MAX_SAID_STEPS:
        return f"more than {MAX_SAID_STEPS:,}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def faster_recurrence(one: Reaching | None, lr: float) -> Iterator[tuple[str, str, str, str]]:
    """Trouble, number, call and effect of an optimizer with which the memory can be learned.

    Args:
        one: what was found.
        lr: learning rate of the other weights.
    """
    if one is None or not one.short or one.rate is None:
        return
    assert one.needs is not None
    yield (
        "training lengthens its memory too slowly",
        f"to {_steps(one.reached)} of {one.needs:,} steps",
        "optimizer = torch.optim.Adam(holdfast.parameter_groups(\n"
        f"    model, lr={lr:.2g}, {AUTO}, steps={one.plan.steps}, memory={max(one.needs / LOG100, 1.0):.0f}))",
        f"recurrent_lr={one.rate:.2g} for the weights that set its memory (memory= is the time to 1/e)",
    )
