"""Which call helps against what was found, each with the number behind it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from holdfast.diagnosis.forgetting import Forgetting
from holdfast.diagnosis.learning import Learning
from holdfast.diagnosis.longer import LOG100, each, longer_memory, place
from holdfast.diagnosis.smaller import Wiped, smaller_steps
from holdfast.diagnosis.weights import Edge, Survival, lasting_of
from holdfast.errors import HoldfastError, RangeError
from holdfast.nn import recurrences
from holdfast.nn._views.step_function import known_size
from holdfast.stability import Certificate, stabilize

SHORT = 30  # steps: a memory below that is told how to be made longer even where nobody asked for more
NOMINAL = 100  # steps that it is then made for
SOON = 100  # steps of Adam to the boundary at full speed that are worth a warning
EXPLODES = 3.0  # growth of the gradient from a sequence to one twice as long
BFLOAT16 = 0.004  # half of the last digit of bfloat16, relative
WIPES = 1.0  # dt A of a step after which 1/e of the slowest state is left: the input can wipe the memory at once


@dataclass(frozen=True)
class Advice:
    """One thing to do.

    Args:
        trouble: what is wrong, in plain words.
        number: the number behind it.
        call: what to type.
        effect: what it does, and what it costs.
    """

    trouble: str
    number: str
    call: str
    effect: str

    def to_dict(self) -> dict[str, str]:
        """The four texts."""
        return {"trouble": self.trouble, "number": self.number, "call": self.call, "effect": self.effect}


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything that advice rests on; None is what could not be looked at."""

    model: Any
    memory: list[Forgetting]
    edge: Edge | None
    survival: Survival | None
    learning: Learning | None
    needs: int | None


def advise(found: Findings) -> list[Advice]:
    """What to do, in the order in which to do it.

    Args:
        found: what was measured.
    """
    # a new start of the weights comes before a parameterization that is made for the present ones
    rules: tuple[Callable[[Findings], Iterator[Advice]], ...] = (_unstable, _memory, _crossing, _rates, _clipping)
    return [advice for rule in (*rules, _wiping, _fragile) for advice in rule(found)]


def _unstable(found: Findings) -> Iterator[Advice]:
    if found.edge is None:
        return
    bad = [part for part in found.edge.parts if part.status != "stable"]
    for part in bad:
        if part.euler is not None and not part.euler.stable and (part.continuous_margin or 0) > 0:
            yield _shorter_step(part, 0.9 * part.euler.largest_dt)
    rest = [part for part in bad if part.euler is None or (part.continuous_margin or 0) <= 0]
    if not rest:
        return
    worst = min(rest, key=lambda part: part.margin)
    number = f"a step of {worst.path or 'its recurrence'} multiplies by up to {1 - worst.margin:.4g}{_growing(worst)}"
    call, effect = _stabilizing(found.model)
    if call is None:
        call = f"torch.nn.init.orthogonal_({_weight(worst.path)}, gain=0.5)"
        effect = "a smaller recurrent weight to start from: gates bound the state, and no parameterization helps them"
    yield Advice("its state grows or never settles, and outputs may explode", number, call, effect)


def _growing(part: Certificate) -> str:
    return f", an e-fold in {-part.time_constant:.3g} steps" if part.time_constant < 0 else ""


def _shorter_step(part: Certificate, dt: float) -> Advice:
    assert part.euler is not None
    return Advice(
        "its step is too long for Euler's rule, and the state grows though the system is stable",
        f"dt = {part.euler.dt:g}, and the longest stable step is {part.euler.largest_dt:.3g}",
        f"{place(part.path)}.dt = {dt:.3g}",
        "a stable step; times are counted in dt, so give inputs as often",
    )


def _crossing(found: Findings) -> Iterator[Advice]:
    edge = found.edge
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
    if steps > SOON:
        return
    call, effect = _stabilizing(found.model)
    if call is not None:
        yield Advice(
            "training can push it over the edge",
            f"{max(steps, 1):.0f} steps of Adam at {rate:g} on {width} units could use up its margin, {nearest.margin:.3g}",
            call,
            effect,
        )


def _stabilizing(model: Any) -> tuple[str | None, str]:
    """The call that works on a copy of this model, and what it changes."""
    if not isinstance(model, nn.Module):
        return None, ""
    for allow in (False, True):
        try:
            done = stabilize(copy.deepcopy(model), allow_change=allow)
        except RangeError:
            continue
        except (HoldfastError, RuntimeError):
            return None, ""
        moved = max(done.changes.values(), default=0.0)
        same = "outputs stay as they are" if moved < 1e-3 else f"weights move by {100 * moved:.2g}% once"
        extra = ", allow_change=True" if allow else ""
        return f"holdfast.stabilize(model{extra})", f"no step of training can make this recurrence unstable; {same}"
    return None, ""


