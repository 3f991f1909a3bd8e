"""How many threads torch computes with while a run trains: as many as it has, or one where a team loses.

A team of threads waits for its last one. Beside other processes that thread may not be scheduled for a time slice: a
training step of torch's LSTM then took 1,336 ms on two threads and 13 ms on one. The kernels of holdfast notice this
themselves; torch's own operators do not, so a run tries both numbers on a few of its own steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

TRIAL_STEPS = 5  # optimizer steps with each number of threads; the first of them is not counted
WARM_UP_STEPS = 3  # before the first trial: first steps allocate
SLOWER = 1.7  # times the seconds per token of the last trial: then both numbers are tried again
WINDOW_STEPS = 20  # whose median is held against that
RETRY_STEPS = 1000  # after which both are tried again although nothing got slower: a busy machine may be idle by now


class ThreadChoice:
    """Tells after each optimizer step how many threads the next one has.

    Args:
        most: threads that torch has; with one there is nothing to choose.
        set_threads: sets their number.
    """

    def __init__(self, most: int, set_threads: Callable[[int], None] = torch.set_num_threads) -> None:
        self.most, self.set_threads = most, set_threads
        self.threads = self._chosen = most
        self._waiting = WARM_UP_STEPS
        self._trials: dict[int, list[float]] | None = None
        self._usual = float("inf")  # seconds per token of the number that was chosen
        self._recent: list[float] = []

    def after_step(self, seconds: float, tokens: int) -> str:
        """Takes what one step took; a sentence where the number of threads changes for good, otherwise empty.

        Args:
            seconds: of the step.
            tokens: that it trained on.
        """
        if self.most <= 1:
            return ""
        pace = seconds / max(tokens, 1)
        if self._trials is not None:
            return self._tried(pace)
        self._recent = [*self._recent[1 - WINDOW_STEPS :], pace]
        self._waiting -= 1
        slower = len(self._recent) == WINDOW_STEPS and statistics.median(self._recent) > SLOWER * self._usual
        if self._waiting <= 0 or slower:
            self._trials = {self.most: [], 1: []}
            self._use(self.most)
        return ""

    def _tried(self, pace: float) -> str:
        assert self._trials is not None
        self._trials[self.threads].append(pace)
        if len(self._trials[self.threads]) < TRIAL_STEPS:
            return ""
        if not self._trials[1]:
            self._use(1)
            return ""
        medians = {threads: statistics.median(paces[1:]) for threads, paces in self._trials.items()}
        before, chosen = self._chosen, min(medians, key=lambda threads: medians[threads])
        self._trials, self._recent, self._waiting, self._usual = None, [], RETRY_STEPS, medians[chosen]
        self._chosen = chosen
        self._use(chosen)
        if chosen == before:
            return ""
        ratio = medians[self.most] / medians[1]
        return f"torch computes with {chosen} of {self.most} threads: all of them took {ratio:.2g} times as long as one"

    def _use(self, threads: int) -> None:
        self.threads = threads
        self.set_threads(threads)
