"""A diagnosis in words: blocks of a head and its sentences, plain ones first, the papers' behind `details`."""

from __future__ import annotations

import math
import re
import textwrap
from typing import TYPE_CHECKING

from holdfast.decay._memory_study import REMAINING_SHARE
from holdfast.diagnosis.forgetting import Cause, Forgetting, why_they_differ
from holdfast.diagnosis.learning import RATES, SAFE
from holdfast.diagnosis.longer import LOG100
from holdfast.diagnosis.task import LITTLE
from holdfast.diagnosis.weights import MOVED, lasting_of
from holdfast.stability import Certificate

if TYPE_CHECKING:
    from holdfast.diagnosis.result import Diagnosis

HEAD = 10  # columns of the heads
ROUGH = "; roughly, since the model was not at rest"
INDENT = "   "  # of what belongs to a number
NUMBERED = re.compile(r"\d+\. ")  # how advice begins
MOST = 6  # recurrences that a screen names
UNREAD = 3.0  # times that the slowest recurrence outlasts the measured memory where that needs a word

Block = tuple[str, list[str]]


def screen(found: Diagnosis, *, details: bool, width: int) -> list[str]:
    """The blocks as lines of at most `width` columns.

    Args:
        found: the diagnosis.
        details: whether the papers' numbers are wanted too.
        width: columns.
    """
    lines = textwrap.wrap(f"{found.name}: {found.about}", width)
    for head, sentences in blocks(found, details=details):
        for k, sentence in enumerate(sentences):
            start = f"{head if k == 0 else '':<{HEAD}}"
            own = len(sentence) - len(sentence.lstrip())
            after = " " * (HEAD + (len(INDENT) if NUMBERED.match(sentence) else own))
            lines += textwrap.wrap(
                sentence, width, initial_indent=start, subsequent_indent=after, break_on_hyphens=False
            )
    return lines


def blocks(found: Diagnosis, *, details: bool) -> list[Block]:
    """Head and sentences of everything that there is to say.

    Args:
        found: the diagnosis.
        details: whether the papers' numbers are wanted too.
    """
    parts: list[Block] = [("MEMORY", memory(found)), ("TASK", task(found)), ("EDGE", edge(found))]
    parts += [("WEIGHTS", survival(found)), ("TRAINING", training(found)), ("ADVICE", advice(found))]
    if details:
        parts.append(("DETAILS", in_detail(found)))
    parts += [("NOT SEEN", list(found.unseen)), ("NOTES", list(found.notes))]
    return [(head, sentences) for head, sentences in parts if sentences]


def number(value: float) -> str:
    """Two or three digits, and no powers of ten for what people count."""
    return f"{value:,.0f}" if 100 <= value < 1e7 else f"{value:.3g}" if value >= 10 else f"{value:.2g}"


def memory(found: Diagnosis) -> list[str]:
    """How far it remembers."""
    said = [_reach(one) + (ROUGH if one.curve.status == "unsettled" else "") for one in found.memory]
    why = why_they_differ(list(found.memory), _cause(found)) if found.memory else None
    return [*said, why] if why else said


def _cause(found: Diagnosis) -> Cause:
    if found.edge is None:
        return "unknown"
    return "selection" if any(part.selective is not None for part in found.edge.parts) else "gates"


def _reach(one: Forgetting) -> str:
    what = "one input (impulse)" if one.kind == "impulse" else "a change that stays (step)"
    what = what if one.way == "ahead" else f"{what}, read backwards"
    if one.curve.status == "not finite":
        return f"{what}: the outputs are not finite"
    if one.steps is None:
        return f"more than {one.curve.time[-1]:.0f} steps for {what}: {one.left:.2g} of it is left there"
    if math.isinf(one.steps):
        return f"no end for {what}: it does not fade ({one.fit.explanation})"
    by = "" if one.reach.measured else f", by its law beyond the {one.curve.time[-1]:.0f} steps measured"
    return f"{one.steps:.0f} step{'' if one.steps == 1 else 's'} until {REMAINING_SHARE:.0%} is left of {what}{by}"


def task(found: Diagnosis) -> list[str]:
    """What the data need."""
    one = found.task
    if one is None:
        return [] if found.needs is None else [f"needs {found.needs} steps, as asked"]
    kind = "a kernel of them and their products" if one.products else "a linear kernel of them"
    if not one.tells:
        more = "" if found.needs is None else f"; needs {found.needs} steps, as asked"
        return [
            f"how far back it reaches the data do not tell: {kind} explains {one.explained:.0%} of the targets{more}"
        ]
    said = [f"needs the last {one.steps} steps: {kind} explains {one.explained:.0%} of the targets"]
    if one.steps >= one.lags:
        said[0] += f"; it was given {one.lags}, so the task may need more"
    if one.explained < LITTLE:
        said.append("that is little: the task is not linear in its inputs, and may need more steps")
    return said


