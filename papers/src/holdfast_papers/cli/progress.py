"""Shows a run as it goes: a bar for each running unit on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from holdfast._words import duration
from holdfast.cli._screen import SECONDS_BETWEEN_LINES, plain, visible

if TYPE_CHECKING:
    from holdfast_papers.execution import Job, Listener, Task


class Estimate:
    """How much of the work is done, by the units' estimated costs, and how long the rest will take."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._total = 0.0
        self._finished = 0.0
        self._running: dict[Task, float] = {}
        self.units = 0
        self.finished_units = 0

    def plan(self, jobs: Sequence[Job]) -> None:
        """Begins to count."""
        from holdfast_papers.execution.plan import missing_units

        self._started = time.monotonic()
        tasks = missing_units(jobs)
        self._total = sum(task.cost for task in tasks)
        self.units = len(tasks)

    def move(self, task: Task, done: float) -> None:
        """A running task got that far."""
        if task.kind == "unit":
            self._running[task] = done

    def end(self, task: Task) -> None:
        """A task is finished or given up."""
        self._running.pop(task, None)
        if task.kind == "unit":
            self._finished += task.cost
            self.finished_units += 1

    @property
    def done(self) -> float:
        """The share that is done, 0 to 1."""
        running = sum(task.cost * done for task, done in self._running.items())
        return min(1.0, (self._finished + running) / self._total) if self._total else 1.0

    @property
    def left(self) -> str:
        """The time left in words; empty while nothing can be said."""
        done, elapsed = self.done, time.monotonic() - self._started
        if done < 0.02 or elapsed < 2 or done == 1:
            return ""
        return f"{duration(elapsed * (1 - done) / done)} left"


class PlainLines:
    """One line an event, for files and logs."""

    def __init__(self) -> None:
        self._estimate = Estimate()
        self._start = time.monotonic()
        self._latest = self._start

    def planned(self, jobs: Sequence[Job]) -> None:
        """Says how much there is to do."""
        self._estimate.plan(jobs)
        there = len({folder for job in jobs for folder in job.contents})
        what = "experiment" if len(jobs) == 1 else "experiments"
        self._say(f"{len(jobs)} {what}: {there} units are there, {self._estimate.units} to run")

    def started(self, task: Task) -> None:
        """Nothing: its end says enough."""

    def progress(self, task: Task, done: float, text: str) -> None:
        """A line now and then, so that a log shows that the run is alive."""
        self._estimate.move(task, done)
        if time.monotonic() - self._latest > SECONDS_BETWEEN_LINES:
            self._say(f"{task.label}: {done:.0%} {text}".rstrip())

    def finished(self, task: Task, seconds: float) -> None:
        """A line per task."""
        self._estimate.end(task)
        self._say(f"done  {task.label} ({duration(seconds)})")

    def failed(self, task: Task, text: str) -> None:
        """A line a failure."""
        self._estimate.end(task)
        self._say(f"FAILED  {task.label}: {text}")

    def notice(self, text: str) -> None:
        """A line."""
        self._say(text)

    def _say(self, text: str) -> None:
        self._latest = time.monotonic()
        left = f", {self._estimate.left}" if self._estimate.left else ""
        share = f", {self._estimate.done:.0%}" if self._estimate.units else ""
        typer.echo(visible(f"[{self._latest - self._start:4.0f} s{share}{left}] {text}"), err=True)


class Bars:
    """A bar for all units and one for each that runs; what is worth keeping scrolls by above them."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._estimate = Estimate()
        self._bars: dict[Task, TaskID] = {}
        self._all: TaskID | None = None

    def planned(self, jobs: Sequence[Job]) -> None:
        """Shows the bar for all units where there is anything to run."""
        self._estimate.plan(jobs)
        if self._estimate.units:
            self._all = self._progress.add_task("", total=1.0, text="")
        self._refresh()

    def started(self, task: Task) -> None:
        """A new bar."""
        self._bars[task] = self._progress.add_task(plain(task.label), total=1.0, text="")

    def progress(self, task: Task, done: float, text: str) -> None:
        """Moves a bar."""
        self._estimate.move(task, done)
        if task in self._bars:
            self._progress.update(self._bars[task], completed=done, text=plain(text))
        self._refresh()

    def finished(self, task: Task, seconds: float) -> None:
        """Takes a bar away."""
        self._end(task)

    def failed(self, task: Task, text: str) -> None:
        """Takes a bar away and says why."""
        self._end(task)
        self._progress.console.print(f"[red]FAILED[/]  {plain(task.label)}: {plain(text)}", highlight=False)

    def notice(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(plain(text), highlight=False)

    def _end(self, task: Task) -> None:
        self._estimate.end(task)
        if task in self._bars:
            self._progress.remove_task(self._bars.pop(task))
        self._refresh()

    def _refresh(self) -> None:
        if self._all is not None:
            e = self._estimate
            name = f"{e.finished_units} of {e.units} units"
            self._progress.update(self._all, completed=e.done, description=name, text=e.left)


@contextmanager
def show() -> Iterator[Listener]:
    """Bars on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield PlainLines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[text]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bars(progress)
