"""Where a command prints for people, and what it reads from them.

No line is wider than the terminal, or than COLUMNS, or than 80 elsewhere. Text that others wrote (names, paths, messages of
errors) is made harmless before a terminal gets it. Progress goes to stderr.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from holdfast._codec import plain as plain_values

KEPT = "\n\t"
WIDTH = 80  # columns of a file, a pipe, an issue
MAX_TABLE_COLUMNS = 1000  # more than any table of ours takes
# called with what runs, and how much of how much is done where that is known
Tick = Callable[[str, int | None, int | None], None]
QUIET_SECONDS = 2.0  # what takes longer tells where it is
SECONDS_BETWEEN_LINES = 10.0  # of mere progress, where there is no terminal
INTERRUPTED = 130  # exit code, as shells have it: 128 + SIGINT


def visible(text: object) -> str:
    """The text with control characters, terminal escapes, marks that turn its direction and lone surrogates spelled out.

    For what is printed as it is; `plain` is for what goes through rich.
    """
    return "".join(_spelled(character) for character in str(text))


def plain(text: object) -> str:
    """The text as rich must get it inside markup to show it letter for letter; a cell may be `Text(visible(text))`."""
    return escape(visible(text))


def _spelled(character: str) -> str:
    kind = unicodedata.category(character)
    if character in KEPT or kind not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def screen() -> Console:
    """The console that a command's answer goes to."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    # without emoji: file.py:llama: would become a picture
    return Console(width=None if known else WIDTH, highlight=False, emoji=False)


def say(console: Console, text: str, indent: int = 2) -> None:
    """Prints sentences, folded between words; further lines are indented. A word that is too long, as a path, stays whole."""
    console.print(folded(text, console.width, indent), markup=False, soft_wrap=True)


def answer(as_json: bool, result: Any, tell: Callable[[], None], *, bad: bool) -> None:
    """A command's last lines: the result as JSON, or words; the exit code is 1 where the answer is `bad`."""
    if as_json:
        # None for what is not finite: JSON has no word for it, and other readers refuse Python's own
        typer.echo(json.dumps(plain_values(result, exact=False), indent=1, allow_nan=False))
    else:
        tell()
    if bad:
        raise typer.Exit(1)


def folded(text: str, width: int, indent: int = 2) -> str:
    """The text in lines of that width, each of its own lines by itself."""
    lines = visible(text).split("\n")
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
        for line in lines
    )


def print_table(
    console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str | None] = ()
) -> None:
    """A table, or its rows one by one where it is wider than the screen; a head that begins with ">" aligns right."""
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head.removeprefix(">"), justify="right" if head.startswith(">") else "left")
    for row, style in zip(rows, styles or [None] * len(rows), strict=True):
        # as Text, since "holdfast[train]" would be read as markup
        table.add_row(*(Text(visible(cell)) for cell in row), style=style)
    if Measurement.get(console, console.options.update(width=MAX_TABLE_COLUMNS), table).maximum <= console.width:
        console.print(table)
        return
    for row in rows:
        say(console, row[0])
        cells = (f"{head.removeprefix('>')}: {cell}" for head, cell in zip(heads[1:], row[1:], strict=True) if cell)
        say(console, "    " + "; ".join(cells), indent=4)


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


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """A polite kill stops the run as cleanly as Ctrl-C."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def file(text: str | Path) -> Path:
    """A file's path; an empty text, as an unset variable gives, would silently be the current folder."""
    if not str(text).strip():
        raise typer.BadParameter("expected a file, got an empty text")
    return Path(text)


def folder(text: str | Path) -> Path:
    """A folder's path; an empty text, as an unset variable gives, would silently be the current folder."""
    if not str(text).strip():
        raise typer.BadParameter("expected a folder, got an empty text")
    return Path(text)
