"""`holdfast report`: the page and the static figures, from saved results alone."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli._screen import folder, visible
from holdfast.errors import ArgumentError
from holdfast_papers.cli.reproduce import STORE, StoreOption


def command(
    store: StoreOption = STORE,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=folder,
            help="Folder to write the page into (default: STORE/page).",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Only results of this preset (default: the strongest that each experiment has).", show_default=False
        ),
    ] = None,
    figures: Annotated[bool, typer.Option("--figures", help="Also write PNG and SVG files of every figure.")] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write the page from saved results, without computing any.

    Exits with status 1 if a result is damaged; the page names it and shows the others.

    Example: holdfast report --figures
    """
    from holdfast_papers.execution import Store
    from holdfast_papers.report import find_conclusions, write_figures, write_page

    if not find_conclusions(store, preset):
        which = f" at the {preset} preset" if preset else ""
        raise ArgumentError(f"expected results{which} in {store.absolute()}, got none; run `holdfast reproduce` first")
    into = out or store / "page"
    damage: list[str] = []
    with Store(into).guarded():
        page = write_page(store, into, preset=preset, notice=damage.append)
        files = write_figures(store, into / "figures", preset=preset, notice=damage.append) if figures else []
    for line in damage:
        typer.echo(visible(f"DAMAGED  {line}"), err=True)
    if figures:
        drawn = f"{len(files)} files in {files[0].parent.absolute()}" if files else "there are no figures to write"
        typer.echo(visible(drawn))
    typer.echo(visible(f"Page: {page.absolute()}"))
    if show:
        webbrowser.open(page.absolute().as_uri())
    if damage:
        raise typer.Exit(1)
