"""`holdfast list`: every figure and table of the papers, and which can be reproduced now."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from holdfast.cli._screen import say, screen, visible


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the experiments: id, what it shows, place in the paper.

    Example: holdfast list
    """
    from holdfast_papers import experiments
    from holdfast_papers.papers import SECTIONS

    entries = experiments.list()
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=1))
        return
    console = screen()
    for paper, name in SECTIONS.items():
        chosen = [entry for entry in entries if entry.id.startswith(f"{paper}-")]
        if not chosen:
            continue
        console.print(name, style="bold", markup=False)
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column()
        for entry in chosen:
            table.add_row(entry.id, Text.assemble(visible(entry.title), (f" ({visible(entry.where)})", "dim")))
        console.print(table)
        console.print()
    say(
        console,
        "Run one: holdfast reproduce stable-fig2. All of them: holdfast reproduce, about ten minutes on two cores.",
    )
