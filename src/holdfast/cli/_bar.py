"""Progress of a command that measures one thing: a bar on a terminal, a few lines elsewhere, always on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import Progress

from holdfast.cli._text import plain, visible

# called with what runs, and how much of how much is done where that is known
Tick = Callable[[str, int | None, int | None], None]
QUIET_SECONDS = 2.0  # what takes longer tells where it is
SECONDS_BETWEEN_LINES = 10.0  # of mere progress, where there is no terminal


@contextmanager
def progress_bar(first: str, every: float = 0.0) -> Iterator[Tick]:
    """Gives the function to call; without a terminal, each part that begins after two seconds prints a line.

    At most one line in `every` seconds, for parts that are as many as the steps of a training run.
    """
    if sys.stderr.isatty():
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(first, total=None)
            yield lambda text, done, total: bar.update(task, description=plain(text), completed=done, total=total)
        return
    start, said, latest = time.monotonic(), "", -math.inf

    def line(text: str, done: int | None, total: int | None) -> None:
        nonlocal said, latest
        elapsed = time.monotonic() - start
        if elapsed > QUIET_SECONDS and text != said and elapsed - latest >= every:
            said, latest = text, elapsed
            share = f", {done / total:.0%}" if every and done is not None and total else ""
            typer.echo(f"[{elapsed:4.0f} s{share}] {visible(text)}", err=True)

    yield line