def edge(found: Diagnosis) -> list[str]:
    """How near the worst recurrence is to instability, in steps."""
    one = found.edge
    if one is None:
        return []
    worst = one.worst
    name = worst.path or "its recurrence"
    said = [f"{name}{'' if len(one.parts) == 1 else ', the nearest to it'}: {_lasting(worst)}"]
    reach = next((m.steps for m in found.memory if m.kind == "impulse" and m.way == "ahead"), None)
    if reach is not None and lasting_of(one) * LOG100 > UNREAD * reach:
        said.append(
            f"that is longer than the memory of {number(reach)} step{'' if reach == 1 else 's'} above: outputs read little of "
            "this slowest part"
        )
    unstable = [part for part in one.parts if part.status == "unstable"]
    if len(unstable) > 1:
        said.append(f"{len(unstable)} of {len(one.parts)} recurrences are unstable")
    return said


def _lasting(part: Certificate) -> str:
    steps = part.time_constant
    if math.isnan(steps):
        return f"{part.status}, it has no state of rest"
    if steps < 0:
        return f"past it, a deviation grows by e every {number(-steps)} steps (margin {part.margin:.3g} per step)"
    if math.isinf(steps):
        return "on it, a deviation stays for ever (margin 0)"
    kind = "small deviation" if part.scope == "local" else "deviation"
    return f"a {kind} falls to 1/e in {number(steps)} steps (margin {part.margin:.3g} per step)"


def survival(found: Diagnosis) -> list[str]:
    """How large a change of the weights it survives."""
    one = found.survival
    if one is None:
        return []
    sign = {"": "", "at least": "at least ", "at most": "less than "}[one.censored]
    said = [
        f"survives changes of its recurrent weights up to {sign}{number(100 * one.share)}% of their size ({one.radius:.2g}): "
        f"outputs move by less than {MOVED:.0%}"
    ]
    if one.rounded > MOVED and not one.half:
        said.append(f"rounded to bfloat16 they would move outputs by {one.rounded:.0%}: keep them in float32")
    return said


def training(found: Diagnosis) -> list[str]:
    """What training does to it."""
    one = found.learning
    if one is None:
        return []
    ratios = ", ".join(f"{number(value)} {name}" for name, value in one.ratio.items())
    rate = "below 1e-4" if one.safe is None else f"{one.safe:.2g}{' or more' if one.safe == max(RATES) else ''}"
    return [
        f"gradient over weight at the start: {ratios} (the share of the weights that one step of plain gradient descent "
        f"at rate 1 moves); for twice the length the gradient is {_times(one.growth)}",
        f"largest safe learning rate {rate} (safe: {SAFE}, on {one.task})",
    ]


def _times(growth: float) -> str:
    return "as large" if abs(growth - 1) < 0.05 else f"{number(growth)} times as large"


def advice(found: Diagnosis) -> list[str]:
    """What to do, numbered."""
    if not found.advice:
        return ["nothing to fix was found"] if found.memory or found.edge else []
    said = []
    for k, one in enumerate(found.advice, start=1):
        said.append(f"{k}. {one.trouble}: {one.number}")
        said += [f"{INDENT}{line}" for line in (*one.call.splitlines(), one.effect)]
    return said


def in_detail(found: Diagnosis) -> list[str]:
    """Laws, spectra and bounds as the papers name them."""
    said = [_law(one) for one in found.memory]
    if found.task is not None:
        said.append(f"task: kernel {found.task.fit.law}, {found.task.fit.explanation}")
    for part in () if found.edge is None else found.edge.parts[:MOST]:
        said.append(_spectrum(part))
        said += [f"{part.path or 'model'}: {note}" for note in part.notes]
    if found.edge is not None and len(found.edge.parts) > MOST:
        said.append(f"and {len(found.edge.parts) - MOST} more recurrences: holdfast certify lists all")
    if found.survival is not None:
        curve = found.survival.curve
        rows = ", ".join(f"{r:.2g}: {e:.2g}" for r, e in zip(curve.radii, curve.errors, strict=True))
        said.append(f"perturbation error E(beta), {curve.metric} metric, {curve.norm} norm, {curve.search}: {rows}")
    if found.learning is not None:
        said.append(f"gradient norm {found.learning.norm:.3g}")
        rates = found.learning.safe_of.items()
        alone = ", ".join(f"{name} {'none' if rate is None else f'{rate:.2g}'}" for name, rate in rates)
        said += [f"largest safe rates of each group alone: {alone}"] if alone else []
    return said


def _law(one: Forgetting) -> str:
    fit = one.fit
    named = {"rate": fit.rate, "exponent": fit.exponent, "support": fit.support, "period": fit.period}
    value = "".join(f", {name} {number:.4g}" for name, number in named.items() if number is not None)
    interval = "" if fit.interval is None else f" (95%: {fit.interval[0]:.4g} to {fit.interval[1]:.4g})"
    return f"{one.kind}{'' if one.way == 'ahead' else ' back'}: {fit.law}{value}{interval}; {fit.explanation}"


def _spectrum(part: Certificate) -> str:
    which = "spectral abscissa" if part.time == "continuous" else "spectral radius"
    text = f"{part.path or 'model'}: {part.kind}, {which} {part.spectral:.4g}, numerical {part.numerical:.4g}"
    if part.continuous_margin is not None:
        text += f", margin {part.continuous_margin:.4g} per unit of time"
    if part.growth is not None:
        text += f", transient growth at most {part.growth.bound:.4g} (seen {part.growth.measured:.4g})"
    if part.lyapunov is not None:
        text += f", Lyapunov |P| {part.lyapunov.norm:.4g}"
    return text
