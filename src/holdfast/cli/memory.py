"""`holdfast memory`: how a model remembers, as a curve, a law, a horizon and properties."""

from __future__ import annotations

import functools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from holdfast.cli.memory_plot import draw, terminal_plot
from holdfast.cli.model import HELP, LoadedModel, load_model
from holdfast.cli.plot import new_figure
from holdfast.cli.text import plain, visible
from holdfast.decay import DecayFit, UndecidedError, fit_decay
from holdfast.errors import ArgumentError, unknown_name
from holdfast.memory import MemoryCurve, ModelError, Properties, check_properties, memory_function
from holdfast.memory.huggingface import TokenScore
from holdfast.memory.probes import ProbeName
from holdfast.memory.repeated import repeat, repeated_input_memory
from holdfast.memory.settle import SHORTEST

# called with what runs, and how much of how much is done where that is known
Announce = Callable[[str, int | None, int | None], None]
PROBES: tuple[ProbeName, ...] = ("heaviside", "impulse", "reversed")


@dataclass(frozen=True)
class Answer:
    """What one call found out."""

    model: LoadedModel
    curves: dict[str, MemoryCurve]
    fits: dict[str, DecayFit]
    properties: Properties | None
    notes: tuple[str, ...]


def command(
    model: Annotated[str, typer.Argument(help=HELP, show_default=False)],
    input_size: Annotated[
        int | None, typer.Option(help="Input features; by default what the model says, or 1.")
    ] = None,
    horizon: Annotated[int, typer.Option(help="Steps to follow the memory for.")] = 1000,
    probe: Annotated[str, typer.Option(help="heaviside, impulse, reversed, all, or repeated (tokens).")] = "heaviside",
    item: Annotated[str, typer.Option(help="What to repeat: text, or token ids like 17,4.")] = "good",
    dt: Annotated[float, typer.Option(help="Time of one step, for continuous-time models.")] = 1.0,
    normalization: Annotated[str, typer.Option(help="Divide by |x| ('x') or by |x| + 1 ('x+1').")] = "x",
    search: Annotated[str, typer.Option(help="How the worst x is searched: auto, grid or ascent.")] = "auto",
    burn_in: Annotated[
        int | None, typer.Option(help="Steps on zeros before the probe; by default until the output rests.")
    ] = None,
    layout: Annotated[str, typer.Option(help="batch_first or time_first.")] = "batch_first",
    double: Annotated[bool, typer.Option(help="Measure a float64 copy: a rounding floor of 1e-16.")] = False,
    properties: Annotated[bool, typer.Option(help="Also check linear, continuous, bounded, causal, ...")] = True,
    seed: Annotated[int, typer.Option(help="Seed of random probes, and of a model with random weights.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write the curves as a figure (.png, .pdf, .svg).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Measure how a model remembers: its memory function, decay law, horizon and functional properties.

    Example: holdfast memory my_models.py:lstm --probe all --horizon 2000 --plot memory.png
    """
    import torch

    if probe not in (*PROBES, "all", "repeated"):
        raise unknown_name("probe", probe, (*PROBES, "all", "repeated"))
    if plot is not None:
        new_figure(plot)
    torch.manual_seed(seed)
    loaded = load_model(model)
    options = {"dt": dt, "normalization": normalization, "search": search, "burn_in": burn_in}
    options |= {"layout": layout, "double": double, "seed": seed}
    if probe == "repeated":
        _refuse_beside_tokens(options)
    answer = examine(loaded, probe, horizon, item, input_size, properties, options)
    if plot is not None:
        draw(answer.curves, answer.fits, plot, title=loaded.name)
    if as_json:
        typer.echo(json.dumps(as_dict(answer), indent=1))
    else:
        report(answer)
    if any(curve.status != "ok" for curve in answer.curves.values()):
        raise typer.Exit(1)


def _refuse_beside_tokens(options: dict[str, Any]) -> None:
    plain = {
        "dt": 1.0,
        "normalization": "x",
        "search": "auto",
        "burn_in": None,
        "layout": "batch_first",
        "double": False,
    }
    given = [f"--{name.replace('_', '-')}" for name, value in plain.items() if options[name] != value]
    if given:
        raise ArgumentError(f"--probe repeated reads tokens and scores them as they are: leave out {', '.join(given)}")


def examine(
    loaded: LoadedModel,
    probe: str,
    horizon: int,
    item: str,
    input_size: int | None,
    properties: bool,
    options: dict[str, Any],
) -> Answer:
    """Measures, fits and checks; progress goes to stderr. A transformers model that is not causal is read by tokens."""
    size = input_size or loaded.input_size or 1
    with _progress() as announce:
        curves, notes = _measure(loaded, probe, horizon, item, {**options, "input_size": size}, announce)
        checked = None
        if properties and "repeated" not in curves:
            announce("properties", None, None)
            shared = {key: options[key] for key in ("layout", "double", "seed")}
            steps = min(horizon, 200 if loaded.longest is None else loaded.longest // 3)
            checked = check_properties(loaded.model, size, max(steps, 16), **shared)
    fits = {name: fit_decay(curve) for name, curve in curves.items()}
    return Answer(loaded, curves, fits, checked, notes)


def _measure(
    loaded: LoadedModel, probe: str, horizon: int, item: str, options: dict[str, Any], announce: Announce
) -> tuple[dict[str, MemoryCurve], tuple[str, ...]]:
    notes = loaded.notes
    curves: dict[str, MemoryCurve] = {}
    wanted = [name for name in PROBES if probe in ("all", name)]
    steps = horizon if loaded.longest is None else min(horizon, loaded.longest - SHORTEST - 1)
    try:
        for name in wanted:
            announce(f"{name} probe", None, None)
            tick = functools.partial(announce, f"{name} probe")
            curves[name] = memory_function(loaded.model, horizon=steps, probe=name, progress=tick, **options)
    except ModelError as error:
        if loaded.plain is None or "not causal" not in str(error):
            raise
        notes = (*notes, f"not causal, so measured by repeating {item!r} instead")
    if curves and steps < horizon:
        notes = (*notes, f"the model takes {loaded.longest} steps: followed for {steps} of the {horizon} asked for")
    if not curves:
        text = f"repeating {item!r}"
        announce(text, None, None)
        curves["repeated"] = _repeated(loaded, item, horizon, functools.partial(announce, text))
    return curves, notes


@contextmanager
def _progress() -> Iterator[Announce]:
    """A bar on a terminal; elsewhere a line for each part that begins after two seconds. On stderr."""
    if not sys.stderr.isatty():
        start = time.monotonic()

        def line(text: str, done: int | None, total: int | None) -> None:
            if done is None and time.monotonic() - start > 2:
                typer.echo(f"[{time.monotonic() - start:4.0f} s] {visible(text)}", err=True)

        yield line
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("running the model", total=None)
        yield lambda text, done, total: bar.update(task, description=plain(text), completed=done, total=total)


def _repeated(loaded: LoadedModel, item: str, horizon: int, tick: Any) -> MemoryCurve:
    if loaded.plain is None:
        raise ArgumentError("--probe repeated is for hf: models, which read tokens; others take numbers")
    what: Any = item
    parts = [part.strip() for part in item.split(",")]
    if all(part.isdecimal() for part in parts):
        what = [int(part) for part in parts]
    elif loaded.tokenizer is None:
        raise ArgumentError(f"the model has no tokenizer for {item!r}; give token ids, as in --item 17,4")
    score = TokenScore(loaded.plain, loaded.tokenizer)
    copies = horizon
    if loaded.longest is not None:
        # room for the tokens that the tokenizer puts around the text
        one, two = (len(score.ids(repeat(what, n))) for n in (1, 2))
        copies = min(horizon, (loaded.longest - (2 * one - two)) // max(two - one, 1))
    return repeated_input_memory(score, what, copies, progress=tick)


def as_dict(answer: Answer) -> dict[str, Any]:
    """The answer as plain numbers."""
    return {
        "model": answer.model.name,
        "notes": list(answer.notes),
        "probes": {
            name: {
                "curve": answer.curves[name].as_dict(),
                "fit": fit.as_dict(),
                "horizon_0.01": _number(_horizon(fit)),
            }
            for name, fit in answer.fits.items()
        },
        "properties": None if answer.properties is None else answer.properties.as_dict(),
    }


def report(answer: Answer) -> None:
    """Prints the answer for people."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    for note in answer.notes:
        console.print(visible(f"note: {note}"), markup=False)
    for name, curve in answer.curves.items():
        fit = answer.fits[name]
        tried = curve.tried or len(curve.time)
        console.print(visible(f"\n{answer.model.name}, {name} probe, {tried} inputs tried"), markup=False)
        console.print(terminal_plot(curve), markup=False)
        for line in describe(curve, fit):
            console.print(visible(line), markup=False, soft_wrap=True)
    if answer.properties is not None:
        console.print(_property_table(answer.properties))


def describe(curve: MemoryCurve, fit: DecayFit) -> list[str]:
    """Status, law, constant and horizon in words."""
    lines = [] if curve.status == "ok" else [f"status   {curve.status}: {'; '.join(curve.notes)}"]
    lines.append(f"law      {fit.law}: {fit.explanation}")
    named = {"rate": fit.rate, "exponent": fit.exponent, "support": fit.support, "period": fit.period}
    for name, value in named.items():
        if value is not None and fit.status == "decided":
            spread = "" if fit.interval is None else f"  (95%: {fit.interval[0]:.4g} to {fit.interval[1]:.4g})"
            lines.append(f"{name:<8} {value:.4g}{spread}")
    if fit.asymptotic is not None:
        lines.append(f"t -> inf {fit.asymptotic.law}, rate {fit.asymptotic.rate:.4g}, by the layer's eigenvalues")
    try:
        lines.append(f"horizon  {fit.horizon(0.01):.4g}: from then on less than 1% is left")
    except UndecidedError as error:
        lines.append(f"horizon  {error}")
    return lines


def _property_table(properties: Properties) -> Table:
    table = Table(
        box=None, show_header=False, pad_edge=False, title="properties of the functional", title_justify="left"
    )
    colours = {"yes": "green", "no": "red", "undecided": "yellow"}
    for name, entry in properties.as_dict().items():
        table.add_row(
            name.replace("_", "-"), f"[{colours[entry['answer']]}]{entry['answer']}[/]", plain(entry["explanation"])
        )
    return table


def _horizon(fit: DecayFit) -> float:
    try:
        return fit.horizon(0.01)
    except UndecidedError:
        return math.nan


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
