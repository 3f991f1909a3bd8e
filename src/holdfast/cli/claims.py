"""The table of claims that `reproduce` and `report` print."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.text import visible

if TYPE_CHECKING:
    from holdfast.results import Result

COLOURS = {"met": "green", "not met": "red", "undecided": "yellow"}


def print_claims(results: Sequence[Result]) -> None:
    """A line a claim: experiment, status, statement, its first numbers; and a count."""
    # a table that goes into a file is not folded at 80 columns
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("experiment", "claim", "", "numbers (paper)"):
        table.add_column(head, overflow="fold")
    for result in results:
        for claim in result.claims:
            status = Text(claim.status, COLOURS[claim.status])
            # as Text, since "[0, 1)" would be read as markup
            table.add_row(
                *(Text(visible(text)) for text in (result.experiment, claim.statement)),
                status,
                Text(visible(numbers(claim.numbers, claim.paper))),
            )
    console.print(table)
    count: Counter[str] = Counter(claim.status for result in results for claim in result.claims)
    console.print(", ".join(f"{count[status]} {status}" for status in COLOURS))


def numbers(values: Mapping[str, float], paper: Mapping[str, float], most: int = 3) -> str:
    """The first numbers of a claim in words, the paper's in brackets."""
    parts = []
    for key, value in [*values.items()][:most]:
        theirs = f" ({paper[key]:.4g})" if key in paper else ""
        parts.append(f"{key} {value:.4g}{theirs}")
    return "; ".join(parts)
