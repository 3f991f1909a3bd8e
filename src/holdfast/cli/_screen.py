"""Where a command prints for people: no line is wider than the terminal, or than COLUMNS, or than 80 elsewhere."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from holdfast.cli._text import visible

WIDTH = 80  # columns of a file, a pipe, an issue
MAX_TABLE_COLUMNS = 1000  # more than any table of ours takes


def screen() -> Console:
    """The console that a command's answer goes to."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    # without emoji: file.py:llama: would become a picture
    return Console(width=None if known else WIDTH, highlight=False, emoji=False)


def say(console: Console, text: str, indent: int = 2) -> None:
    """Prints sentences, folded between words; further lines are indented. A word that is too long, as a path, stays whole."""
    console.print(folded(text, console.width, indent), markup=False, soft_wrap=True)


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
