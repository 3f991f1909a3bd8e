"""How fast a memory can be learned: how far training can move a time constant, and the learning rate that it takes.

Adam moves a free weight by about the learning rate eta at every step, whatever the gradient is. In K steps of a schedule
with shares s_k a weight moves by at most about eta S, S = sum s_k, so that a mode of rate r0 reaches the time constant

    1 / |f(f^-1(-r0) -+ eta S)|

and no longer one: tau0 e^(eta S) for exp, a (|w0| + eta S)^2 + b for best. Of a gate, f is the sigmoid of its bias.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast.errors import ArgumentError
from holdfast.nn import recurrences
from holdfast.nn._views.view import MemoryWeight, RecurrenceView

Schedule = Literal["cosine", "constant", "linear"] | Sequence[float]
SCHEDULE_SHARES = {"cosine": 0.5, "linear": 0.5, "constant": 1.0}  # mean share of the rate over a run
# (1 - b1) / sqrt(1 - b2) of Adam's usual betas 0.9 and 0.999: the most that one step moves a weight, in learning rates
ADAM_MAX_STEP = 0.1 / math.sqrt(0.001)
PATH_STEPS = 32  # of a move whose direction depends on where the weights are
BISECTIONS = 40
MAX_SHIFT = 1e4  # of a free weight: farther away every parameterization has reached its limit
SLOPE_STEP = 1e-3  # shift over which the slope of log tau is taken
# Both constants were chosen on linear targets and on digits, recall, delays and sums through a stack, at 100 to 1,000 steps,
# and tried on tasks that they were not chosen on (experiment rates-rule).
PROGRESS = 20.0  # times the shortest way that weights have to go: gradients of a long memory are seldom of one sign
MAX_CHANGE = 0.4  # of log tau in a step, mean over the way: the cap of delta
FLOOR_CHANGE = 0.1  # relative change of the slowest mode over a run where nothing has to be learned


@dataclass(frozen=True)
class RecurrenceReach:
    """How long one recurrence can remember after training.

    Args:
        path: the recurrence.
        now: its time constant, in steps to 1/e.
        reached: the time constant that the estimated movement of Adam leads to; inf where it crosses the boundary.
        provable: the one that no run with Adam's usual betas can exceed, 3.2 times the movement.
    """

    path: str
    now: float
    reached: float
    provable: float


@dataclass(frozen=True)
class RecurrentRate:
    """A learning rate for recurrent weights, and the interval in which it should work.

    Args:
        path: the recurrence; of a model with several, that of the smallest rate.
        rate: the learning rate.
        low: below it the weights cannot get to the memory that is asked for.
        high: above it one step changes the slowest rate by more than its own size.
        reason: in a sentence, where the rate comes from.
        parts: of a model with several recurrences, the rate of each.
    """

    path: str
    rate: float
    low: float
    high: float
    reason: str
    parts: tuple[RecurrentRate, ...] = ()


@checked
def reach(model: nn.Module, lr: float, steps: int, *, schedule: Schedule = "cosine") -> tuple[RecurrenceReach, ...]:
    """The longest time constant that training can get each recurrence to.

    An estimate: Adam's steps are about `lr` where gradients keep their sign. `provable` holds for every gradient, of
    recurrences whose modes have weights of their own; of matrices, dense forms and torch.nn.RNN among them, both follow the
    slowest eigenvalue uphill, which need not be the longest way.

    Args:
        model: a model with recurrences that `holdfast.recurrences` knows; it is left as it is.
        lr: learning rate of its recurrent weights, and of the biases of its gates.
        steps: optimizer steps.
        schedule: "cosine", "linear" or "constant", or the share of the rate at each step.
    """
    positive(steps=steps)
    if not 0 < lr < math.inf:
        raise ArgumentError(f"lr: expected a number above 0, got {lr}")
    moved = lr * _total_share(schedule, steps)
    return tuple(
        RecurrenceReach(
            view.path,
            time_constant_after(view, 0.0),
            time_constant_after(view, moved),
            time_constant_after(view, ADAM_MAX_STEP * moved),
        )
        for view in _known(model)
    )


@checked
def recurrent_rate(
    model: nn.Module,
    *,
    steps: int,
    memory: float,
    optimizer: Literal["adam", "sgd"] = "adam",
    gradient: float | None = None,
    schedule: Schedule = "cosine",
) -> RecurrentRate:
    """The learning rate of recurrent weights with which a run can learn the memory that it needs.

    eta = d min(20 / S, 0.4 / ln(memory / tau)), d the distance of free weights between the time constant tau at the start
    and `memory`, S the sum of the schedule's shares: 20 times the shortest way, but no step that changes the slowest rate by
    more than 0.4 of itself. Plain gradient descent moves a weight by eta |gradient| in place of eta. Where the start already
    remembers long enough, the rate lets the slowest mode change by a tenth over the whole run: it is never frozen. A
    model with several recurrences has the smallest of their rates, and each of them in `parts`.

    Args:
        model: a model with recurrences that `holdfast.recurrences` knows; it is left as it is.
        steps: optimizer steps of the run.
        memory: time constant to be learned, in steps to 1/e.
        optimizer: "adam" (AdamW too) or "sgd".
        gradient: with "sgd", the size of a recurrent weight's gradient.
        schedule: "cosine", "linear" or "constant", or the share of the rate at each step.
    """
    positive(steps=steps)
    if not memory >= 1:
        raise ArgumentError(f"memory: expected at least 1 step, got {memory}")
    if (optimizer == "sgd") != (gradient is not None):
        raise ArgumentError(
            "gradient= goes with optimizer='sgd': plain gradient descent moves a weight by lr |gradient|"
        )
    scale = _total_share(schedule, steps)
    per_step = 1.0 if gradient is None else abs(gradient)
    if not per_step > 0:
        raise ArgumentError(f"gradient: expected a number above 0, got {gradient}: such a weight never moves")
    parts = tuple(_rate_of(view, memory, scale, per_step) for view in _known(model))
    smallest = min(parts, key=lambda part: part.rate)
    return smallest if len(parts) == 1 else replace(smallest, parts=parts)


def _rate_of(view: RecurrenceView, memory: float, total_share: float, per_step: float) -> RecurrentRate:
    now = time_constant_after(view, 0.0)
    slope = _slope(view, now)
    high = 1.0 / (slope * per_step)
    if now >= memory:
        rate = FLOOR_CHANGE / (slope * total_share * per_step)
        reason = (
            f"{view.path or 'it'} starts with a time constant of {now:.3g} steps, no less than the {memory:.3g} asked for: "
            f"its slowest mode may change by {FLOOR_CHANGE:.0%} over the run"
        )
        return RecurrentRate(view.path, rate, 0.0, high, reason)
    shift = _shift_to(view, memory)
    low = shift / (total_share * per_step)
    # a way of less than one e-fold is no reason for larger steps; a mode that is gone after a step counts as 1 step
    cap = MAX_CHANGE * shift / (max(math.log(memory / max(now, 1.0)), 1.0) * per_step)
    reason = (
        f"{view.path or 'it'} starts with a time constant of {now:.3g} steps; its weights have to move by {shift:.3g} for "
        f"{memory:.3g}, "
    )
    if cap < PROGRESS * low:
        reason += f"and a step may change the time constant by {MAX_CHANGE:.0%} at most"
    else:
        reason += f"{PROGRESS:.0f} times that is the way they get in this run"
    return RecurrentRate(view.path, min(PROGRESS * low, cap), low, high, reason)


def _slope(view: RecurrenceView, now: float) -> float:
    """d log tau / d shift at the start: how many times its size a unit of movement changes the slowest rate."""
    later = time_constant_after(view, SLOPE_STEP)
    slope = math.log(later / now) / SLOPE_STEP if math.isfinite(later) and 0 < now < math.inf else math.inf
    if not slope > 0:
        raise ArgumentError(
            f"{view.path}: its memory does not depend on its recurrent weights; no rate can lengthen it"
        )
    return slope


def _shift_to(view: RecurrenceView, memory: float) -> float:
    """The least movement of free weights that leads to the time constant `memory`, by bisection."""
    low, high = 0.0, 1e-3
    while time_constant_after(view, high) < memory:
        low, high = high, 2 * high
        if high > MAX_SHIFT:
            longest = time_constant_after(view, MAX_SHIFT)
            raise ArgumentError(
                f"memory: {view.path or 'the recurrence'} cannot remember {memory:.4g} steps, its parameterization ends at "
                f"{longest:.4g}; choose another, or constants whose range holds 1/{memory:.4g}"
            )
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if time_constant_after(view, middle) < memory else (low, middle)
    return high


def _known(model: nn.Module) -> list[RecurrenceView]:
    views = [view for view in recurrences(model) if not view.stated]
    if not views:
        raise ArgumentError(
            "the model has no recurrence that is known; describe it by holdfast.nn.StepFunction, or call "
            "holdfast.recurrences(model) to see what is found"
        )
    return views


def _total_share(schedule: Schedule, steps: int) -> float:
    if isinstance(schedule, str):
        return SCHEDULE_SHARES[schedule] * steps
    shares = list(schedule)
    if len(shares) != steps or not all(0 <= share < math.inf for share in shares) or not sum(shares) > 0:
        raise ArgumentError(
            f"schedule: expected {steps} shares of the rate, at least 0 and not all 0, got {len(shares)}"
        )
    return float(sum(shares))


def time_constant_after(view: RecurrenceView, shift: float) -> float:
    """The longest time constant on the way of weights that move by `shift` towards a longer memory; inf past the boundary.

    Matrices turn on the way, and units that saturate forget faster again: of those the longest on the way counts.
    """
    module = copy.deepcopy(view.module)
    own = next(other for other in recurrences(module) if _is_twin(view, other))
    longest = _time_constant(own)
    matrices = [weight for weight in own.weights if weight.decides and not weight.diagonal and own.gate is None]
    count = PATH_STEPS if matrices else 1
    for _ in range(count if shift > 0 else 0):
        _lengthen(own, matrices, shift / count)
        longest = max(longest, _time_constant(own))
    return longest


def _time_constant(view: RecurrenceView) -> float:
    margin = view.margin()
    if math.isnan(margin) or margin <= 0:
        return math.inf
    return -1 / math.log1p(-margin) if margin < 1 else 0.0


def _is_twin(view: RecurrenceView, other: RecurrenceView) -> bool:
    """Whether both look at the same weights, one of them in a copy of the module alone."""
    return [w.name for w in view.weights] == [w.name for w in other.weights]


@torch.no_grad()
def _lengthen(view: RecurrenceView, matrices: list[MemoryWeight], shift: float) -> None:
    """Moves every weight that carries memory by `shift`, in place, to where it lasts longer."""
    for weight in view.weights:
        if weight.diagonal and weight.decides:
            for parameter in weight.free.values():
                parameter.add_(shift * _direction(view, weight, parameter))
    for bias in _step_biases(view):
        bias.sub_(shift)  # a shorter step forgets less
    for bias in _gate_biases(view):
        bias.add_(shift)
    for weight in matrices:
        _lengthen_matrix(view, weight, shift)


def _direction(view: RecurrenceView, weight: MemoryWeight, parameter: Tensor) -> Tensor:
    """+1 or -1 for each entry: where its mode gets slower. Maps are monotone on either side of their smallest rate."""
    ahead, behind = (_slowness(view, weight, parameter, step) for step in (SLOPE_STEP, -SLOPE_STEP))
    return torch.where(ahead >= behind, 1.0, -1.0).to(parameter)


def _slowness(view: RecurrenceView, weight: MemoryWeight, parameter: Tensor, step: float) -> Tensor:
    """A number for each entry that grows as its mode gets slower, after a step of the free weight."""
    before = parameter.clone()
    parameter.add_(step)
    value = weight.value.double().clone()  # apart from the parameter, which is put back
    parameter.copy_(before)
    if weight.storage in ("log_negative", "softplus_negative"):
        return -value
    # a plain parameter is the free weight itself; behind a module the value is the eigenvalue already
    plain = weight.modes is not None and not isinstance(getattr(weight.module, weight.name), nn.Module)
    lam = weight.modes(value) if plain and weight.modes is not None else value
    return lam if view.time == "continuous" else lam.abs()


def _step_biases(view: RecurrenceView) -> list[Tensor]:
    names = [] if view.steps is None or view.steps.bias is None else [view.steps.bias]
    return [_attribute(view.module, name) for name in names if _attribute(view.module, name) is not None]


def _gate_biases(view: RecurrenceView) -> list[Tensor]:
    """The rows of every bias that adds into the gate: torch has bias_ih and bias_hh, so that the gate moves twice."""
    if view.gate is None:
        return []
    names = (view.gate.bias, view.gate.bias.replace("bias_hh", "bias_ih"))
    return [_attribute(view.module, name)[view.gate.first : view.gate.last] for name in dict.fromkeys(names)]


def _attribute(module: nn.Module, name: str) -> Any:
    owner, _, last = name.rpartition(".")
    return getattr(module.get_submodule(owner), last, None)


def _lengthen_matrix(view: RecurrenceView, weight: MemoryWeight, shift: float) -> None:
    """One step along the sign of the gradient of the slowest eigenvalue."""
    free = list(weight.free.values())
    with torch.enable_grad():
        part = getattr(view.module, weight.name)
        lam = torch.linalg.eigvals(part() if isinstance(part, nn.Module) else part)
        slowest = lam.real.max() if view.time == "continuous" else lam.abs().max()
        gradients = torch.autograd.grad(slowest, free, allow_unused=True)
    for parameter, gradient in zip(free, gradients, strict=True):
        if gradient is not None:
            parameter.add_(shift * gradient.sign())
