"""A report as Markdown, and the page that holds one, so that no number is typed by hand."""

from __future__ import annotations

from pathlib import Path

from holdfast._files import write_atomically
from holdfast.errors import ArgumentError
from holdfast_papers.benchmarks.report import Report
from holdfast_papers.benchmarks.table import Text, machine, summary, tables

BEGIN = "<!-- written by `holdfast bench --markdown`; changes by hand are lost -->"
END = "<!-- end of what `holdfast bench --markdown` writes -->"


def render(report: Report) -> str:
    """The report as Markdown, with the command and the machine above its tables.

    Args:
        report: what a run measured.
    """
    parts = [f"Command: `{report.command}`. {machine(report)}", f"{summary(report).capitalize()}."]
    for table in tables(report):
        parts += [f"### {table.title}", _table(table)]
    return "\n\n".join(parts) + "\n"


def write_page(path: str | Path, report: Report) -> None:
    """Puts the report between the two marks of a Markdown page; a new page is made of the report alone.

    Args:
        path: of the page.
        report: what a run measured.
    """
    page = Path(path)
    block = f"{BEGIN}\n\n{render(report)}\n{END}"
    if not page.exists():
        write_atomically(page, f"# Benchmarks\n\n{block}\n".encode())
        return
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ArgumentError(
            f"{path} must contain each of these two lines once, to write between them; add:\n{BEGIN}\n{END}"
        )
    before, rest = text.split(BEGIN)
    write_atomically(page, f"{before}{block}{rest.split(END)[1]}".encode())


def _table(table: Text) -> str:
    heads = [head.removeprefix(">") for head in table.heads]
    rules = ["---:" if head.startswith(">") else "---" for head in table.heads]
    rows = [heads, rules, *table.lines]
    return "\n".join(f"| {' | '.join(_escape(cell) for cell in row)} |" for row in rows)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
