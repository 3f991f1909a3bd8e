"""`holdfast memory`: how a model remembers, as a curve, a law, a horizon and properties."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from holdfast.cli._model import HELP, LoadedModel, load_model
from holdfast.cli._plots import check_plot, memory_figure, shown, terminal_plot, write_plot
from holdfast.cli._screen import Tick, answer, file, plain, progress_bar, say, screen
from holdfast.decay import DecayFit, MemoryStudy, study_memory, study_repeated
from holdfast.decay._memory_study import with_notes
from holdfast.decay._result import REMAINING_SHARE, reach_of
from holdfast.errors import ArgumentError, unknown_name
from holdfast.memory import MemoryCurve, NotCausalError, Properties
from holdfast.memory._options import PROBES, InputSearch, Probe, Run
from holdfast.memory._repeated import repeat
from holdfast.memory.huggingface import TokenScore

UNSETTLED_ADVICE = ": a longer --burn-in may help, unless the model counts positions and never rests"
PROBE_WORDS = {
    "heaviside": " (an input that is switched on and stays)",
    "impulse": " (one input, then zeros)",
    "reversed": " (an input that stayed long, then zeros)",
    "repeated": " (an item said again and again)",
}


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=HELP, show_default=False)],
    input_size: Annotated[
        int | None, typer.Option(help="Number of input features (default: read from the model, else 1).")
    ] = None,
    horizon: Annotated[int, typer.Option(help="Number of steps to measure the memory for.")] = 1000,
    probe: Annotated[
        str,
        typer.Option(
            help="Test input: heaviside (on from step 0), impulse, reversed, all three, or repeated (an item of tokens)."
        ),
    ] = "heaviside",
    item: Annotated[
        str, typer.Option(help="Item to repeat with --probe repeated: text, or token ids such as 17,4.")
    ] = "good",
    dt: Annotated[float, typer.Option(help="Duration of one step, in the time unit of a continuous-time model.")] = 1.0,
    normalization: Annotated[str, typer.Option(help="Divide responses by |x| ('x') or by |x| + 1 ('x+1').")] = "x",
    search: Annotated[
        str, typer.Option(help="Search for the input x with the largest response: auto, grid or ascent.")
    ] = "auto",
    burn_in: Annotated[
        int | None,
        typer.Option(help="Steps of zero input before the probe (default: until the output no longer changes)."),
    ] = None,
    layout: Annotated[str, typer.Option(help="Order of the input's axes: batch_first or time_first.")] = "batch_first",
    double: Annotated[
        bool | None,
        typer.Option(
            "--double/--no-double", help="Measure a float64 copy of the model (default: if the model can be converted)."
        ),
    ] = None,
    properties: Annotated[
        bool, typer.Option(help="Also check whether the model is linear, continuous, bounded, causal and so on.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random probes and of a model with random weights.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=file, help="Write the curves to this figure (.png, .pdf or .svg)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Measure a model's memory over time, its decay law, and whether the model is linear, causal and bounded.

    Example: holdfast memory my_models.py:lstm --probe all --horizon 2000 --plot memory.png
    """
    if probe not in (*PROBES, "all", "repeated"):
        raise unknown_name("probe", probe, (*PROBES, "all", "repeated"))
    if plot is not None:
        check_plot(plot)
    torch.manual_seed(seed)
    loaded = load_model(model)
    options = {"dt": dt, "normalization": normalization, "search": search, "burn_in": burn_in}
    options |= {"layout": layout, "double": double}
    if probe == "repeated":
        _refuse_beside_tokens(options)
    probes = [
        Probe(name, dt=dt, normalization=normalization, burn_in=burn_in)  # type: ignore[arg-type]
        for name in (PROBES if probe == "all" else () if probe == "repeated" else (probe,))
    ]
    with progress_bar("running the model") as tick:
        if probe == "repeated":
            study = _repeated(loaded, item, horizon, tick)
        else:
            asked: dict[str, Any] = {"input_size": input_size or loaded.input_size or 1, "probes": probes}
            asked |= {"search": InputSearch(search, seed=seed), "run": Run(layout), "double": double}  # type: ignore[arg-type]
            study = _study(loaded, item, horizon, tick, asked, properties)
    study = with_notes(study, *loaded.notes)
    if plot is not None:
        write_plot(memory_figure(study.curves, study.fits, loaded.name), plot)
    whole = {"model": loaded.name, **study.to_dict()}
    answer(as_json, whole, lambda: report(loaded.name, study), bad=not study.measured)


