"""How fast a memory can be learned: how far training can move a time constant, and the learning rate that it takes.

Adam moves a free weight by about the learning rate eta at every step, whatever the gradient is. In K steps of a schedule
with shares s_k a weight moves by at most about eta S, S = sum s_k, so that a mode of rate r0 reaches the time constant

    1 / |f(f^-1(-r0) -+ eta S)|

and no longer one: tau0 e^(eta S) for exp, a (|w0| + eta S)^2 + b for best. Of a gate, f is the sigmoid of its bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from holdfast._arguments import checked, positive
from holdfast.errors import ArgumentError
from holdfast.nn import RecurrenceView, recurrences
from holdfast.stability._movement import Movement
from holdfast.stability._safe_step import safe_step

Schedule = Literal["cosine", "constant", "linear"] | Sequence[float]
SCHEDULE_SHARES = {"cosine": 0.5, "linear": 0.5, "constant": 1.0}  # mean share of the rate over a run
# (1 - b1) / sqrt(1 - b2) of Adam's usual betas 0.9 and 0.999: the most that one step moves a weight, in learning rates
ADAM_MAX_STEP = 0.1 / math.sqrt(0.001)
# Both constants were chosen on linear targets and on digits, recall, delays and sums through a stack, at 100 to 1,000 steps,
# and tried on tasks that they were not chosen on (experiment rates-rule).
PROGRESS = 20.0  # times the shortest way that weights have to go: gradients of a long memory are seldom of one sign
MAX_CHANGE = 0.4  # of log tau in a step, mean over the way: the cap of delta
# e-folds of the time constant: the way of a run whose start has the memory. Other modes and frequencies have to be learned all
# the same; chosen on linear targets and on 300 steps of sequential MNIST, where 0.005, 0.05 and 1 end higher.
MIN_WAY = 0.25


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
        low: below it the weights cannot get to the memory that is asked for; 0 where the start has it.
        high: above it one step can change the layer's impulse response by more than its own size (StableSSM, eq. 65), or
            where what reads the state is not known, the slowest rate by more than its own size.
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
    recurrences whose modes have weights of their own. Of matrices, dense forms and torch.nn.RNN among them, both follow the
    slowest eigenvalue uphill, which need not be the longest way; of gates both count what their biases do, and inputs and
    other units may add to that.

    Args:
        model: a model with recurrences that `holdfast.recurrences` knows; it is left as it is.
        lr: learning rate of its recurrent weights, and of the biases of its gates.
        steps: optimizer steps.
        schedule: "cosine", "linear" or "constant", or the share of the rate at each step.

    Returns:
        a RecurrenceReach for each recurrence, with its time constants in steps to 1/e: `now`, `reached` and `provable`.

    Raises:
        ArgumentError: an lr or a number of steps that is not above 0, shares that are not one per step, or a recurrence that
            is not known or does not forget at its start.
        UnknownNameError: a schedule that is not known.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.DiagonalSSM(1, 1, eigenvalues=torch.tensor([-0.1]))
        >>> (found,) = holdfast.stability.reach(layer, lr=0.01, steps=200)
        >>> [round(steps, 1) for steps in (found.now, found.reached, found.provable)]
        [10.0, 17.2, 39.5]
    """
    positive(steps=steps)
    if not 0 < lr < math.inf:
        raise ArgumentError(f"lr: expected a number above 0, got {lr}")
    moved = lr * _total_share(schedule, steps)
    ways = (Movement(view) for view in known_recurrences(model))
    return tuple(
        RecurrenceReach(way.path, way.start, way.time_constant(moved), way.time_constant(ADAM_MAX_STEP * moved))
        for way in ways
    )


