"""Progress of a command that measures one thing: a bar on a terminal, a few lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import Progress

from holdfast.cli.text import plain, visible

# called with what runs, and how much of how much is done where that is known
Tick = Callable[[str, int | None, int | None], None]
QUIET = 2.0  # seconds without a word: what takes longer tells where it is


@contextmanager
def progress_bar(first: str) -> Iterator[Tick]:
    """Gives the function to call; without a terminal, each part that begins after two seconds prints a line."""
    if sys.stderr.isatty():
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(first, total=None)
            yield lambda text, done, total: bar.update(task, description=plain(text), completed=done, total=total)
        return
    start, said = time.monotonic(), ""

    def line(text: str, done: int | None, total: int | None) -> None:
        nonlocal said
        elapsed = time.monotonic() - start
        if elapsed > QUIET and text != said:
            said = text
            typer.echo(f"[{elapsed:4.0f} s] {visible(text)}", err=True)

    yield line
