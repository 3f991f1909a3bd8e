"""`holdfast list`: every figure and table of the papers, and which can be reproduced now."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.text import visible


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the experiments: id, place in the paper, title.

    Example: holdfast list
    """
    from holdfast import experiments
    from holdfast.papers import PAPERS

    entries = experiments.list()
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=1))
        return
    # a list that goes into a file is not folded at 80 columns
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for paper, name in PAPERS.items():
        chosen = [entry for entry in entries if entry.id.startswith(f"{paper}-")]
        if not chosen:
            continue
        table = Table(box=None, pad_edge=False, show_header=False, title=name, title_justify="left", title_style="bold")
        for entry in chosen:
            table.add_row(*(Text(visible(text)) for text in (entry.id, entry.where, entry.title)))
        console.print(table)
        console.print()
