"""What must hold before a curve means anything: shapes, repeatable outputs, separate rows, causality, and rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.memory._curve import ModelError, NotCausalError, NotRepeatableError
from holdfast.memory._subject import MAX_BATCH_NUMBERS, Subject, learn_state

CUT_PLACES = 3  # places behind which a long run's inputs are changed
CHECK_STEPS = 12  # length of the short runs; each check is a run or two of this length
RELATIVE_NUDGE = 2.0**-27  # relative change of an input that crosses every sixth rounding of float32, and bends nothing
MAX_SETTLING_STEPS = 4096  # without a state every probe runs them again
MAX_STREAMED_STEPS = 65536  # from a state they are run once
MIN_SETTLING_STEPS = 8  # steps before a probe even where nothing moves: they show whether later inputs leak into them
SETTLED_SHARE = 1e-9  # a float64 model has settled when it moves by less than this share of what it moved altogether


def prepare(subject: Subject, generator: torch.Generator, *, causal: bool = True) -> None:
    """Raises ModelError, naming the fix, where the model cannot be measured; sets the subject's output size and state.

    Everything is judged on short runs of random inputs, so that it costs little next to the measurement.
    """
    _learn_shape(subject)
    x = subject.normal(3, CHECK_STEPS, generator)
    y = subject(x)
    if not bool(torch.isfinite(y).all()):
        return  # a status of the curve, where it is seen when and for which input it began
    _learn_rounding(subject, x, y)
    _check_repeatable(subject, x, y)
    _check_rows(subject, x, y)
    if causal:
        _check_causal(subject, x, y, generator)
        learn_state(subject, x, y)


def check_far_sight(subject: Subject, steps: int, seed: int) -> None:
    """Raises ModelError where an output sees an input up to `steps` later, wherever in the run and however far.

    Each row's inputs change behind a place of its own, at random: a model that looks ahead within blocks is caught
    unless all places happen to be their ends. Both runs have one shape and the same rows, so that even a chaotic model
    repeats itself bit by bit up to that place.
    """
    generator = torch.Generator().manual_seed(seed)
    steps = min(steps, subject.longest or steps)
    # of a large model one: six rows of 257 steps took it as long as the probe itself
    places = CUT_PLACES if subject.affordable_rows(steps) > CUT_PLACES else 1
    x, other = (subject.normal(places, steps, generator) for _ in range(2))
    cuts = torch.randint(1, steps, (places, 1), generator=generator).to(subject.device)
    # up to its cut each row sees the same inputs in both runs
    before = torch.arange(steps, device=subject.device) < cuts
    y, changed = subject(x), subject(torch.where(before.unsqueeze(-1), x, other))
    if not bool(torch.isfinite(y).all() and torch.isfinite(changed).all()):
        return
    ahead = float(((changed - y).abs().amax(-1) * before).max())
    # rounding in the size of what comes later too: a convolution by FFT spreads it over all steps
    if not ahead <= max(subject.tolerance(y), subject.tolerance(changed)):
        raise _not_causal("later inputs change earlier outputs", ahead)


def _learn_shape(subject: Subject) -> None:
    shapes = [tuple(subject.raw(subject.zeros(2, steps))[0].shape) for steps in (CHECK_STEPS, CHECK_STEPS - 3)]
    # two lengths: a model that pools gives the same shape for both
    long, short = shapes
    if len(long) == 3 and long[:2] == (2, CHECK_STEPS) and short == (2, CHECK_STEPS - 3, long[2]):
        subject.outputs, subject.flat = long[2], False
    elif long == (2, CHECK_STEPS) and short == (2, CHECK_STEPS - 3):
        subject.outputs, subject.flat = 1, True
    elif long == short:
        raise ModelError(
            f"expected one output per step, got one answer per sequence (shape {long} for inputs of {CHECK_STEPS} and of "
            f"{CHECK_STEPS - 3} steps); give the model without its pooling, or use repeated_input_memory"
        )
    else:
        raise ModelError(
            f"expected outputs (batch, time, outputs) as long as the input, got {long} and {short} for inputs of 2 rows and "
            f"{CHECK_STEPS} and {CHECK_STEPS - 3} steps; wrap the model in a function that returns one output per step"
        )


def _learn_rounding(subject: Subject, x: Tensor, y: Tensor) -> None:
    """Raises `subject.eps` where a float64 model rounds to float32 inside, as transformers' models do in norms and logits.

    Outputs answer linearly to two changes this small, one twice the other, unless rounding is in the way.
    """
    if subject.dtype != torch.float64:
        return
    if y.dtype != torch.float64:
        subject.eps = torch.finfo(y.dtype).eps
        return
    once, twice = (subject(x * (1 + k * RELATIVE_NUDGE)) for k in (1, 2))
    bent = float((twice - 2 * once + y).abs().max()) / max(float(y.abs().max()), torch.finfo(y.dtype).tiny)
    if bent > 1e-12:  # rounding of float64 leaves 1e-15, second derivatives 1e-16 times their size
        subject.eps = torch.finfo(torch.float32).eps


def _check_repeatable(subject: Subject, x: Tensor, y: Tensor) -> None:
    refuse_unrepeatable(y, subject(x), subject.tolerance(y))


def refuse_unrepeatable(y: Tensor, again: Tensor, tolerance: float) -> None:
    """Raises NotRepeatableError where two runs of one input differ by more than the tolerance, rounding."""
    # what is not finite in both is no difference: a model that diverges is a status of what is measured
    same = (y == again) | (torch.isnan(y) & torch.isnan(again))
    gap = torch.where(same, 0.0, (again - y).abs().double())
    difference = float(gap.max()) if gap.numel() else 0.0
    if not difference <= tolerance:
        raise NotRepeatableError(
            f"the same input gave outputs that differ by {difference:.3g}: dropout or noise is on, or the model keeps "
            "a state between calls. Leave mode='eval', switch the noise off, or reset the state inside the function."
        )


def _check_rows(subject: Subject, x: Tensor, y: Tensor) -> None:
    alone = torch.cat([subject(row.unsqueeze(0)) for row in x])
    difference = float((alone - y).abs().max())
    if not difference <= subject.tolerance(y):
        raise ModelError(
            f"rows of a batch influence each other: alone they differ by {difference:.3g}. The model may take (time, "
            "batch, features), as torch.nn.RNN does without batch_first=True: pass "
            "run=holdfast.memory.Run(layout='time_first')."
        )


def _check_causal(subject: Subject, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
    # both ways a future can leak: by its values, and by how long it is
    half = CHECK_STEPS // 2
    changed = torch.cat([x[:, :half], subject.normal(len(x), CHECK_STEPS - half, generator)], 1)
    ahead = float((subject(changed) - y)[:, :half].abs().max())
    shorter = float((subject(x[:, :half]) - y[:, :half]).abs().max())
    if not max(ahead, shorter) <= subject.tolerance(y):
        what = (
            "later inputs change earlier outputs"
            if ahead > subject.tolerance(y)
            else "outputs depend on the total length"
        )
        raise _not_causal(what, max(ahead, shorter))


def _not_causal(what: str, by: float) -> NotCausalError:
    return NotCausalError(
        f"the model is not causal: {what} (by {by:.3g}). This probe needs a causal model: add the causal mask, drop the "
        "backward direction, or use repeated_input_memory."
    )


@dataclass(frozen=True)
class Settling:
    """`steps` to wait, whether the output stood still by then, and by how much it still moved if not.

    `state` is the model's after these steps, where it has one.
    """

    steps: int
    settled: bool
    remaining: float
    state: Any = None


def longest_settling(subject: Subject, rows: int) -> int:
    """How long to wait by default: 4096 steps, or up to 65536 where a state spares running them with every probe."""
    if subject.row_axes is None:
        return MAX_SETTLING_STEPS
    fitting = min(
        MAX_BATCH_NUMBERS // (rows * max(subject.input_size, subject.outputs)),
        MAX_STREAMED_STEPS * subject.affordable_rows(MAX_STREAMED_STEPS) // rows,
    )
    return min(max(fitting, MAX_SETTLING_STEPS), MAX_STREAMED_STEPS)


def settle(subject: Subject, x: Float[Tensor, "rows inputs"], longest: int, *, keep_state: bool = False) -> Settling:
    """Runs the constant inputs x from the model's own initial state, 64 steps, then ever more until it settles.

    Settled: over the last quarter of the run no output moves by more than SETTLED_SHARE of its whole movement, or by more
    than rounding. The steps returned end a quarter after the first moment from which that holds; with `keep_state` they
    are the whole run if the model has a state, which is returned with them: they need not be run again.
    """
    keeps = keep_state and subject.row_axes is not None
    constant = x.to(subject.device, subject.dtype).unsqueeze(1)
    y, state = subject.advance(constant.expand(-1, min(64, longest), -1).contiguous())
    while True:
        steps = y.shape[1]
        if not bool(torch.isfinite(y).all()):
            return Settling(MIN_SETTLING_STEPS, False, float("inf"))
        # from the last output, not from step to step: a slow drift moves little in a step and far in a run
        away, allowed = _movement(subject, y)
        moving = torch.nonzero(away > allowed)
        first = 0 if len(moving) == 0 else int(moving[-1]) + 1
        # still for a quarter of the run: shorter stands may be a turning point
        if first <= steps - steps // 4:
            if keeps:
                return Settling(steps, True, 0.0, state)
            return Settling(max(MIN_SETTLING_STEPS, min(first + first // 4, longest)), True, 0.0)
        if steps >= longest:
            # what the last quarter still moved goes into the note of an unsettled curve
            quarter = float(away[-max(steps // 4, 1) :].max())
            return Settling(longest, False, quarter, state if keeps else None)
        y, state = _prolong(subject, constant, y, state, longest)


def settle_for(subject: Subject, x: Float[Tensor, "rows inputs"], steps: int) -> Settling:
    """Whether the constant inputs x leave the output at rest after `steps` steps, judged over a third as many more."""
    constant = x.to(subject.device, subject.dtype).unsqueeze(1)
    y = subject(constant.expand(-1, steps + max(steps // 3, 16), -1).contiguous())
    if not bool(torch.isfinite(y).all()):
        return Settling(steps, False, float("inf"))
    away, allowed = _movement(subject, y)
    remaining = float(away[max(steps - 1, 0) :].max())
    return Settling(steps, remaining <= allowed, remaining)


def _movement(subject: Subject, y: Float[Tensor, "rows steps outputs"]) -> tuple[Float[Tensor, " steps"], float]:
    """How far the outputs of each step are from the last, and how far counts as standing still."""
    away = (y - y[:, -1:]).abs().amax((0, 2))
    rounding = 4 * float(subject.rounding(y).max())
    return away, max(SETTLED_SHARE * float(away.max()), rounding)


def _prolong(subject: Subject, constant: Tensor, y: Tensor, state: Any, longest: int) -> tuple[Tensor, Any]:
    """A run twice as long, from the state where the model has one; else 4 times as long, from the beginning."""
    steps = y.shape[1]
    if subject.row_axes is None:
        return subject.advance(constant.expand(-1, min(4 * steps, longest), -1).contiguous())
    # from the state each step is run once; without one the run begins again, so that it grows faster
    more, state = subject.advance(constant.expand(-1, min(steps, longest - steps), -1).contiguous(), state)
    return torch.cat([y, more], 1), state