def _rates(found: Findings) -> Iterator[Advice]:
    learning = found.learning
    if learning is None:
        return
    if learning.safe is None:
        yield Advice(
            "no learning rate from 1e-4 on is safe",
            f"gradient norm {learning.norm:.3g}",
            f"torch.nn.utils.clip_grad_norm_(model.parameters(), {min(learning.norm, 1.0):.2g})",
            "bounds every step; then try rates below 1e-4",
        )
        return
    if learning.pair is not None:
        lr, own = learning.pair
        yield Advice(
            "its recurrent weights hold the learning rate down",
            f"all weights bear {learning.safe:.2g}, the others {lr:.2g} while the recurrent ones go at {own:.2g}",
            f"holdfast.parameter_groups(model, lr={lr:.2g}, recurrent_lr={own:.2g})",
            "two groups for the optimizer; rates of the weights as they are: diagnose again after another advice",
        )


def _clipping(found: Findings) -> Iterator[Advice]:
    learning = found.learning
    if learning is None or not learning.growth > EXPLODES:
        return
    start = learning.norm / learning.growth
    limit = f"{start:.0f}" if start >= 10 else f"{start:.2g}"
    yield Advice(
        "its gradient explodes with the length of the sequence",
        f"{learning.growth:.3g} times larger for sequences twice as long",
        f"torch.nn.utils.clip_grad_norm_(model.parameters(), {limit})",
        "a step is never longer than one at half the length; before each optimizer.step()",
    )


def _memory(found: Findings) -> Iterator[Advice]:
    have = next((one.steps for one in found.memory if one.kind == "impulse" and one.way == "ahead"), None)
    if have is None or math.isinf(have):
        return
    asked = found.needs is not None
    wanted = found.needs if found.needs is not None else NOMINAL
    if have >= (wanted if asked else SHORT) or not isinstance(found.model, nn.Module):
        return
    number = f"it remembers {have:.0f} step{'' if have == 1 else 's'}" + (f", the task needs {wanted}" if asked else "")
    if (lasting := lasting_of(found.edge)) * LOG100 >= wanted:
        yield Advice(
            "its state lasts longer than its outputs show",
            f"{number}; its slowest recurrence keeps 1/e for {lasting:,.0f} steps, of which outputs read less than 1%",
            _each_layer(found.model),
            "nothing is wrong with the recurrence: training has to raise what reads its state (C, out_proj)",
        )
        return
    trouble = (
        "it forgets before the task is over" if asked else f"short memory, if your task reaches back {wanted} steps"
    )
    for call, effect in longer_memory(found.model, have, wanted):
        yield Advice(trouble, number, call, effect)


def _each_layer(model: nn.Module) -> str:
    """The diagnosis of every recurrent layer by itself, which shows which one is not read; of one alone its slow modes."""
    module = recurrences(model)[0].module
    if module is model:
        return "print(holdfast.certify(model))"
    size = known_size(module) or getattr(module, "hidden_size", None)
    call = f"print(holdfast.diagnose(m, input_size={size}))" if size else "print(holdfast.diagnose(m))"
    return each(type(module).__name__, call)


def _wiping(found: Findings) -> Iterator[Advice]:
    """One advice for all recurrences of a kind: a large model has dozens of them."""
    wiped: dict[str, list[Wiped]] = {}
    views = {} if found.edge is None else {view.path: view for view in recurrences(found.model)}
    for part in () if found.edge is None else found.edge.parts:
        seen, slowest = part.selective, part.continuous_margin
        if seen is not None and slowest is not None and seen.largest * slowest > WIPES:
            view = views[part.path]
            wiped.setdefault(type(view.module).__name__, []).append(Wiped(view, seen.largest, WIPES / slowest))
    for kind, several in wiped.items():
        worst = max(several, key=lambda one: one.largest / one.limit)
        call, effect = smaller_steps(kind, several, worst)
        many = "" if len(several) == 1 else f", the most of {len(several)} layers"
        yield Advice(
            "inputs can wipe its memory in one step",
            f"dt of {worst.view.owner or 'the model'} reaches {worst.largest:.3g}{many}: such a step keeps "
            f"e^-{worst.largest / worst.limit:.3g} of the slowest state",
            call,
            effect,
        )


def _fragile(found: Findings) -> Iterator[Advice]:
    survival = found.survival
    if survival is not None and survival.half and survival.share < BFLOAT16 and survival.censored != "at least":
        yield Advice(
            "its recurrent weights are too coarse to be trained",
            f"changes above {100 * survival.share:.2g}% of their size move outputs by a tenth; bfloat16 rounds by 0.4%",
            "model.float()  # and keep recurrent weights out of autocast",
            "recurrent weights in float32: rounding them is then harmless",
        )


def _weight(path: str) -> str:
    module, _, name = path.rpartition(".")
    return f"{place(module)}.{name}"
