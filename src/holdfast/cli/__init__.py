"""The `holdfast` command: one file a subcommand.

Shared: `model.py` (MODEL), `options.py`, `screen.py` (how wide), `text.py` (names shown as text), `bar.py` and
`progress.py`, `plot.py`, `claims.py`, `data_file.py` and `kernel_file.py` (files of numbers).

Exit codes: 0, it ran; 1, it ran and the answer is bad; 2, it could not run; 130, stopped by Ctrl-C.
"""

from __future__ import annotations

import inspect
import io
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated

import typer

from holdfast.cli import (
    bench,
    certify,
    diagnose,
    doctor,
    fit_kernel,
    list_experiments,
    memory,
    report,
    reproduce,
    stability,
    train,
)
from holdfast.cli.reproduce import INTERRUPTED
from holdfast.cli.screen import folded
from holdfast.cli.text import visible
from holdfast.errors import HoldfastError

app = typer.Typer(
    name="holdfast",
    help="Memory in recurrent sequence models: measure it, tell whether it is stable, build layers that keep it.",
    epilog=(
        "A model is named by its file, FILE.py:NAME: a module there, or a function that returns one. "
        "Every command explains itself with --help.\n\n"
        "Start with: holdfast doctor, then holdfast diagnose your_file.py:your_model"
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"holdfast {metadata.version('holdfast')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "A model of yours": {
        "diagnose": diagnose.command,
        "memory": memory.command,
        "stability": stability.command,
        "certify": certify.command,
    },
    "Build and train": {"fit-kernel": fit_kernel.command, "train": train.command},
    "The papers": {
        "list": list_experiments.command,
        "reproduce": reproduce.command,
        "report": report.command,
    },
    "This installation": {"doctor": doctor.command, "bench": bench.command},
}


def _paragraphs(function: Callable[..., None]) -> str:
    """The docstring with its lines joined, so that the terminal breaks them and not the source."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(function) or "").split("\n\n"))


for _panel, _commands in PANELS.items():
    for _name, _function in _commands.items():
        app.command(_name, help=_paragraphs(_function), rich_help_panel=_panel)(_function)


def _shown(text: str) -> str:
    """A message, folded between words where a terminal would break it inside of them."""
    return folded(text, shutil.get_terminal_size().columns, indent=10) if sys.stderr.isatty() else visible(text)


def main() -> None:
    """Runs the command line; a mistake of the caller ends in one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without a letter gets its number
    try:
        app()
    except HoldfastError as error:
        typer.echo(_shown(f"holdfast: {error}"), err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
