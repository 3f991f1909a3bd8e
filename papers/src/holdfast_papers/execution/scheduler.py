"""Brings every job to its conclusion: longest units first, each under its lock, failures reported as they happen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from holdfast_papers.execution.executor import Event, Executor
from holdfast_papers.execution.plan import Job, is_concluded, missing_units, unit_state
from holdfast_papers.execution.store import Store, StoreError
from holdfast_papers.execution.task import Task

POLL_SECONDS = 0.5  # seconds between two looks at units that another command works on
ATTEMPTS = 2  # a unit whose process died is tried once more


class Listener(Protocol):
    """Receives the events of a run, to show it."""

    def planned(self, jobs: Sequence[Job]) -> None:
        """Work begins on these jobs."""

    def started(self, task: Task) -> None:
        """This task begins."""

    def progress(self, task: Task, done: float, text: str) -> None:
        """A task got that far.

        Args:
            task: the task.
            done: the share that is done, 0 to 1.
            text: a word about it.
        """

    def finished(self, task: Task, seconds: float) -> None:
        """A task is done and saved.

        Args:
            task: the task.
            seconds: how long it took.
        """

    def failed(self, task: Task, text: str) -> None:
        """A task is given up.

        Args:
            task: the task.
            text: the reason, in a line.
        """

    def notice(self, text: str) -> None:
        """Something worth a line, `text`, happened."""


@dataclass(frozen=True)
class Failure:
    """A task that was given up.

    Args:
        task: the task.
        text: the reason, in a line.
        file: holds its traceback.
    """

    task: Task
    text: str
    file: Path


@dataclass
class Scheduler:
    """One run over some jobs: longest units first, each under its lock; a unit whose process died is tried once more.

    Args:
        store: where results are kept.
        executor: performs the tasks, on this machine or a cluster.
        listener: receives the events of the run.
        jobs: what is to be done, from `plan`.
        failures: tasks that were given up so far.
    """

    store: Store
    executor: Executor
    listener: Listener
    jobs: Sequence[Job]
    failures: list[Failure] = field(default_factory=list)

    def run(self) -> list[Failure]:
        """Works until everything is finished or given up; always leaves no process and no lock behind."""
        self._ready = missing_units(self.jobs)
        self._ready += [job.conclusion() for job in self.jobs if not job.missing and not job.concluded]
        self._ready.sort(key=_urgency)
        self._elsewhere: list[Task] = []
        self._locks: dict[Task, FileLock] = {}
        self._begun: dict[Task, float] = {}
        self._attempts: Counter[str] = Counter()
        self._waiting: dict[str, list[Job]] = {str(job.folder): [job] for job in self.jobs}
        for job in self.jobs:
            for task in job.units:
                self._waiting.setdefault(task.folder, []).append(job)
        try:
            while self._ready or self._elsewhere or self._locks:
                self._fill()
                for event in self.executor.wait(POLL_SECONDS):
                    self._handle(event)
        finally:
            self.executor.stop()
            for lock in self._locks.values():
                lock.release()
        return self.failures

    def _fill(self) -> None:
        """Begins tasks while there are slots; those that another command has taken wait their turn."""
        self._ready += self._elsewhere
        self._ready.sort(key=_urgency)
        waited, self._elsewhere = set(self._elsewhere), []
        while self._ready and len(self._locks) < self.executor.slots:
            task = self._ready.pop(0)
            lock = self.store.lock(Path(task.folder))
            if lock is None:
                if task not in waited:
                    self.listener.notice(f"{task.label}: another command is working on it; waiting")
                self._elsewhere.append(task)
            elif self._done_by_another(task):
                lock.release()
            else:
                self._locks[task] = lock
                self._begun[task] = time.monotonic()
                self.listener.started(task)
                self.executor.submit(task)

    def _done_by_another(self, task: Task) -> bool:
        if task.kind == "conclusion":
            (job,) = self._waiting[task.folder]
            done = is_concluded(self.store, job, lambda text: None)
        else:
            done = unit_state(self.store, task)[0] is not None
        if done:
            self._settle(task)
            self.listener.finished(task, 0.0)
        return done

    def _handle(self, event: Event) -> None:
        task = event.task
        if event.kind == "progress":
            self.listener.progress(task, event.done, event.text)
            return
        seconds = time.monotonic() - self._begun.pop(task)
        lock = self._locks.pop(task)
        try:
            if event.kind == "store":
                raise StoreError(event.text)
            if event.kind == "finished":
                self._settle(task)
                self.listener.finished(task, seconds)
            elif event.kind == "died":
                self._died(event)
            else:
                self._give_up(task, event.text, event.detail)
        finally:
            lock.release()

    def _settle(self, task: Task) -> None:
        """Takes a finished task in, and makes the conclusion of every job ready whose last unit it was."""
        if task.kind == "conclusion":
            (job,) = self._waiting[task.folder]
            job.concluded = True
            return
        manifest, damage = unit_state(self.store, task)
        if manifest is None:
            raise StoreError(f"a result that was just written cannot be read back: {damage}; check the disk")
        for job in self._waiting[task.folder]:
            job.take_in(task, manifest)
            if not job.missing and not job.failed and not is_concluded(self.store, job, lambda text: None):
                self._ready.append(job.conclusion())
            elif not job.missing:
                job.concluded = not job.failed

    def _died(self, event: Event) -> None:
        task = event.task
        self._attempts[task.folder] += 1
        if self._attempts[task.folder] < ATTEMPTS:
            self.listener.notice(f"{task.label}: its process died ({event.text}); trying it once more")
            self._ready.append(task)
        else:
            self._give_up(task, f"its process died {ATTEMPTS} times ({event.text})", event.detail)

    def _give_up(self, task: Task, text: str, detail: str) -> None:
        for job in self._waiting[task.folder]:
            job.failed = True
        file = self.store.failure(Path(task.folder))
        with self.store.guarded():
            # an error's text may hold anything: half of a character, or letters that this locale has no bytes for
            report = f"{task.label}\n{dict(task.config)}\n\n{detail or text}\n"
            file.write_text(report, encoding="utf-8", errors="backslashreplace")
        self.failures.append(Failure(task, text, file))
        self.listener.failed(task, text)


def _urgency(task: Task) -> tuple[bool, float]:
    """Conclusions first: they are short, and a reader waits for them; then the longest units."""
    return task.kind != "conclusion", -task.cost