@checked
def recurrent_rate(
    model: nn.Module,
    *,
    steps: int,
    memory: int | float,
    optimizer: Literal["adam", "sgd"] = "adam",
    gradient: float | None = None,
    schedule: Schedule = "cosine",
) -> RecurrentRate:
    """The learning rate of recurrent weights with which a run can learn the memory that it needs.

    eta = d min(20 / S, 0.4 / ln(memory / tau)), d the distance of free weights between the time constant tau at the start
    and `memory`, S the sum of the schedule's shares: 20 times the shortest way, but no step that changes the slowest rate by
    more than 0.4 of itself. Plain gradient descent moves a weight by eta |gradient| instead of eta. Where the start already
    remembers long enough, or nearly, the rate is that for a time constant 28% longer, a quarter of an e-fold: other modes and
    frequencies have to be learned anyway. A model with several recurrences has the smallest of their rates, and each
    of them in `parts`.

    Of torch's LSTM and GRU it is the rate of the biases, two of which add into the gate that keeps the state; of Mamba that
    of A and of the bias of its step sizes. `holdfast.parameter_groups(..., recurrent_lr=rate)` takes the result.

    Args:
        model: a model with recurrences that `holdfast.recurrences` knows; it is left as it is.
        steps: optimizer steps of the run.
        memory: time constant to be learned, in steps to 1/e.
        optimizer: "adam" (AdamW too) or "sgd".
        gradient: with "sgd", the size of a recurrent weight's gradient.
        schedule: "cosine", "linear" or "constant", or the share of the rate at each step.

    Returns:
        a RecurrentRate: `rate`, the bounds `low` and `high`, the reason, and one entry per recurrence in `parts`.

    Raises:
        ArgumentError: no known recurrence, or a parameterization that cannot hold such a memory.

    Example:
        >>> import torch, holdfast
        >>> _ = torch.manual_seed(0)
        >>> rate = holdfast.recurrent_rate(torch.nn.LSTM(1, 16), steps=1000, memory=100)
        >>> rate.low < rate.rate < rate.high
        True
    """
    positive(steps=steps)
    if not memory >= 1:
        raise ArgumentError(f"memory: expected at least 1 step, got {memory}")
    if (optimizer == "sgd") != (gradient is not None):
        raise ArgumentError(
            "optimizer='sgd' needs gradient=, since it moves a weight by lr |gradient|, and only it uses it; got "
            f"{optimizer=}, {gradient=}"
        )
    scale = _total_share(schedule, steps)
    per_step = 1.0 if gradient is None else abs(gradient)
    if not per_step > 0:
        raise ArgumentError(f"gradient must be above 0, got {gradient}")
    parts = tuple(_rate_of(view, float(memory), scale, per_step) for view in known_recurrences(model))
    smallest = min(parts, key=lambda part: part.rate)
    return smallest if len(parts) == 1 else replace(smallest, parts=parts)


def _rate_of(view: RecurrenceView, memory: float, total_share: float, per_step: float) -> RecurrentRate:
    way = Movement(view)
    scale = total_share * per_step
    high = safe_step(way) / per_step
    begins = f"{view.path or 'the recurrence'} starts with a time constant of {way.start:.3g} steps"
    enough = way.start >= memory * math.exp(-MIN_WAY)
    low = 0.0 if way.start >= memory else way.shift_to(memory) / scale
    shift = MIN_WAY / way.slope() if enough else low * scale
    full = PROGRESS * shift / scale
    # a way of less than one e-fold is no reason for larger steps; a mode that is gone after a step counts as 1 step
    cap = MAX_CHANGE * shift / (max(math.log(memory / max(way.start, 1.0)), 1.0) * per_step)
    reason = f"{begins}; its weights have to move by {shift:.3g} for {memory:.3g}"
    if enough:
        more = f"the rate is that for one {math.expm1(MIN_WAY):.0%} longer, a way of {shift:.3g}"
        reason = f"{begins}, enough for {memory:.3g}: {more}"
    elif cap >= full:
        reason += f", and get {PROGRESS:g} times that way in this run"
    elif cap >= low:
        reason += (
            f", and get {cap / low:.3g} times that way in this run: a step changes its rate by at most {MAX_CHANGE:.0%}"
        )
    else:
        reason += f", and steps that change its rate by at most {MAX_CHANGE:.0%} get {cap / low:.0%} of that way: train longer"
    return RecurrentRate(view.path, min(full, cap), low, high, reason)


def known_recurrences(model: nn.Module) -> list[RecurrenceView]:
    """The recurrences of a model; an error where there is none."""
    views = [view for view in recurrences(model) if not view.stated]
    if not views:
        raise ArgumentError(
            "model must have a recurrence that holdfast recognizes, got none; describe its step with holdfast.nn.StepFunction"
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
