"""Runs a plan: builds, checks, then times; what cannot run says why and the rest goes on."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from holdfast._provenance import Provenance
from holdfast.kernels import reuse_memory
from holdfast.kernels._common import library
from holdfast_papers.benchmarks import growth, memory
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, Results, Runner
from holdfast_papers.benchmarks.check import Check, compare
from holdfast_papers.benchmarks.peers import optional
from holdfast_papers.benchmarks.registry import Plan
from holdfast_papers.benchmarks.report import Report, Row, Status, judge
from holdfast_papers.benchmarks.timing import duel

# Called with what comes next and the share of the work that is done.
Announce = Callable[[str, float], None]
Truth = Callable[[], Results]


@dataclass(frozen=True)
class Ready:
    """A contender that passed its check, or the reason why it is not to be timed; `absent` if it could not be tried."""

    runner: Runner | None
    check: Check | None
    reason: str = ""
    absent: bool = False


def run(plan: Plan, budget: float, announce: Announce, command: str = "") -> Report:
    """Measures everything in a plan: builds each contender, checks it, then times it.

    Args:
        plan: what to measure, from `select`.
        budget: seconds of timing in all, about; checks and compiling come on top.
        announce: called with what comes next and the share of the work that is done.
        command: the command line, for the report.
    """
    started, load = datetime.now(UTC), load_of_others()
    sweeps = sum(len(kernel.sweeps) for kernel in plan.growth)
    matches = sum(len(case.matches) for case in plan.cases)
    units = max(1, matches + sweeps + len(plan.memory))
    each = budget / max(1, matches + sweeps)
    done = 0

    def next_unit(text: str) -> None:
        nonlocal done
        announce(text, done / units)
        done += 1

    rows = [row for case in plan.cases for row in run_case(case, each, next_unit)]
    grown = []
    for kernel in plan.growth:
        for size in kernel.sweeps:
            next_unit(f"growth of {kernel.name} in {size}")
            grown.append(growth.measure(kernel, size, each))
    peaks = []
    for kernel in plan.memory:
        next_unit(f"peak memory of {kernel.name}")
        peaks.append(memory.measure(kernel))
    announce("done", 1.0)
    status = library.status()
    native = f"{status.variant} ({status.reason})" if status.available else f"none ({status.reason})"
    provenance = Provenance.collect(
        seed=0,
        started=started,
        native=native,
        peers=optional.versions(),
        load="unknown" if load is None else f"{load:.1f}",
    )
    return Report(command, provenance, tuple(rows), tuple(grown), tuple(peaks))


def run_case(case: Case, budget: float, announce: Callable[[str], None]) -> Iterator[Row]:
    """Checks ours, then each contender, and times those that passed, `budget` seconds a pair."""
    inputs = case.inputs()
    truth = functools.cache(lambda: case.truth(inputs))
    ours: Ready | None = None
    threads = torch.get_num_threads()
    for match in case.matches:
        announce(f"{case.name}: {match.against.name}")
        if ours is None:
            scarce = lack_of_memory(case.memory)
            ours = Ready(None, None, scarce, absent=True) if scarce else prepare(case, case.ours, inputs, truth)
        gc.collect()
        row = _run_match(case, match, ours, inputs, truth, budget)
        torch.set_num_threads(
            threads
        )  # a case may compare numbers of threads; the next one has what it would have alone
        yield row


def _run_match(case: Case, match: Match, ours: Ready, inputs: Inputs, truth: Truth, budget: float) -> Row:
    common = (case.name, match.row, case.shape, match.against.name, match.goal, match.sense)
    if ours.runner is None:
        status: Status = "not run" if ours.absent else "wrong"
        return Row(*common, status, f"{case.ours.name}: {ours.reason}")
    other = prepare(case, match.against, inputs, truth)
    if other.runner is None:
        return Row(*common, "not run", other.reason)
    try:
        with case.beside(), reuse_memory():
            timed = duel(ours.runner.step, other.runner.step, budget, single=case.beside is not nullcontext)
    except (MemoryError, RuntimeError) as error:
        return Row(*common, "not run", _first_line(error))
    ratio = timed.ratio if match.sense == "at least" else timed.ratio.inverse()
    return Row(
        *common,
        judge(match, ratio),
        ours_ms=timed.ours_ms,
        against_ms=timed.other_ms,
        ratio=ratio,
        rounds=len(timed.ours),
        ours_error=ours.check.worst if ours.check else None,
        against_error=other.check.worst if other.check else None,
        tolerance=case.tolerance,
    )


def prepare(case: Case, contender: Contender, inputs: Inputs, truth: Truth) -> Ready:
    """Builds a contender and checks every output and gradient of one step; only what passes can be timed.

    `truth` gives the case's results in float64, and is asked only by a contender that has no truth of its own.
    """
    reason = optional.missing(contender.modules) or lack_of_memory(contender.memory)
    if reason:
        return Ready(None, None, reason, absent=True)
    try:
        if contender.truth is None:
            runner = contender.build(inputs)
            check = compare(runner.read(runner.step()), truth(), case.tolerance)
        else:
            few = first_steps(inputs, contender.checked_steps)
            runner = contender.build(few)
            check = compare(runner.read(runner.step()), contender.truth(few), case.tolerance)
            runner = contender.build(inputs) if few is not inputs else runner
    except Exception as error:  # a peer may fail in any way; its row says so and the others still run
        return Ready(None, None, f"failed with {type(error).__name__}: {_first_line(error)}")
    return Ready(None, check, f"not timed, {check.fault}") if check.fault else Ready(runner, check)


def first_steps(inputs: Inputs, steps: int | None) -> Inputs:
    """The inputs cut to the first `steps` along time, the second axis of every sequence (batch, time, features)."""
    if steps is None or all(x.ndim != 3 or x.shape[1] <= steps for x in inputs.values()):
        return inputs
    return {name: x[:, :steps].contiguous() if x.ndim == 3 else x for name, x in inputs.items()}


def load_of_others() -> float | None:
    """Processes that wanted a core over the last minute; None where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def lack_of_memory(needed: int, available: int | None = None) -> str:
    """Says how much memory is missing; empty where there is enough or the amount is unknown."""
    free = _available_memory() if available is None else available
    if free is None or needed <= free:
        return ""
    return f"needs about {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free"


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return available[0] if available else None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
