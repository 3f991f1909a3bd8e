"""No line of an answer is wider than the screen, nor any table."""

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.cli.screen import WIDTH
from holdfast_papers.benchmarks.table import Text
from holdfast_papers.cli import bench


@pytest.mark.parametrize("columns", [None, 80, 120])
def test_every_line_of_the_list_fits_the_screen(monkeypatch, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    done = CliRunner().invoke(app, ["list"])
    assert done.stdout, done.exception
    assert max(map(len, done.stdout.splitlines())) <= (columns or WIDTH)


def test_a_table_that_is_too_wide_is_printed_row_by_row_and_whole():
    table = Text("Speed", ("row", "against", ">ratio"), (("raw scan " * 9, "a peer " * 9, "1.25"),))
    narrow = Console(width=80, file=io.StringIO())
    bench.print_table(narrow, table)
    lines = narrow.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "ratio: 1.25" in " ".join(lines)
    wide = Console(width=200, file=io.StringIO())
    bench.print_table(wide, table)
    assert [line.split()[0] for line in wide.file.getvalue().splitlines() if line] == ["Speed", "row", "raw"]
