"""`holdfast compare`: several models in one table and one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from holdfast.cli._files import read_inputs
from holdfast.cli._model import HELP, load_model
from holdfast.cli._plots import check_plot, write_plot
from holdfast.cli._screen import answer, file, print_table, progress_bar, say, screen
from holdfast.diagnosis import compare


def command(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help=HELP, show_default=False)],
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=file, help="Input sequences for the models: an .npz with inputs, or a CSV file."
        ),
    ] = None,
    input_size: Annotated[
        int | None, typer.Option(help="Number of input features (default: read from each model).")
    ] = None,
    horizon: Annotated[int, typer.Option(help="Longest memory to measure, in steps.")] = 1024,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs and of models with random weights.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=file, help="Write the curves to this figure (.png, .pdf or .svg)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Compare models in one table: memory at rest and on data, decay law, margin, tolerated change, bits, weights, operations.

    Exits with status 1 if a model could not be measured at all.

    Example: holdfast compare my_models.py:lstm my_models.py:gru --inputs task.npz --plot compared.png
    """
    if plot is not None:
        check_plot(plot)
    data = None if inputs is None else read_inputs(inputs)
    subjects = {}
    for spec in models:
        torch.manual_seed(seed)
        loaded = load_model(spec)
        subjects[loaded.name] = loaded.plain if loaded.plain is not None else loaded.model
    with progress_bar("comparing") as tick:
        found = compare(subjects, data, input_size=input_size, horizon=horizon, seed=seed, progress=tick)
    if plot is not None:
        write_plot(found.figure(), plot)

    def tell() -> None:
        console = screen()
        heads, rows = found.rows()
        print_table(console, [heads[0], *(f">{head}" for head in heads[1:])], rows)
        for one in found.models:
            for reason in one.unseen:
                say(console, f"{one.name}: {reason}")

    answer(as_json, found.to_dict(), tell, bad=any(one.weights is None for one in found.models))
