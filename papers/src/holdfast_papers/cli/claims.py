"""The table of claims that `reproduce` and `report` print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from holdfast.cli._screen import screen, visible

if TYPE_CHECKING:
    from holdfast_papers.results import Result

COLOURS = {"met": "green", "not met": "red", "undecided": "yellow"}


def print_claims(results: Sequence[Result]) -> None:
    """The claims of each experiment: status, statement, its first numbers (the paper's in brackets); and a count."""
    console = screen()
    for result in results:
        console.print(result.experiment, style="bold", markup=False)
        # statements are Text, since "[0, 1)" would be read as markup
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for claim in result.claims:
            words = visible(claim.statement), (f"\n{visible(numbers(claim.numbers, claim.paper))}".rstrip(), "dim")
            table.add_row(Text(claim.status, COLOURS[claim.status]), Text.assemble(*words))
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
