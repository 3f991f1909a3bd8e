"""The `holdfast` command: one file a subcommand.

Shared: `model.py` (MODEL), `options.py`, `text.py` (names shown as text), `bar.py` and `progress.py`, `plot.py`,
`claims.py`, `data_file.py` and `kernel_file.py` (files of numbers).

Exit codes: 0, it ran; 1, it ran and the answer is bad; 2, it could not run; 130, stopped by Ctrl-C.
"""

from __future__ import annotations

import io
import sys
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
from holdfast.cli.text import visible
from holdfast.errors import HoldfastError

app = typer.Typer(
    name="holdfast",
    help="Memory in recurrent sequence models: measure it, tell whether it is stable, build layers that keep it.",
    epilog="Start with: holdfast doctor, then holdfast diagnose your_file.py:your_model",
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


app.command("doctor")(doctor.command)
app.command("diagnose")(diagnose.command)
app.command("memory")(memory.command)
app.command("stability")(stability.command)
app.command("certify")(certify.command)
app.command("fit-kernel")(fit_kernel.command)
app.command("bench")(bench.command)
app.command("list")(list_experiments.command)
app.command("reproduce")(reproduce.command)
app.command("report")(report.command)
app.command("train")(train.command)


def main() -> None:
    """Runs the command line; a mistake of the caller ends in one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without a letter gets its number
    try:
        app()
    except HoldfastError as error:
        typer.echo(visible(f"holdfast: {error}"), err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
