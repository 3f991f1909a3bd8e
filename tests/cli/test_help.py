"""The first screens: what a newcomer sees before anything is computed."""

import pytest
import typer
from typer.testing import CliRunner

from holdfast.cli.app import FURTHER, PANELS, app

NAMES = [name for commands in PANELS.values() for name in commands]


def test_the_bare_command_groups_every_command_and_ends_with_where_to_start():
    shown = CliRunner().invoke(app, []).output
    assert [line.strip("╭─╮ \n") for line in shown.splitlines() if line.startswith("╭")] == [
        "Options",
        *dict.fromkeys([*PANELS, *(panel for panel, _ in FURTHER.values())]),
    ]
    assert " ".join(shown.split()).endswith("holdfast doctor, then holdfast diagnose your_file.py:your_model")


@pytest.mark.parametrize("name", NAMES)
def test_each_help_says_what_it_does_and_gives_an_example_that_parses(name):
    command = typer.main.get_command(app).commands[name]
    first, *_, last = command.help.split("\n\n")
    assert first.endswith(".")
    assert last.startswith(f"Example: holdfast {name}")
    command.make_context(name, last.split()[3:])
