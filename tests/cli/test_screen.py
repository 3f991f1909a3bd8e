"""No line of an answer is wider than the screen."""

import io

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from holdfast.cli._screen import WIDTH, folded, print_table, say, screen
from holdfast.cli.app import _shown, app
from holdfast.errors import ArgumentError

MODELS = """
import torch

import holdfast

torch.manual_seed(0)
gru = torch.nn.GRU(1, 4, batch_first=True)
stack = holdfast.nn.SequenceModel(1, 4, depth=2, layer="s4d", state_size=4)


def make(width):
    return holdfast.nn.DiagonalSSM(1, width)
"""
FAMILY = ("--widths", "4,5,6,7,8,9,10", "--target", "power:1.5", "--radii", "1e-3:1:3", "--draws", "2", "--batch", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("screen")
    (folder / "m.py").write_text(MODELS)
    np.savetxt(folder / "rho.csv", (1.0 + np.arange(60)) ** -1.5)
    return folder


@pytest.mark.parametrize("columns", [None, 80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor",),
        ("certify", "m.py:stack", "--details"),
        ("memory", "m.py:gru", "--horizon", "40"),
        ("stability", "m.py:make", *FAMILY),
        ("fit-kernel", "rho.csv", "--orders", "1,2,4,24"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_line_fits_the_screen(folder, monkeypatch, columns, arguments):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("HOLDFAST_DATA", str(folder))
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    done = CliRunner().invoke(app, list(arguments))
    assert done.stdout, done.exception
    assert max(map(len, done.stdout.splitlines())) <= (columns or WIDTH)


def test_a_table_that_is_too_wide_is_printed_row_by_row_and_whole():
    heads, rows = ("row", "against", ">ratio"), (("raw scan " * 9, "a peer " * 9, "1.25"),)
    narrow = Console(width=80, file=io.StringIO())
    print_table(narrow, heads, rows)
    lines = narrow.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "ratio: 1.25" in " ".join(lines)
    wide = Console(width=200, file=io.StringIO())
    print_table(wide, heads, rows)
    assert [line.split()[0] for line in wide.file.getvalue().splitlines() if line] == ["row", "raw"]


def test_sentences_are_folded_between_words_and_paths_stay_whole():
    path = "/a" * 60
    text = folded(f"there is no file {path}; write another", 40)
    assert path in text
    assert all(len(line) <= 40 for line in text.splitlines() if path not in line)
    console = Console(width=20, file=io.StringIO())
    say(console, "one two three four five [six]")
    assert console.file.getvalue() == "one two three four\n  five [six]\n"


def test_an_error_is_folded_on_a_terminal_only(monkeypatch):
    text = f"holdfast: {ArgumentError('expected ' * 20)}"
    assert "\n" not in _shown(text)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, _shown(text).splitlines())) <= 60


def test_the_name_of_a_model_is_no_picture(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    screen().print("models.py:llama: 3 weights")
    assert "models.py:llama: 3 weights" in capsys.readouterr().out
