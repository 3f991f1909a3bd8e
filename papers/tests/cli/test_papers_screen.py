"""No line of an answer is wider than the screen, nor any table."""

import pytest
from typer.testing import CliRunner

from holdfast.cli._screen import WIDTH
from holdfast.cli.app import app


@pytest.mark.parametrize("columns", [None, 80, 120])
def test_every_line_of_the_list_fits_the_screen(monkeypatch, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    done = CliRunner().invoke(app, ["list"])
    assert done.stdout, done.exception
    assert max(map(len, done.stdout.splitlines())) <= (columns or WIDTH)
