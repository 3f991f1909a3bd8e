"""Where a command prints for people: no line is wider than the terminal, or than COLUMNS, or than 80 elsewhere."""

from __future__ import annotations

import os
import sys
import textwrap

from rich.console import Console

from holdfast.cli.text import visible

WIDTH = 80  # columns of a file, a pipe, an issue


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
