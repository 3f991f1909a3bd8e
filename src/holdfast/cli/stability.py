"""`holdfast stability`: how far a model, or a family of them by width, drifts when its weights move."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from holdfast import laws
from holdfast.cli import model as models
from holdfast.cli.plot import new_figure, save
from holdfast.cli.text import visible
from holdfast.errors import ArgumentError
from holdfast.stability.perturbation import PerturbationCurve, perturbation_error
from holdfast.stability.perturbation.evaluate import first_output
from holdfast.stability.verdict import Censored, StabilityVerdict, assess_stability, stability_radius

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LEVEL = 0.5  # of the size of the outputs: an error this large is a model that no longer does its work


@dataclass(frozen=True)
class Answer:
    """Curves by width (0 for a single model), and the verdict or the single model's radius."""

    name: str
    target: str
    curves: dict[int, PerturbationCurve]
    verdict: StabilityVerdict | None
    radius: float | None = None
    censored: Censored = ""
    level: float | None = None

    @property
    def bad(self) -> bool:
        """Unstable; or, for one model, not finite within the radii or broken at the smallest of them."""
        if self.verdict is not None:
            return self.verdict.verdict == "unstable"
        return self.censored == "at most" or not bool(np.isfinite(self.curves[0].errors).all())


def command(
    model: Annotated[str, typer.Argument(help=models.HELP, show_default=False)],
    widths: Annotated[
        str | None, typer.Option(metavar="M,M,...", help="A family: the factory is called with each width.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="LAW:CONSTANTS", help="A linear target with this kernel, as power:1.5 or exponential:0.5."
        ),
    ] = None,
    radii: Annotated[str, typer.Option(metavar="LOW:HIGH:COUNT", help="Radii, geometric.")] = "1e-4:1:21",
    search: Annotated[str, typer.Option(help="random, adversarial, or exact (diagonal recurrences).")] = "random",
    scope: Annotated[str, typer.Option(help="all, recurrent, or names of weights with commas.")] = "all",
    metric: Annotated[str, typer.Option(help="sup, mean-square or sobolev.")] = "sup",
    norm: Annotated[str, typer.Option(help="spectral, frobenius or max-abs.")] = "spectral",
    ball: Annotated[str, typer.Option(help="ball, or sphere for perturbations of exactly that norm.")] = "ball",
    draws: Annotated[int, typer.Option(help="Random perturbations a radius.")] = 30,
    batch: Annotated[int, typer.Option(help="Random input sequences.")] = 32,
    length: Annotated[int, typer.Option(help="Steps of each sequence.")] = 100,
    input_size: Annotated[
        int | None, typer.Option(help="Input features; by default what the model says, or 1.")
    ] = None,
    layout: Annotated[str, typer.Option(help="batch_first or time_first.")] = "batch_first",
    seed: Annotated[int, typer.Option(help="Seed of inputs, perturbations and random weights.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write the curves as a figure (.png, .pdf, .svg).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Perturb the weights of a model and tell how far its outputs move; for a family of widths, whether it is stable.

    Without --target the outputs of the unperturbed model are the target. Ends with 1 if the family is unstable, or the
    model breaks at the smallest radius or is not finite at a larger one.

    Example: holdfast stability my_models.py:make --widths 8,16,32 --target power:1.5 --plot stability.png
    """
    options = {"search": search, "metric": metric, "norm": norm, "ball": ball, "draws": draws, "layout": layout}
    options |= {"scope": scope if scope in ("all", "recurrent") else scope.split(","), "seed": seed}
    answer = examine(model, _widths(widths), target, _radii(radii), (batch, length, input_size), options)
    if plot is not None:
        draw(answer, plot)
    if as_json:
        typer.echo(json.dumps(as_dict(answer), indent=1, allow_nan=False))
    else:
        report(answer)
    if answer.bad:
        raise typer.Exit(1)


def examine(
    spec: str,
    widths: list[int],
    target: str | None,
    radii: np.ndarray,
    sizes: tuple[int, int, int | None],
    options: dict[str, Any],
) -> Answer:
    """Builds, perturbs and judges; progress goes to stderr."""
    import torch

    law = None if target is None else law_of(target)
    curves: dict[int, PerturbationCurve] = {}
    size = 0.0
    with _progress() as tick:
        for width in widths or [0]:
            torch.manual_seed(options["seed"])
            module, features, notes = _load(spec, width)
            x, y = _data(module, law, (*sizes[:2], sizes[2] or features), options)
            size = float(y.abs().max())
            label = f"width {width}" if width else "perturbing"
            curves[width] = perturbation_error(module, x, y, radii, progress=partial(tick, label), **options)
    described = "the model's own outputs" if law is None else f"a linear functional with kernel {law.name}"
    if widths:
        return Answer(spec, described, curves, assess_stability(curves))
    described = ", ".join((described, *notes))
    curve = curves[0]
    level = LEVEL * size if law is None else 2 * curve.at_zero
    radius, censored = stability_radius(curve, level)
    return Answer(spec, described, curves, None, radius, censored, level)


def _load(spec: str, width: int) -> tuple[torch.nn.Module, int, tuple[str, ...]]:
    """The module, its number of input features, and what is to be said about it."""
    import torch

    if not width:
        loaded = models.load_model(spec)
        if not isinstance(loaded.model, torch.nn.Module):
            raise ArgumentError(f"{spec} gives a {type(loaded.model).__name__}; perturbing weights needs an nn.Module")
        return loaded.model, loaded.input_size or 1, loaded.notes
    if spec.startswith("hf:"):
        raise ArgumentError(
            f"--widths needs a factory that takes a width, module:factory or file.py:factory; came {spec!r}"
        )
    factory = models.load_factory(spec)
    try:
        module = factory(width)
    except TypeError as error:
        raise ArgumentError(f"{spec} must take the width as its one argument: {error}") from error
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"{spec}({width}) returned a {type(module).__name__}; expected an nn.Module")
    return module, models.known_size(module) or 1, ()


def _data(
    module: torch.nn.Module, law: laws.AbstractLaw | None, sizes: tuple[int, int, int], options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Normal inputs; targets are the model's outputs, or the law's convolution with the mean over features."""
    import torch

    batch, length, features = sizes
    if min(sizes) < 1:
        raise ArgumentError(f"needs --batch, --length, --input-size >= 1; came {batch}, {length}, {features}")
    generator = torch.Generator().manual_seed(options["seed"])
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    x = torch.randn(batch, length, features, generator=generator, dtype=torch.float64)
    training, given = module.training, x.to(dtype)
    time_first = options["layout"] == "time_first"
    given = given.transpose(0, 1).contiguous() if time_first else given
    with torch.no_grad():
        y = first_output(module.eval()(given)).clone()
    module.train(training)
    if law is None:
        return given, y
    k = torch.arange(length, dtype=torch.float64)
    # what a held input adds over each step: exact, also where rho changes within one
    kernel = law.integral(k, k + 1)
    signal = torch.fft.rfft(x.mean(-1), 2 * length) * torch.fft.rfft(kernel, 2 * length)
    wanted = torch.fft.irfft(signal, 2 * length)[:, :length].to(dtype).unsqueeze(-1)
    wanted = wanted.transpose(0, 1) if time_first else wanted
    return given, wanted.expand_as(y).contiguous()


def report(answer: Answer) -> None:
    """Prints the answer for people."""
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    first = next(iter(answer.curves.values()))
    console.print(visible(f"{answer.name} against {answer.target}"), markup=False)
    console.print(
        f"{first.metric} error, {first.search} search, {first.norm} {first.ball}, {len(first.scope)} weights; "
        f"{first.method}: {first.reason}",
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("radius", justify="right")
    for width in answer.curves:
        table.add_column(f"E, m = {width}" if width else "error", justify="right")
    table.add_row("0", *(_shown(curve.at_zero) for curve in answer.curves.values()))
    for i, beta in enumerate(first.radii):
        table.add_row(f"{beta:.3g}", *(_shown(curve.errors[i]) for curve in answer.curves.values()))
    console.print(table)
    for line in conclusion(answer):
        console.print(visible(line), markup=False, soft_wrap=True)


def conclusion(answer: Answer) -> list[str]:
    """The verdict, or the radius of a single model, in words."""
    v = answer.verdict
    if v is None:
        assert answer.radius is not None and answer.level is not None
        sign = {"": "=", "at least": ">=", "at most": "<="}[answer.censored]
        lines = [f"radius {sign} {answer.radius:.3g}: up to there the error stays below {answer.level:.3g}"]
        diverged = ~np.isfinite(answer.curves[0].errors)
        if diverged.any():
            lines.append(f"not finite from radius {answer.curves[0].radii[diverged][0]:.3g} on")
        return lines
    marks = {"": "", "at least": ">= ", "at most": "<= "}
    radii = ", ".join(
        f"m = {m:g}: {marks[kind]}{r:.3g}" for m, r, kind in zip(v.widths, v.radii, v.censored, strict=True)
    )
    lines = [f"radii at level {v.levels.max():.3g}: {radii}"]
    if v.crossings:
        lines.append("curves cross: " + ", ".join(f"{c.narrow:g}/{c.wide:g} at {c.radius:.3g}" for c in v.crossings))
    return [*lines, f"{v.verdict.upper()}: {v.explanation}"]


def as_dict(answer: Answer) -> dict[str, Any]:
    """The answer as plain numbers."""
    return {
        "model": answer.name,
        "target": answer.target,
        "curves": {str(width): curve.as_dict() for width, curve in answer.curves.items()},
        "verdict": None if answer.verdict is None else answer.verdict.as_dict(),
        "radius": answer.radius,
        "censored": answer.censored,
        "level": answer.level,
    }


def draw(answer: Answer, path: Path) -> None:
    """Writes the curves as a figure; infinite errors end a line."""
    figure = new_figure(path)
    axes = figure.add_subplot()
    for width, curve in answer.curves.items():
        finite = np.isfinite(curve.errors) & (curve.radii > 0)
        axes.loglog(curve.radii[finite], curve.errors[finite], marker=".", label=f"m = {width}" if width else "error")
    level = answer.level if answer.verdict is None else float(answer.verdict.levels.max())
    if level:
        axes.axhline(level, color="grey", linestyle=":", label="level")
    axes.set(xlabel="perturbation radius", ylabel=f"{next(iter(answer.curves.values())).metric} error")
    title = answer.name if answer.verdict is None else f"{answer.name}: {answer.verdict.verdict}"
    axes.set_title(title, parse_math=False)
    axes.legend()
    axes.grid(alpha=0.3)
    save(figure, path)


@contextmanager
def _progress() -> Iterator[Any]:
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("building", total=None)
        yield lambda label, done, total: bar.update(task, description=label, completed=done, total=total)


def _shown(error: float) -> str:
    return f"{error:.4g}" if math.isfinite(error) else "inf"


def _widths(text: str | None) -> list[int]:
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts) or len(parts) < 2:
        raise ArgumentError(f"--widths: expected at least two whole numbers with commas, as 8,16,32; came {text!r}")
    return sorted({int(part) for part in parts})


def _radii(text: str) -> np.ndarray:
    try:
        low, high, count = text.split(":")
        bounds, number = (float(low), float(high)), int(count)
    except ValueError:
        raise ArgumentError(f"--radii: expected LOW:HIGH:COUNT, as 1e-4:1:21; came {text!r}") from None
    if not 0 < bounds[0] < bounds[1] < math.inf or number < 2:
        raise ArgumentError(f"--radii: needs 0 < LOW < HIGH and COUNT >= 2; came {text!r}")
    return np.geomspace(*bounds, number)


def law_of(text: str) -> laws.AbstractLaw:
    """A law written as LAW:CONSTANTS."""
    name, _, constants = text.partition(":")
    try:
        values = [float(part) for part in constants.split(",")] if constants else []
        return laws.get(name, *values)
    except (TypeError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"--target: expected LAW:CONSTANTS, as power:1.5; came {text!r} ({error})") from None
