"""`holdfast diagnose`: what a model remembers, how near it is to trouble, and which call helps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from holdfast.cli._files import SeriesColumns, read_data, read_inputs
from holdfast.cli._model import HELP, load_model
from holdfast.cli._screen import answer, file, progress_bar, screen, visible
from holdfast.diagnosis import diagnose
from holdfast.errors import ArgumentError


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=HELP, show_default=False)],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=file,
            help="Inputs and targets of your task: an .npz with both, or a CSV file whose last column is the target.",
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of the CSV file with time stamps (numbers or ISO 8601 dates)."),
    ] = None,
    series: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the CSV file with the name of each line's series.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column of the CSV file to forecast; may be given several times."),
    ] = None,
    future: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Column of the CSV file known in advance, as a calendar; may be given several times."
        ),
    ] = None,
    ahead: Annotated[
        int | None,
        typer.Option(
            help="Forecast horizon of the targets, in steps, for a CSV file with named columns.", show_default="1"
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=file,
            help="Inputs of your task without targets (.npy, .npz or CSV), on which to measure memory as well.",
        ),
    ] = None,
    needs: Annotated[
        int | None, typer.Option(help="Memory that your task needs, in steps (default: estimated from --data).")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate of Adam that you will train with.", show_default="0.001")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of optimizer steps that you will train for.", show_default="1000")
    ] = None,
    input_size: Annotated[
        int | None, typer.Option(help="Number of input features (default: read from the model).")
    ] = None,
    horizon: Annotated[int, typer.Option(help="Longest memory to measure, in steps.")] = 4096,
    details: Annotated[
        bool, typer.Option("--details", help="Also print decay laws, spectra and bounds, in the terms of the papers.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=file, help="Write the report with its figure as one HTML page."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs and of a model with random weights.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Diagnose a model: memory, distance to instability, learning rate, and which call helps.

    Exits with status 1 if a recurrence is unstable or the memory could not be measured.

    Example: holdfast diagnose my_models.py:lstm --data task.npz --html report.html
    """
    columns = SeriesColumns(time, series, tuple(target or ()), tuple(future or ()), ahead)
    if data is None and columns.named:
        raise ArgumentError("--time, --series, --target, --future and --ahead name columns of --data; give --data too")
    # before the model is made: its factory may draw the weights
    torch.manual_seed(seed)
    loaded = load_model(model)
    task = None if data is None else read_data(data, columns)
    given = None if inputs is None else read_inputs(inputs)
    # the diagnosis adapts a transformers model itself, by its tokens
    subject = loaded.plain if loaded.plain is not None else loaded.model
    size = input_size if loaded.plain is None else None
    with progress_bar("reading the model") as tick:
        diagnosis = diagnose(
            subject,
            input_size=size,
            data=task,
            inputs=given,
            needs=needs,
            lr=lr,
            steps=steps,
            horizon=horizon,
            name=loaded.name,
            seed=seed,
            progress=tick,
        )
    if html is not None:
        diagnosis.save(html if html.suffix == ".html" else html.with_name(f"{html.name}.html"))

    def tell() -> None:
        console = screen()
        for line in (*loaded.notes, *diagnosis.lines(details=details, width=console.width)):
            console.print(visible(line), markup=False, soft_wrap=True)

    answer(as_json, diagnosis.to_dict(), tell, bad=diagnosis.bad)
