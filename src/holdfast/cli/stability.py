"""`holdfast stability`: how far a model, or a family of them by width, drifts when its weights move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table
from torch import nn

from holdfast import laws
from holdfast._factories import load_factory
from holdfast.cli import _model as models
from holdfast.cli._plots import check_plot, write_plot
from holdfast.cli._screen import answer, file, progress_bar, say, screen
from holdfast.errors import ArgumentError
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Rule
from holdfast.stability import Ball, Metric, PerturbationCurve, Search, StabilityStudy, study_stability
from holdfast.stability._verdict import HARMLESS_SHARE, MIN_WIDTHS

COLUMN = 14  # columns of a screen for the errors of one width: "E, m = 100000" is 13


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=models.HELP, show_default=False)],
    widths: Annotated[
        str | None,
        typer.Option(
            metavar="M,M,...", help="Judge a family of models: NAME is a function, called with each of these widths."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="LAW:CONSTANTS",
            help="Memory that the family approximates, given by its decay law, such as power:1.5 or exponential:0.5.",
        ),
    ] = None,
    radii: Annotated[
        str,
        typer.Option(
            metavar="LOW:HIGH:COUNT", help="Sizes of the weight changes, spaced evenly on a logarithmic scale."
        ),
    ] = "1e-4:1:21",
    search: Annotated[
        str,
        typer.Option(help="How to search for the worst change: random, adversarial, or modes (diagonal recurrences)."),
    ] = "random",
    scope: Annotated[
        str, typer.Option(help="Weights to change: all, recurrent, or names separated by commas.")
    ] = "all",
    metric: Annotated[str, typer.Option(help="Measure of the output error: sup, mean-square or sobolev.")] = "sup",
    norm: Annotated[
        str, typer.Option(help="Measure of the size of a weight change: spectral, frobenius or max-abs.")
    ] = "spectral",
    ball: Annotated[
        str, typer.Option(help="Changes of up to each size (ball) or of exactly that size (sphere).")
    ] = "ball",
    draws: Annotated[int, typer.Option(help="Number of random changes at each size.")] = 30,
    batch: Annotated[int, typer.Option(help="Number of random input sequences.")] = 32,
    length: Annotated[int, typer.Option(help="Length of each input sequence, in steps.")] = 100,
    level: Annotated[
        float, typer.Option(help="Largest error that counts as intact, as a share of the norm of the targets.")
    ] = HARMLESS_SHARE,
    input_size: Annotated[
        int | None, typer.Option(help="Number of input features (default: read from the model, else 1).")
    ] = None,
    layout: Annotated[str, typer.Option(help="Order of the input's axes: batch_first or time_first.")] = "batch_first",
    seed: Annotated[int, typer.Option(help="Seed of the inputs, the perturbations and random weights.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=file, help="Write the curves to this figure (.png, .pdf or .svg)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Perturb the weights and report how far the outputs move; with --widths, judge whether a family is stable.

    Without --target the outputs of the unperturbed model are the target. Exits with status 1 if the family is unstable
    or fewer than four of its widths approximate the target, or if a single model breaks at the smallest radius or is
    not finite at a larger one.

    Example: holdfast stability my_models.py:make --widths 8,16,32,64 --target power:1.5 --plot stability.png
    """
    options: dict[str, Any] = {
        "search": Search(search, draws=draws, where=ball, seed=seed),  # type: ignore[arg-type]
        "metric": Metric(metric, layout=layout),  # type: ignore[arg-type]
        "norm": Ball(norm, scope if scope in ("all", "recurrent") else scope.split(",")),  # type: ignore[arg-type]
        "level": level,
    }
    law = None if target is None else law_of(target)
    wanted, betas = _widths(widths), _radii(radii)
    if plot is not None:
        check_plot(plot)
    with progress_bar("building") as tick:
        subject, features, notes = _load_family(model, wanted, seed) if wanted else _load(model, seed)
        shape = batch, length, features if input_size is None else input_size
        study = study_stability(subject, betas, law=law, shape=shape, progress=tick, **options)
    name = ", ".join((f"{model} against {study.target}", *notes))
    if plot is not None:
        write_plot(_figure(model, study), plot)
    answer(as_json, {"model": model, **study.to_dict()}, lambda: report(name, study), bad=study.bad)


def _load(spec: str, seed: int) -> tuple[nn.Module, int, tuple[str, ...]]:
    """The module, its number of input features, and what is to be said about it."""
    torch.manual_seed(seed)
    loaded = models.load_model(spec)
    if not isinstance(loaded.model, nn.Module):
        raise ArgumentError(
            f"MODEL must be an nn.Module, which has weights; got a {type(loaded.model).__name__} from {spec}"
        )
    return loaded.model, loaded.input_size or 1, loaded.notes


