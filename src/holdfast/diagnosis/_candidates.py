"""Calls that may help against what was measured, before they are tried."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from holdfast.diagnosis._forgetting import Forgetting, ahead_of
from holdfast.diagnosis._learning import RATES, Learning
from holdfast.diagnosis._reaching import Reaching, faster_recurrence
from holdfast.diagnosis._remedies import Wiped, another_layer, place, smaller_steps
from holdfast.diagnosis._trial import MAX_RATE, Stage
from holdfast.diagnosis._weights import Edge, Survival
from holdfast.errors import HoldfastError, RangeError
from holdfast.nn import recurrences
from holdfast.stability import Certificate, stabilize

# what a call is for, by which it is judged: a longer memory, a smaller loss, a stable recurrence, or no harm
# "replacement": a lower loss by a part that is learned again, so that the loss before training says nothing of it
Purpose = Literal["memory", "loss", "replacement", "stability", "caution"]
SHORT_MEMORY_STEPS = 30  # a memory below that is reported how to be made longer even by default
MAX_STEPS_TO_EDGE = 100  # of Adam at full speed to the boundary that are worth a warning
EXPLODING_GROWTH = 3.0  # of the gradient from a sequence to one twice as long
BFLOAT16_ROUNDING = 0.004  # half of the last digit, relative
WIPING_DECAY = 1.0  # dt A of a step after which 1/e of the slowest state is left: the input can wipe the memory at once


@dataclass(frozen=True)
class Candidate:
    """A call that may help, before it was tried; the texts are those of the advice."""

    trouble: str
    number: str
    call: str
    effect: str
    purpose: Purpose
    stage: Stage = "change"
    # of Adam in the trial; None is that of the unchanged copy, which a layer that starts again has no use for
    rate: float | None = None


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that advice rests on; None is what could not be looked at."""

    model: Any
    memory: list[Forgetting]
    edge: Edge | None
    survival: Survival | None
    learning: Learning | None
    needs: int | None
    # why the model counts as trained, so that nothing that overwrites its weights is proposed; None where it does not
    trained: str | None = None
    # whether there are data of the user's, on which another layer is tried even where memory is not short
    data: bool = False
    # how far training can lengthen its memory
    reaching: Reaching | None = None

    @property
    def short(self) -> bool:
        """Whether it remembers less than was asked for, or little by default."""
        have = ahead_of(self.memory)
        return have is not None and have < (SHORT_MEMORY_STEPS if self.needs is None else self.needs)


def candidates(evidence: Evidence) -> list[Candidate]:
    """Calls that may help, but those for a longer memory, which are made by trying.

    Of a trained model without its data nothing is proposed: there is nothing to judge a change by. With data nothing that
    overwrites what it has learned; a layer replaces another only where it ends below the trained model.

    Args:
        evidence: what was measured.
    """
    if evidence.trained is not None and not evidence.data:
        return []
    rules: tuple[Callable[[Evidence], Iterator[Candidate]], ...] = (
        _unstable,
        _swap,
        _crossing,
        _rates,
        _faster,
        _clipping,
    )
    return [candidate for rule in (*rules, _wiping, _fragile) for candidate in rule(evidence)]


def _unstable(evidence: Evidence) -> Iterator[Candidate]:
    edge = evidence.edge
    if edge is None:
        return
    bad = [part for part in edge.parts if part.status in ("unstable", "marginal")]
    for part in bad:
        if part.euler is not None and not part.euler.stable and (part.continuous_margin or 0) > 0:
            yield _shorter_step(part, 0.9 * part.euler.largest_dt)
    rest = [part for part in bad if part.euler is None or (part.continuous_margin or 0) <= 0]
    call, effect = _stabilizing(evidence) if rest and edge.explodes else (None, "")
    if call is None:
        return
    worst = min(rest, key=lambda part: part.margin)
    number = (
        f"one step of {worst.path or 'the recurrence'} multiplies it by up to {1 - worst.margin:.4g}{_growing(worst)}"
    )
    yield Candidate("its state grows without bound", number, call, effect, "stability")


def _growing(part: Certificate) -> str:
    return f", by e in {-part.time_constant:.3g} steps" if part.time_constant < 0 else ""


def _shorter_step(part: Certificate, dt: float) -> Candidate:
    assert part.euler is not None
    return Candidate(
        "its time step is too long for the Euler method, and the state grows although the system is stable",
        f"dt = {part.euler.dt:g}, and the longest stable step is {part.euler.largest_dt:.3g}",
        f"{place(part.path)}.dt = {dt:.3g}",
        "a stable time step; resample the inputs at the new dt",
        "stability",
    )


def _swap(evidence: Evidence) -> Iterator[Candidate]:
    if not (evidence.data or evidence.short) or not isinstance(evidence.model, nn.Module):
        return
    other = another_layer(evidence.model)
    if other is not None:
        call, effect = other
        if evidence.trained is not None:
            effect += "; keep the trained model until the new one is better"
        have = ahead_of(evidence.memory)
        number = "" if have is None or math.isinf(have) else f"; the present one remembers {have:.0f} steps"
        texts = ("another layer learns the task better", f"S4D, a linear recurrence{number}", call, effect)
        yield Candidate(*texts, "replacement", rate=MAX_RATE)


