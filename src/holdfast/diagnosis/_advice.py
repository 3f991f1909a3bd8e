"""Which call helps against what was measured: each is tried on a copy first, and reported only where it helped."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from holdfast.diagnosis._candidates import Candidate, Evidence, Purpose, candidates
from holdfast.diagnosis._forgetting import ahead_of
from holdfast.diagnosis._remedies import LOG100, longer_memory
from holdfast.diagnosis._trial import FAILURES, Trial, Trials, execute
from holdfast.diagnosis._weights import lasting_of

NOMINAL_STEPS = 100  # that a short memory is made for by default
MAX_AIMS = 8  # calls for a longer memory that are tried until one reaches what was asked for
MIN_GAIN = 1.1  # times the memory: less is not longer
MAX_SECONDS = 40.0  # of CPU time for all of it, after which nothing more is begun
SEARCH_SECONDS = 15.0  # of these for the search of a longer memory
NO_WORSE = 1 + 1e-4  # times the loss of a trained model: what a change of its weights may cost at once, rounding
LOSS_TOLERANCE = 0.02  # relative: two runs that differ by less are alike


@dataclass(frozen=True)
class Advice:
    """One call that helps, and what it did to a copy of the model.

    Args:
        trouble: the problem, in plain words.
        number: the number behind it.
        call: the Python code to run.
        effect: what the call does, and what it costs.
        trial: loss, memory and margin of a copy with and without the call; None where it was not tried.
    """

    trouble: str
    number: str
    call: str
    effect: str
    trial: Trial | None = None

    def to_dict(self) -> dict[str, Any]:
        """The four texts and the trial's numbers."""
        texts = {"trouble": self.trouble, "number": self.number, "call": self.call, "effect": self.effect}
        return {**texts, "trial": None if self.trial is None else self.trial.to_dict()}


def advise(evidence: Evidence, trials: Trials) -> tuple[list[Advice], list[str], list[str]]:
    """What helped, the largest gain first, what was tried without effect, and what there was no time for.

    Args:
        evidence: what was measured.
        trials: where candidates are tried.
    """
    helpful: list[Advice] = []
    dropped: list[str] = []
    untried: list[str] = []
    deadline = time.process_time() + MAX_SECONDS  # before the search, which is part of it
    for candidate in [*_longer_memory(evidence, trials), *candidates(evidence)]:
        if time.process_time() > deadline:
            untried.append(candidate.call)
            continue
        try:
            trial = trials.attempt(candidate.call, candidate.stage, candidate.rate)
        except FAILURES as error:
            dropped.append(f"{candidate.call}: {(str(error).strip().splitlines() or [type(error).__name__])[0]}")
            continue
        reason = why_not(candidate.purpose, trial, trained=evidence.trained is not None)
        texts = (candidate.trouble, candidate.number, candidate.call, candidate.effect)
        if reason is None:
            helpful.append(Advice(*texts, trial))
        else:
            dropped.append(f"{candidate.call}: {reason}")
    return sorted(helpful, key=_final_loss), dropped, untried


def _final_loss(advice: Advice) -> float:
    loss = None if advice.trial is None else advice.trial.changed.loss
    return math.inf if loss is None else loss


def why_not(purpose: Purpose, trial: Trial, *, trained: bool = False) -> str | None:
    """Why a trial shows no help; None where it does.

    Args:
        purpose: what the call is for.
        trial: what became of it.
        trained: whether the model is, so that the call alone, before any training, must not raise the loss either.
    """
    before, after = trial.unchanged, trial.changed
    lowers = purpose in ("loss", "replacement")
    if (
        trained
        and purpose != "replacement"
        and before.start is not None
        and after.start is not None
        and after.start > NO_WORSE * before.start
    ):
        return f"held-out loss {before.start:.3g} -> {after.start:.3g} by the call alone"
    if before.loss is not None and after.loss is not None:
        bound = before.loss * (1 - LOSS_TOLERANCE if lowers else 1 + LOSS_TOLERANCE)
        if not after.loss <= bound or not math.isfinite(after.loss):
            return f"held-out loss {before.loss:.3g} -> {after.loss:.3g}"
    elif lowers:
        return "there was nothing to train on"
    if purpose == "memory" and not (after.memory or 0.0) > MIN_GAIN * (before.memory or 0.0):
        return f"memory {before.memory:.0f} -> {after.memory or 0.0:.0f} steps"
    lost = after.margin is not None and after.margin <= 0
    if lost and (purpose == "stability" or (before.margin or 0.0) > 0):
        return f"margin {before.margin or 0.0:.3g} -> {after.margin:.3g}"
    return None


def _longer_memory(evidence: Evidence, trials: Trials) -> Iterator[Candidate]:
    """The call whose copy remembers as long as was asked for; the longest of those tried where none does."""
    have = ahead_of(evidence.memory)
    if have is None or not evidence.short or evidence.trained is not None:
        return
    wanted = evidence.needs if evidence.needs is not None else NOMINAL_STEPS
    if lasting_of(evidence.edge) * LOG100 >= wanted:
        return  # its state lasts that long, and outputs do not show it: the recurrence is not what is short
    asked = f", the task needs {wanted}" if evidence.needs is not None else ""
    number = f"it remembers {have:.0f} step{'' if have == 1 else 's'}{asked}"
    trouble = "it forgets before the task ends" if asked else f"short memory, if your task reaches back {wanted} steps"
    aim, best, longest, too_far = float(wanted), None, 0.0, math.inf
    deadline = time.process_time() + SEARCH_SECONDS
    for _ in range(MAX_AIMS):
        if time.process_time() > deadline:
            break
        calls = list(longer_memory(evidence.model, have, math.ceil(aim)))
        if not calls:
            return
        call, effect = "\n".join(call for call, _ in calls), "; ".join(effect for _, effect in calls)
        try:
            memory, margin = trials.measured(call, execute(call, trials.copied())["model"])
        except FAILURES:
            break
        stable = margin is None or margin > 0
        if memory is not None and stable and memory > longest:
            best, longest = Candidate(trouble, number, call, effect, "memory"), memory
        if memory is None or (memory >= wanted and stable):
            break
        # units that feed each other last longer than one alone, up to where they no longer settle: between the two
        step = min(max(1.1 * wanted / max(memory, 1.0), 1.05), 4.0) if stable else 1.0
        too_far, aim = (too_far, aim * step) if stable else (aim, 0.85 * aim)
        aim = min(aim, 0.95 * too_far)
    if best is not None:
        short = "" if longest >= wanted else f"; this does not reach {wanted} steps"
        yield replace(best, effect=f"{best.effect}{short}")