def _load_family(spec: str, widths: list[int], seed: int) -> tuple[dict[int, nn.Module], int, tuple[str, ...]]:
    """A module of each width from the factory that is called with it."""
    if spec.startswith("hf:"):
        raise ArgumentError(
            f"--widths needs a function that takes a width, given as FILE.py:NAME or package:NAME; got {spec!r}"
        )
    factory, wanted = load_factory(spec), "take the width as its one argument"
    if isinstance(factory, nn.Module):
        raise ArgumentError(f"{spec} must {wanted}, got a {type(factory).__name__}; name a function that returns one")
    family: dict[int, nn.Module] = {}
    for width in widths:
        torch.manual_seed(seed)
        module = models.call_factory(factory, spec, width, wanted=wanted)
        if not isinstance(module, nn.Module):
            raise ArgumentError(f"{spec}({width}) returned a {type(module).__name__}; expected an nn.Module")
        family[width] = module
    return family, models.known_size(family[widths[0]]) or 1, ()


def report(name: str, study: StabilityStudy) -> None:
    """Prints the study for people."""
    console, first = screen(), next(iter(study.curves.values()))
    say(console, name)
    say(
        console,
        f"error: how far outputs come to lie from the target when {len(first.scope)} weights move by up to radius",
    )
    say(
        console,
        f"({first.metric} error, {first.search} search, {first.norm} {first.ball}; {first.method}: {first.reason})",
    )
    curves, side = list(study.curves.items()), max(1, (console.width - COLUMN) // COLUMN)
    for start in range(0, len(curves), side):
        console.print(_table(dict(curves[start : start + side])))
    for line in study.conclusion():
        say(console, line)


def _table(curves: Mapping[int, PerturbationCurve]) -> Table:
    """Errors by radius, a column per width."""
    table = Table(box=None, pad_edge=False)
    table.add_column("radius", justify="right", no_wrap=True)
    for width in curves:
        table.add_column(f"E, m = {width}" if width else "error", justify="right", no_wrap=True)
    table.add_row("0", *(_shown(curve.at_zero) for curve in curves.values()))
    for i, beta in enumerate(next(iter(curves.values())).radii):
        table.add_row(f"{beta:.3g}", *(_shown(curve.errors[i]) for curve in curves.values()))
    return table


def _figure(name: str, study: StabilityStudy) -> Figure:
    """The curves by width, with the level of the verdict."""
    layers: list[Layer] = [
        Line(f"m = {width}" if width else "error", curve.radii, curve.errors, markers=True)
        for width, curve in study.curves.items()
    ]
    level = study.level if study.verdict is None else float(study.verdict.levels.max())
    if level:
        layers.append(Rule("level", y=level))
    title = name if study.verdict is None else f"{name}: {study.verdict.verdict}"
    error = f"{next(iter(study.curves.values())).metric} error"
    panel = Panel(title, Axis("perturbation radius", log=True), Axis(error, log=True), layers)
    return Figure("stability", f"Errors of {name} against the size of the perturbation.", [panel])


def _shown(error: float) -> str:
    return f"{error:.4g}" if math.isfinite(error) else "inf"


def _widths(text: str | None) -> list[int]:
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts) or len(parts) < MIN_WIDTHS:
        raise ArgumentError(
            f"--widths: expected at least {MIN_WIDTHS} whole numbers separated by commas, as 8,16,32,64; got {text!r}"
        )
    return sorted({int(part) for part in parts})


def _radii(text: str) -> np.ndarray:
    try:
        low, high, count = text.split(":")
        bounds, number = (float(low), float(high)), int(count)
    except ValueError:
        raise ArgumentError(f"--radii: expected LOW:HIGH:COUNT, as 1e-4:1:21; got {text!r}") from None
    if not 0 < bounds[0] < bounds[1] < math.inf or number < 2:
        raise ArgumentError(f"--radii: expected 0 < LOW < HIGH and COUNT >= 2, got {text!r}")
    return np.geomspace(*bounds, number)


def law_of(text: str) -> laws.AbstractLaw:
    """A law written as LAW:CONSTANTS."""
    name, _, constants = text.partition(":")
    try:
        values = [float(part) for part in constants.split(",")] if constants else []
    except ValueError as error:
        raise ArgumentError(f"--target: expected LAW:CONSTANTS, as power:1.5; got {text!r} ({error})") from None
    return laws.get(name, *values)
