"""Times two contenders in turn, and speaks only of the ratio within a round: a busy machine slows both alike."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

Step = Callable[[], Any]
Clock = Callable[[], float]

# A block shorter than this is repeated: a call of 50 us is mostly the noise of waking threads.
BLOCK = 5e-3
# libgomp's workers spin for about a millisecond after a parallel region and would take a core from the next contender.
SETTLE = 3e-3
# A step as long as this is not called once more only to find out how long it takes.
LONG = 0.5
FEWEST, MOST = 5, 41


@dataclass(frozen=True)
class Quartiles:
    """The middle of a sample and its spread."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        """Quartiles with linear interpolation."""
        low, median, high = np.quantile(np.asarray(values, dtype=np.float64), (0.25, 0.5, 0.75))
        return cls(float(low), float(median), float(high))

    def inverse(self) -> Quartiles:
        """Quartiles of 1/x for positive x."""
        return Quartiles(1 / self.high, 1 / self.median, 1 / self.low)


@dataclass(frozen=True)
class Duel:
    """Seconds per step of ours and of the other, round by round."""

    ours: tuple[float, ...]
    other: tuple[float, ...]

    @property
    def ours_ms(self) -> float:
        """Median milliseconds of our step."""
        return 1e3 * float(np.median(self.ours))

    @property
    def other_ms(self) -> float:
        """Median milliseconds of the other's step."""
        return 1e3 * float(np.median(self.other))

    @property
    def ratio(self) -> Quartiles:
        """Quartiles of (other / ours) over the rounds."""
        return Quartiles.of([b / a for a, b in zip(self.ours, self.other, strict=True)])


def duel(
    ours: Step,
    other: Step,
    budget: float,
    *,
    single: bool = False,
    clock: Clock = time.perf_counter,
    settle: float = SETTLE,
) -> Duel:
    """Runs both in turn for about `budget` seconds, swapping who is first.

    With `single` a block is one step: beside other processes a block of several nearly always holds one step that lost
    its core for 20 ms, where most single steps do not.

    At least 5 rounds, or as many as fit into four times the budget. Both have run before (their results were
    checked), so that what is done once is not timed.
    """
    with _undisturbed():
        start = clock()
        blocks = [_Block(step, clock, settle, single) for step in (ours, other)]
        # the first call of a step of seconds was measured as any later one will be; it counts
        slow = max(block.first for block in blocks) >= LONG and min(block.repeats for block in blocks) == 1
        times = [[block.first] if slow else [] for block in blocks]
        while _more(len(times[0]), clock() - start, budget):
            order = (0, 1) if len(times[0]) % 2 == 0 else (1, 0)
            for i in order:
                times[i].append(blocks[i].seconds())
    return Duel(tuple(times[0]), tuple(times[1]))


def sweep(
    steps: Sequence[Step], budget: float, *, clock: Clock = time.perf_counter, settle: float = SETTLE
) -> list[float]:
    """Median seconds of each step, all of them in turn in each round."""
    with _undisturbed():
        start = clock()
        blocks = [_Block(step, clock, settle) for step in steps]
        times: list[list[float]] = [[] for _ in steps]
        while _more(len(times[0]), clock() - start, budget):
            for block, into in zip(blocks, times, strict=True):
                into.append(block.seconds())
    return [float(np.median(t)) for t in times]


def _more(rounds: int, elapsed: float, budget: float) -> bool:
    if rounds < FEWEST:
        # a step of several seconds (an LSTM over 131072 steps) is measured less often, not left out
        return rounds == 0 or elapsed * (rounds + 1) / rounds <= 4 * budget
    return rounds < MOST and elapsed < budget


class _Block:
    """A step repeated until it fills a block; `seconds` gives the time of one step."""

    def __init__(self, step: Step, clock: Clock, settle: float, single: bool = False) -> None:
        self._step, self._clock, self._settle = step, clock, settle
        self.repeats = 1
        self.first = self.seconds()
        if self.first < LONG:
            self.first = min(self.first, self.seconds(), self.seconds())  # the first may have met cold threads
        self.repeats = 1 if single else max(1, math.ceil(BLOCK / max(self.first, 1e-9)))

    def seconds(self) -> float:
        time.sleep(self._settle)
        if self.repeats > 1:
            self._step()  # wakes the threads and fills the caches that the other contender emptied
        start = self._clock()
        for _ in range(self.repeats):
            self._step()
        return (self._clock() - start) / self.repeats


@contextmanager
def _undisturbed() -> Iterator[None]:
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
