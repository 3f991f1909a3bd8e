"""A diagnosis in words: blocks of a head and its sentences, plain ones first, the papers' behind `details`."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.decay import Return, TaskStudy
from holdfast.decay._result import REMAINING_SHARE
from holdfast.decay._task_study import LITTLE
from holdfast.diagnosis._forgetting import Cause, Forgetting, ahead_of, why_they_differ
from holdfast.diagnosis._learning import RATES
from holdfast.diagnosis._on_data import difference
from holdfast.diagnosis._reaching import said
from holdfast.diagnosis._remedies import LOG100
from holdfast.diagnosis._trial import Trial
from holdfast.diagnosis._weights import MOVED, Edge, LongRun, Tolerance, lasting_of
from holdfast.stability import Certificate

if TYPE_CHECKING:
    from holdfast.diagnosis._result import Diagnosis

HEAD_COLUMNS = 10  # of the heads
ROUGH = "; approximate, since the model had not come to rest before"
INDENT = "   "  # of what belongs to a number
NUMBERED = re.compile(r"\d+\. ")  # how advice begins
MAX_NAMED = 6  # recurrences that a screen names
LAW_TOLERANCE = 0.1  # by which the slowest recurrence and the fitted law may differ without a word
UNREAD_RATIO = 3.0  # times that the slowest recurrence outlasts the measured memory where that needs a word

Block = tuple[str, list[str]]


def screen(report: Diagnosis, *, details: bool, width: int) -> list[str]:
    """The blocks as lines of at most `width` columns.

    Args:
        report: the diagnosis.
        details: whether the papers' numbers are wanted too.
        width: columns.
    """
    lines = textwrap.wrap(f"{report.name}: {report.about}", width)
    for head, sentences in blocks(report, details=details):
        for k, sentence in enumerate(sentences):
            start = f"{head if k == 0 else '':<{HEAD_COLUMNS}}"
            own = len(sentence) - len(sentence.lstrip())
            after = " " * (HEAD_COLUMNS + (len(INDENT) if NUMBERED.match(sentence) else own))
            lines += textwrap.wrap(
                sentence, width, initial_indent=start, subsequent_indent=after, break_on_hyphens=False
            )
    return lines


def blocks(report: Diagnosis, *, details: bool) -> list[Block]:
    """Head and sentences of everything that there is to say.

    Args:
        report: the diagnosis.
        details: whether the papers' numbers are wanted too.
    """
    parts: list[Block] = [("MEMORY", memory(report)), ("TASK", task(report)), ("EDGE", edge(report))]
    parts += [("WEIGHTS", survival(report)), ("TRAINING", training(report)), ("REACH", said(report.reaching))]
    parts.append(("ADVICE", advice(report)))
    if details:
        parts.append(("DETAILS", in_detail(report)))
    parts += [("NOT SEEN", list(report.unseen)), ("NOTES", list(report.notes))]
    return [(head, sentences) for head, sentences in parts if sentences]


def number(value: float) -> str:
    """Two or three digits, and no powers of ten for what people count."""
    return f"{value:,.0f}" if 100 <= value < 1e7 else f"{value:.3g}" if value >= 10 else f"{value:.2g}"


def memory(report: Diagnosis) -> list[str]:
    """How far it remembers, at rest and on data."""
    beside = "" if report.on_data is None else "at rest: "
    said = [beside + _reach(one) + (ROUGH if one.curve.status == "unsettled" else "") for one in report.memory]
    why = why_they_differ(list(report.memory), _cause(report)) if report.memory else None
    said += [why] if why else []
    if report.on_data is not None:
        said.append(f"on your data: {report.on_data.summary()}")
        said += [meant for meant in (difference(report.memory, report.on_data),) if meant is not None]
        said += list(report.on_data.notes)
    return said


def _cause(report: Diagnosis) -> Cause:
    if report.edge is None:
        return "unknown"
    return "selection" if any(part.selective is not None for part in report.edge.parts) else "gates"


def _reach(one: Forgetting) -> str:
    what = "one input (impulse)" if one.kind == "impulse" else "a lasting change (step input)"
    what = f"the effect of {what}{'' if one.way == 'ahead' else ', read backwards,'}"
    if one.curve.status == "not finite":
        return f"{what}: not measured, the outputs became NaN or infinite"
    if one.steps is None:
        return f"more than {one.curve.time[-1]:.0f} steps: {100 * one.left:.2g}% of {what} is left after them"
    if math.isinf(one.steps):
        return f"{what} does not fade ({one.fit.explanation})"
    if (back := one.fit.largest_return) is not None:
        return _returned(back, one.steps, what)
    by = "" if one.reach.measured else f" (extrapolated: {one.curve.time[-1]:.0f} steps were measured)"
    return f"{one.steps:.0f} step{'' if one.steps == 1 else 's'} until {REMAINING_SHARE:.0%} of {what} is left{by}"


def _returned(back: Return, steps: float, what: str) -> str:
    return (
        f"retrieval, no decay: {what} returns after {back.delay:.0f} steps with {back.size:.0%} of its first peak; "
        f"{steps:.0f} steps until {REMAINING_SHARE:.0%} of it is left"
    )


def task(report: Diagnosis) -> list[str]:
    """What the data need."""
    one = report.task
    if one is None:
        return [] if report.needs is None else [f"needs {report.needs} steps, as you gave"]
    kind = "a kernel of them and their products" if one.products else "a linear kernel of them"
    if not one.tells:
        more = "" if report.needs is None else f"; needs {report.needs} steps, as you gave"
        return [f"the data do not show how far back the task reaches: {one.reason}{more}"]
    if one.memoryless:
        return [f"needs no memory: {one.same_step()}", *_errors(one)]
    low, high = one.steps_interval
    said = [
        f"needs the last {one.steps} steps (95% interval: {low} to {high}): {kind} explains {one.explained:.0%} of the targets"
    ]
    if one.steps >= one.lags and not one.complete:
        said[0] += f"; only {one.lags} were tried, so the task may need more"
    if one.explained < LITTLE:
        said.append("That is a small share: the task is nonlinear in its inputs and may need more steps.")
    return said + _law_of_task(one) + _errors(one)


def _law_of_task(one: TaskStudy) -> list[str]:
    if one.status == "undecided" or one.modes is None or one.slowest is None:
        return []
    constant = "" if one.fit.constant is None else f", {one.fit.constant[0]} {one.fit.constant[1]:.3g}"
    law = "decay law of the kernel: " + ("undecided" if one.fit.status == "undecided" else f"{one.fit.law}{constant}")
    modes = "1 mode represents" if one.modes.order == 1 else f"{one.modes.order} modes represent"
    return [
        f"{law}; {modes} it to within {one.eps:.0%}, the slowest with a time constant of {number(1 / one.slowest)} steps"
    ]


def _errors(one: TaskStudy) -> list[str]:
    if one.model_error is None or not math.isfinite(one.error):
        return []
    worse = ": the kernel is better, so the model has not learned the linear part of the task"
    return [
        f"{one.unit} on held-out sequences: {one.model_error:.3g} for the present model, {one.error:.3g} for the kernel"
        f"{worse if one.error < one.model_error else ''}"
    ]


def edge(report: Diagnosis) -> list[str]:
    """How near the worst recurrence is to instability, in steps, at rest and along data."""
    one = report.edge
    if one is None:
        return []
    worst = one.worst
    name = worst.path or "the recurrence"
    beside = "at rest, " if one.fastest_growing is not None else ""
    said = [f"{beside}{name}{'' if len(one.parts) == 1 else ', the nearest to instability'}: {_lasting(worst)}"]
    said += [
        f"{part.path or 'it'}: {part.restless.words()}" for part in one.parts[:MAX_NAMED] if part.restless is not None
    ]
    said += _beside_law(report) + _on_data(one)
    if one.run is not None and any(part.status != "stable" for part in one.parts):
        said.append(_along(one.run))
    unstable = [part for part in one.parts if part.status == "unstable"]
    if len(unstable) > 1:
        said.append(f"{len(unstable)} of {len(one.parts)} recurrences are unstable")
    return said


def _beside_law(report: Diagnosis) -> list[str]:
    """The slowest recurrence held against the memory that was measured: they need not be the same."""
    slowest, reach = lasting_of(report.edge), ahead_of(report.memory)
    if reach is not None and slowest * LOG100 > UNREAD_RATIO * reach:
        return [
            f"That is longer than the memory above, {number(reach)} step{'' if reach == 1 else 's'}: the outputs read "
            "little of this slowest part. To use it, training has to raise its readout weights."
        ]
    rate = next((m.fit.rate for m in report.memory if m.kind == "impulse" and m.way == "ahead"), None)
    if rate is None or rate <= 0 or slowest <= 0 or abs(slowest * rate - 1) <= LAW_TOLERANCE:
        return []
    why = "the outputs follow faster parts" if slowest * rate > 1 else "large inputs keep it away from rest for longer"
    return [
        f"The memory above fits a time constant of {number(1 / rate)} steps, the slowest recurrence has one of "
        f"{number(slowest)} steps: {why}."
    ]


def _on_data(one: Edge) -> list[str]:
    """The recurrence that lasts longest along the data."""
    part = one.fastest_growing
    if part is None or part.along is None:
        return []
    where = "" if len(one.parts) == 1 else f", {part.path or 'the model'}"
    found, steps = part.along, part.along.time_constant
    rate = f"(exponent {found.exponent:.3g} +- {found.error:.1g} per step)"
    if found.chaotic:
        return [
            f"along your data{where}: a small deviation grows by e every {number(-steps)} steps {rate}: chaotic, and bounded"
        ]
    if abs(found.exponent) <= 2 * found.error:
        return [f"along your data{where}: a small deviation neither fades nor grows measurably {rate}"]
    return [f"along your data{where}: a small deviation falls to 1/e in {number(steps)} steps {rate}"]


def _along(run: LongRun) -> str:
    if run.grew:
        return f"outputs grew from {number(run.early)} to {number(run.late)} in {run.steps:,} steps of random inputs"
    return (
        f"outputs stayed below {number(max(run.early, run.late))} in {run.steps:,} steps of random inputs: the state does "
        "not settle, but nothing explodes"
    )


def _lasting(part: Certificate) -> str:
    steps = part.time_constant
    if math.isnan(steps):
        return f"{part.status}, no equilibrium was found"
    kind = "small deviation of its state" if part.scope == "local" else "deviation of its state"
    if steps < 0:
        return f"unstable, a {kind} grows by e every {number(-steps)} steps (margin {part.margin:.3g} per step)"
    if math.isinf(steps):
        return f"on the stability boundary, a {kind} never fades (margin 0)"
    return f"a {kind} falls to 1/e in {number(steps)} steps (margin {part.margin:.3g} per step)"


def survival(report: Diagnosis) -> list[str]:
    """How large a change of the weights it survives."""
    one = report.survival
    if one is None:
        return []
    on = " on your data" if one.on_data else ""
    said = [
        f"outputs{on} change by less than {MOVED:.0%} as long as all recurrent weights together change "
        f"{_tolerated(one.random)} at random"
        + (
            "; the worst change was not searched for, since the model is large"
            if one.worst is None
            else f", or {_tolerated(one.worst)} in the worst direction found"
        )
    ]
    if one.on_data:
        bits = "more than 16" if one.bits is None else f"{one.bits}"
        said.append(
            f"rounding recurrent weights to {bits} bits keeps outputs on your data within {MOVED:.0%} (nearest value of a grid)"
        )
    if one.rounded > MOVED and not one.half:
        said.append(f"rounding them to bfloat16 would change outputs by {one.rounded:.0%}: keep them in float32")
    return said


def _tolerated(one: Tolerance) -> str:
    sign = {"": "by up to ", "at least": "by at least ", "at most": "by less than "}[one.censored]
    if one.logarithmic:
        return f"{sign}{one.radius:.2g} in the logarithm of a rate"
    return f"{sign}{number(100 * one.share)}% of their size (norm {one.radius:.2g})"


def training(report: Diagnosis) -> list[str]:
    """What training does to it."""
    one = report.learning
    if one is None:
        blind = "not measured: the model is trained, and a stand-in task would not show its learning rate; pass data="
        return [blind] if report.trained else []
    if one.met is not None:
        return [
            f"it meets its targets already: held-out loss {one.met[0]:.3g} ({one.met[1]:.3g} if the inputs are ignored)"
        ]
    if not one.norm > 0:
        return ["the gradient is 0: the loss is at its minimum, or no trainable weight reaches the outputs"]
    ratios = ", ".join(f"{number(value)} {name}" for name, value in one.ratio.items())
    rate = (
        "below 1e-4" if one.safe is None else f"{one.safe:.2g}{' or more' if one.safe == max(RATES) or one.cut else ''}"
    )
    apart = "" if one.pair is None else f"; {one.pair[0]:.2g} for the others with recurrent_lr={one.pair[1]:.2g}"
    longer = "" if math.isnan(one.growth) else f". For sequences twice as long the gradient is {_times(one.growth)}."
    return [
        f"Gradient norm over weight norm at the start: {ratios} (the relative change by one step of SGD with learning rate "
        f"1){longer}",
        f"Largest stable learning rate: {rate} for all weights{apart}. Measured on {one.task}. Stable: {one.stable_means}.",
        *_too_fast(report),
    ]


def _too_fast(report: Diagnosis) -> list[str]:
    """What follows where the rate that was asked for is above the largest stable one."""
    one, plan = report.learning, None if report.reaching is None else report.reaching.plan
    if one is None or plan is None or not plan.given or one.cut or one.safe is None or plan.lr <= one.safe:
        return []
    return [
        f"Your learning rate of {plan.lr:.2g} is {number(plan.lr / one.safe)} times that: lower it, or clip gradients."
    ]


def _times(growth: float) -> str:
    return "equally large" if abs(growth - 1) < 0.05 else f"{number(growth)} times as large"


def advice(report: Diagnosis) -> list[str]:
    """What to do, numbered, with what it did to a copy."""
    if not report.advice:
        blind = "nothing was tried, since the model is trained and no data were given; pass data="
        fixed = blind if report.trained else "nothing to fix"
        tried = "nothing tried helped" if report.dropped else fixed
        if report.trained and report.learning is not None and not report.dropped:
            tried = "nothing to fix"
        if report.untried:
            helped = "none of those tried helped, and " if report.dropped else ""
            tried = f"{helped}{_count(report.untried)} not tried: the model is large"
        if tried == "nothing to fix" and _too_fast(report):
            tried = "nothing to fix in the model; the learning rate is too large (TRAINING)"
        return [tried] if report.memory or report.edge else []
    said = []
    first = report.advice[0].trial
    if first is not None:
        said.append(_tried_how(first))
    for k, one in enumerate(report.advice, start=1):
        said.append(f"{k}. {one.trouble}: {one.number}")
        said += [f"{INDENT}{line}" for line in (*one.call.splitlines(), one.effect)]
        if one.trial is not None:
            said.append(f"{INDENT}tried: {_tried(one.trial)}")
    return said


def _count(calls: Sequence[str]) -> str:
    return "1 call was" if len(calls) == 1 else f"{len(calls)} calls were"


def _tried_how(trial: Trial) -> str:
    if not trial.task:
        return "Each call was tried separately on a copy of the model (without -> with the call)."
    return (
        f"Each call was tried separately on a copy of the model (without -> with the call), trained for {trial.steps} steps of "
        f"Adam at learning rate {trial.rate:.2g} on {trial.task}."
    )


def _tried(trial: Trial) -> str:
    before, after = trial.unchanged, trial.changed
    said = []
    if before.loss is not None and after.loss is not None:
        rate = "" if trial.changed_rate == trial.rate else f" (at learning rate {trial.changed_rate:.2g})"
        said.append(f"held-out loss {before.loss:.3g} -> {after.loss:.3g}{rate}")
    if before.memory is not None or after.memory is not None:
        said.append(f"memory {_steps(before.memory)} -> {_steps(after.memory)} steps")
    if before.margin is not None and after.margin is not None:
        said.append(f"margin {before.margin:.3g} -> {after.margin:.3g}")
    return ", ".join(said)


def _steps(value: float | None) -> str:
    return "unknown" if value is None else "endless" if math.isinf(value) else f"{value:.0f}"


def in_detail(report: Diagnosis) -> list[str]:
    """Laws, spectra and bounds as the papers name them."""
    said = [_law(one) for one in report.memory]
    if report.task is not None:
        said.append(f"task: kernel {report.task.fit.law}, {report.task.fit.explanation}")
    for part in () if report.edge is None else report.edge.parts[:MAX_NAMED]:
        said.append(_spectrum(part))
        said += [f"{part.path or 'model'}: {note}" for note in part.notes]
    if report.edge is not None and len(report.edge.parts) > MAX_NAMED:
        said.append(f"and {len(report.edge.parts) - MAX_NAMED} more recurrences: holdfast certify lists all")
    for one in () if report.survival is None else (report.survival.random, report.survival.worst):
        if one is not None:
            curve = one.curve
            rows = ", ".join(f"{r:.2g}: {e:.2g}" for r, e in zip(curve.radii, curve.errors, strict=True))
            said.append(f"perturbation error E(beta), {curve.metric} metric, {curve.norm} norm, {curve.search}: {rows}")
    if report.learning is not None:
        said.append(f"gradient norm {report.learning.norm:.3g}")
        rates = report.learning.safe_of.items()
        alone = ", ".join(f"{name} {'none' if rate is None else f'{rate:.2g}'}" for name, rate in rates)
        said += [f"largest stable rates of each group alone: {alone}"] if alone else []
    if report.seconds:
        said.append("CPU time: " + ", ".join(f"{part} {seconds:.1f} s" for part, seconds in report.seconds.items()))
    said += [f"tried without effect: {' '.join(line.split())}" for line in report.dropped]
    said += [f"not tried: {' '.join(call.split())}" for call in report.untried]
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
