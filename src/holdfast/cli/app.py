"""All commands under one name: those of the library, and those that other distributions add."""

from __future__ import annotations

import inspect
import io
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated

import typer

from holdfast.cli import certify, compare, diagnose, doctor, fit_kernel, memory, stability, train, watch
from holdfast.cli._screen import INTERRUPTED, folded, visible
from holdfast.errors import HoldfastError

app = typer.Typer(
    name="holdfast",
    help="Measure, stabilize and accelerate memory in recurrent sequence models.",
    epilog=(
        "Give a model as FILE.py:NAME, where NAME is a module or a function that returns one. "
        "For the options of a command, add --help.\n\n"
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
    "Your model": {
        "diagnose": diagnose.command,
        "compare": compare.command,
        "memory": memory.command,
        "stability": stability.command,
        "certify": certify.command,
    },
    "Build and train": {"fit-kernel": fit_kernel.command, "train": train.command, "watch": watch.command},
    "This installation": {"doctor": doctor.command},
}
# commands of other distributions: the panel they are shown in, and what to install where they are missing
FURTHER = {
    "list": ("The papers", "holdfast-papers"),
    "reproduce": ("The papers", "holdfast-papers"),
    "report": ("The papers", "holdfast-papers"),
    "bench": ("This installation", "holdfast-papers"),
}
GROUP = "holdfast.commands"


def _paragraphs(function: Callable[..., None]) -> str:
    """The docstring with its lines joined, so that the terminal breaks them and not the source."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(function) or "").split("\n\n"))


def _missing(name: str, package: str) -> Callable[..., None]:
    """A command that says what to install."""

    def command(context: typer.Context) -> None:
        raise HoldfastError(
            f"`holdfast {name}` is part of {package}, which is not installed: pip install {package} "
            "(from a clone: pip install ./papers)"
        )

    command.__doc__ = f"Needs {package}: pip install {package}"
    return command


def _add_commands() -> None:
    for panel, commands in PANELS.items():
        for name, function in commands.items():
            app.command(name, help=_paragraphs(function), rich_help_panel=panel)(function)
    installed = {point.name: point for point in metadata.entry_points(group=GROUP)}
    for name in {**FURTHER, **installed}:
        panel, package = FURTHER.get(name, ("Further commands", ""))
        if name in installed:
            function = installed[name].load()
            app.command(name, help=_paragraphs(function), rich_help_panel=panel)(function)
        else:
            # every argument leads to the same answer, --help included
            anything = {"ignore_unknown_options": True, "allow_extra_args": True}
            function = _missing(name, package)
            app.command(
                name, help=function.__doc__, rich_help_panel=panel, context_settings=anything, add_help_option=False
            )(function)


_add_commands()


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
    except OSError as error:  # of a file that cannot be read or written, which no command expected
        name = "" if error.filename is None else f" {error.filename}"
        typer.echo(_shown(f"holdfast: cannot use the file{name}: {error.strerror or error}"), err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
