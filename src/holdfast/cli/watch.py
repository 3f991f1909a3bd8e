"""`holdfast watch`: a page of a run that is redrawn while it trains."""

from __future__ import annotations

import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli._screen import INTERRUPTED, file, folder, say, screen, termination_as_interrupt

if TYPE_CHECKING:
    from holdfast.training._view import RunView

MIN_SECONDS = 2  # between two pages
WORK_SHARE = 0.1  # of a core at most: training needs it more


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=folder, help="Folder of the run.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=file, help="File to write the page to (default: RUN/watch.html).", show_default=False
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Write the page once and exit, even if the run continues.")
    ] = False,
) -> None:
    """Show a run while it trains: loss, margins, time constants, reach, gradients, alarms.

    Reads the log that `holdfast train` or `holdfast.integrations` writes, and keeps one page up to date, which reloads
    itself in a browser. Stops when the run ends, or with Ctrl-C.

    Example: holdfast watch runs/smnist --open
    """
    from holdfast.training._view import PAGE

    page = out or run / PAGE
    opened, said = False, -1
    try:
        with termination_as_interrupt():
            while True:
                began = time.process_time()
                view = _write(run, page, once)
                if not opened:
                    typer.echo(f"Page: {page.absolute()}")
                    if open_page:
                        webbrowser.open(page.absolute().as_uri())
                    opened = True
                said = _tell_alarms(view, said)
                if once or view.status != "running":
                    break
                time.sleep(max(MIN_SECONDS, (time.process_time() - began) / WORK_SHARE))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    say(screen(), view.summary())


def _write(run: Path, page: Path, once: bool) -> RunView:
    """Writes the page whole: a browser never sees half of one."""
    from holdfast._files import write_atomically
    from holdfast.training._view import read_view

    view = read_view(run)
    refresh = MIN_SECONDS if view.status == "running" and not once else None
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, view.page(refresh).encode())
    return view


def _tell_alarms(view: RunView, said: int) -> int:
    """Prints alarms that are new; gives how many there have been."""
    for _, text in view.alarms[max(said, 0) :]:
        say(screen(), f"ALARM  {text}")
    return len(view.alarms)