def _crossing(evidence: Evidence) -> Iterator[Candidate]:
    edge = evidence.edge
    if edge is None or not edge.crosses:
        return
    parts = [part for part in edge.parts if part.path in edge.crosses or f"{part.path}.recurrence" in edge.crosses]
    parts = [part for part in parts or edge.parts if part.status == "stable"]
    if not parts:
        return
    nearest = min(parts, key=lambda part: part.margin)
    rate = 1e-3
    width = len(nearest.eigenvalues)
    steps = nearest.margin / (rate * max(width, 1))
    if steps > MAX_STEPS_TO_EDGE:
        return
    call, effect = _stabilizing(evidence)
    if call is not None:
        number = (
            f"{max(steps, 1):.0f} steps of Adam at learning rate {rate:g} could use up the margin of "
            f"{nearest.margin:.3g} per step of {width} units"
        )
        yield Candidate("training can make it unstable", number, call, effect, "stability")


def _stabilizing(evidence: Evidence) -> tuple[str | None, str]:
    """The call that works on a copy of this model, and what it changes; of a trained one only what leaves outputs alone."""
    model = evidence.model
    if not isinstance(model, nn.Module):
        return None, ""
    for allow in (False,) if evidence.trained is not None else (False, True):
        changed = copy.deepcopy(model)
        try:
            done = stabilize(changed, allow_change=allow)
        except RangeError:
            continue
        except (HoldfastError, RuntimeError):
            return None, ""
        moved = max(done.changes.values(), default=0.0)
        same = (
            "outputs are unchanged"
            if moved < 1e-3
            else f"the weights change once by {100 * moved:.2g}%, and the outputs with them"
        )
        extra = ", allow_change=True" if allow else ""
        return f"holdfast.stabilize(model{extra})", f"no training step can make this recurrence unstable; {same}"
    return None, ""


def _rates(evidence: Evidence) -> Iterator[Candidate]:
    learning = evidence.learning
    if learning is not None and learning.pair is not None:
        lr, own = learning.pair
        yield Candidate(
            "its recurrent weights limit the learning rate",
            f"{learning.safe:.2g} is stable for all weights, {lr:.2g} for the others with recurrent_lr={own:.2g}",
            "optimizer = torch.optim.Adam(\n"
            f"    holdfast.parameter_groups(model, lr={lr:.2g}, recurrent_lr={own:.2g})\n)",
            "a separate learning rate for the recurrent weights",
            "loss",
            "optimizer",
        )


def _faster(evidence: Evidence) -> Iterator[Candidate]:
    learning = evidence.learning
    if learning is not None:
        # that of the unchanged copy, so that a trial compares recurrent rates alone
        lr = min(learning.safe or min(RATES), MAX_RATE)
        for texts in faster_recurrence(evidence.reaching, lr):
            yield Candidate(*texts, "loss", "optimizer")


def _clipping(evidence: Evidence) -> Iterator[Candidate]:
    learning = evidence.learning
    # where no rate is stable it is Adam's own step that is too long, which clipping does not shorten
    if learning is None or learning.safe is None or not EXPLODING_GROWTH < learning.growth < math.inf:
        return
    start = learning.norm / learning.growth
    limit = f"{start:.0f}" if start >= 10 else f"{start:.2g}"
    yield Candidate(
        "its gradient explodes with the length of the sequence",
        f"{learning.growth:.3g} times larger for sequences twice as long",
        f"torch.nn.utils.clip_grad_norm_(model.parameters(), {limit})",
        "no step is larger than at half the length; call it before each optimizer.step()",
        "loss",
        "step",
    )


def _wiping(evidence: Evidence) -> Iterator[Candidate]:
    """One candidate for all recurrences of a kind: a large model has dozens of them."""
    if evidence.edge is None or not isinstance(evidence.model, nn.Module):
        return
    views = {view.path: view for view in recurrences(evidence.model)}
    wiped: dict[str, list[Wiped]] = {}
    for part in evidence.edge.parts:
        seen, slowest = part.selective, part.continuous_margin
        if seen is not None and slowest is not None and seen.largest * slowest > WIPING_DECAY:
            view = views[part.path]
            wiped.setdefault(type(view.module).__name__, []).append(Wiped(view, seen.largest, WIPING_DECAY / slowest))
    for kind, several in wiped.items():
        worst = max(several, key=lambda one: one.largest / one.limit)
        remedy = smaller_steps(kind, several, worst)
        if remedy is None:
            continue
        many = "" if len(several) == 1 else f", the most of {len(several)} layers"
        yield Candidate(
            "a single input can erase its memory",
            f"dt of {worst.view.owner or 'the model'} reaches {worst.largest:.3g}{many}: such a step leaves "
            f"e^-{worst.largest / worst.limit:.3g} of the slowest state",
            *remedy,
            "caution",
        )


def _fragile(evidence: Evidence) -> Iterator[Candidate]:
    survival = evidence.survival
    if survival is None or not survival.half:
        return
    random = survival.random
    if random.share < BFLOAT16_ROUNDING and random.censored != "at least":
        yield Candidate(
            "16 bits are too few for its recurrent weights",
            f"random changes above {100 * random.share:.2g}% of their size change outputs by 10%; bfloat16 rounds by 0.4%",
            "model.float()  # and keep recurrent weights out of autocast",
            "recurrent weights in float32, whose rounding is harmless",
            "caution",
        )