def _refuse_beside_tokens(options: dict[str, Any]) -> None:
    plain = {
        "dt": 1.0,
        "normalization": "x",
        "search": "auto",
        "burn_in": None,
        "layout": "batch_first",
        "double": None,
    }
    given = [f"--{name.replace('_', '-')}" for name, value in plain.items() if options[name] != value]
    if given:
        raise ArgumentError(f"--probe repeated scores whole token sequences: leave out {', '.join(given)}")


def _study(
    loaded: LoadedModel, item: str, horizon: int, tick: Tick, options: dict[str, Any], properties: bool
) -> MemoryStudy:
    """By probes; a transformers model that is not causal is read by tokens instead."""
    try:
        return study_memory(loaded.model, horizon=horizon, properties=properties, progress=tick, **options)
    except NotCausalError:
        if loaded.plain is None:
            raise
        note = f"not causal, so measured by repeating {item!r} instead"
        return with_notes(_repeated(loaded, item, horizon, tick), note)


def _repeated(loaded: LoadedModel, item: str, horizon: int, tick: Tick) -> MemoryStudy:
    if loaded.plain is None:
        raise ArgumentError(
            "--probe repeated needs an hf: model, which reads tokens; measure other models with --probe all"
        )
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
    return study_repeated(score, what, copies, progress=tick)


def report(model: str, study: MemoryStudy) -> None:
    """Prints the study for people."""
    console = screen()
    for note in study.notes:
        say(console, f"note: {note}")
    for name, curve in study.curves.items():
        fit = study.fits[name]
        worst = "the worst input" if curve.bound == "exact" else f"the worst of {curve.tried or len(curve.time)} inputs"
        say(console, f"\n{model}, probe {name}{PROBE_WORDS.get(name, '')}, {worst}")
        for line in describe(curve, fit):
            say(console, line, indent=9)
        console.print(terminal_plot(shown(curve, fit)), markup=False)
    if study.properties is not None:
        console.print(_property_table(study.properties))
    say(console, f"Is that enough, and what makes it longer? holdfast diagnose {model}")


def describe(curve: MemoryCurve, fit: DecayFit) -> list[str]:
    """Horizon, status, law and constant in words."""
    lines = [f"horizon  {_reach(curve, fit)}"]
    if curve.status != "ok":
        advice = UNSETTLED_ADVICE if curve.status == "unsettled" else ""
        lines.append(f"status   {curve.status}: {'; '.join(curve.notes)}{advice}")
    elif curve.notes:
        lines += [f"note     {note}" for note in curve.notes]
    lines.append(f"law      {fit.law}: {fit.explanation}")
    named = {"rate": fit.rate, "exponent": fit.exponent, "support": fit.support, "period": fit.period}
    for name, value in named.items():
        if value is not None and fit.status == "decided":
            spread = "" if fit.interval is None else f"  (95%: {fit.interval[0]:.4g} to {fit.interval[1]:.4g})"
            lines.append(f"{name:<8} {value:.4g}{spread}")
    lines += [f"returns  after {one.delay:g} at {one.size:.2g} of the first effect" for one in fit.returns]
    if fit.asymptotic is not None:
        lines.append(f"t -> inf {fit.asymptotic.law}, rate {fit.asymptotic.rate:.4g}, by the layer's eigenvalues")
    return lines


def _reach(curve: MemoryCurve, fit: DecayFit) -> str:
    reach = reach_of(fit)
    if reach.time is None:
        return f"not known: {reach.words}"
    if math.isinf(reach.time):
        return f"none: {REMAINING_SHARE:.0%} is never reached, the memory does not fade"
    steps = reach.time / curve.dt
    after = f"{steps:.4g} steps" if curve.dt == 1 else f"{reach.time:.4g}, {steps:.4g} steps"
    how = "" if reach.measured else f" (by its law: measured until {curve.time[-1]:.4g})"
    return f"{after}: from then on less than {REMAINING_SHARE:.0%} is left{how}"


def _property_table(properties: Properties) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, title="What kind of map it is", title_justify="left")
    colours = {"yes": "green", "no": "red", "undecided": "yellow"}
    for name, entry in properties.to_dict().items():
        table.add_row(
            name.replace("_", "-"), f"[{colours[entry['answer']]}]{entry['answer']}[/]", plain(entry["explanation"])
        )
    return table
