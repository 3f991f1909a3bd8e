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
            help="Data of your task: .npz with inputs and targets, or a CSV file whose last column is the target.",
        ),
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of a CSV file: its time stamps, numbers or dates in ISO 8601.")
    ] = None,
    series: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of a CSV file: which series a line belongs to.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Of a CSV file: what to forecast; may be given several times."),
    ] = None,
    future: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Of a CSV file: what is known ahead, such as a calendar; several times."),
    ] = None,
    ahead: Annotated[
        int | None,
        typer.Option(help="Of a CSV file with named columns: how many steps ahead targets are.", show_default="1"),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=file,
            help="Inputs of your task without targets (.npy, .npz or CSV): memory is measured on them too.",
        ),
    ] = None,
    needs: Annotated[
        int | None, typer.Option(help="How many steps back your task needs; by default as many as --data shows.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate that you will train at, of Adam.", show_default="0.001")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps that you will train for.", show_default="1000")
    ] = None,
    input_size: Annotated[int | None, typer.Option(help="Input features; by default what the model says.")] = None,
    horizon: Annotated[int, typer.Option(help="Most steps to follow the memory for.")] = 4096,
    details: Annotated[
        bool, typer.Option("--details", help="Also print decay laws, spectra and bounds, in the papers' words.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=file, help="Write one page with the figure in it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of random inputs, and of a model with random weights.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Diagnose a model: memory, distance to instability, learning rate, and which call helps.

    Ends with 1 if a recurrence is unstable or the memory could not be measured.

    Example: holdfast diagnose my_models.py:lstm --data task.npz --html report.html
    """
    columns = SeriesColumns(time, series, tuple(target or ()), tuple(future or ()), ahead)
    if data is None and columns.named:
        raise ArgumentError("--time, --series, --target, --future and --ahead say what --data holds; name it too")
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
