"""`holdfast certify`: what a model's recurrent weights promise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table
from rich.text import Text
from torch import nn

from holdfast.cli import _model as models
from holdfast.cli._plots import check_plot, write_plot
from holdfast.cli._screen import answer, file, say, screen, visible
from holdfast.cli.stability import law_of
from holdfast.errors import ArgumentError
from holdfast.figures import Figure
from holdfast.nn import recurrences
from holdfast.stability.certificates._certificate import Certificate, certify

COLOURS = {"stable": "green", "marginal": "yellow", "undecided": "yellow", "unstable": "red"}


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=models.HELP, show_default=False)],
    weight: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="One weight or layer, such as rnn.weight_hh_l0 (default: every recurrence)."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Time of the weight of --weight: continuous (dh/dt = W h) or discrete (h+ = W h)."),
    ] = None,
    structure: Annotated[
        str | None, typer.Option(help="Kind of the weight of --weight: dense (a matrix) or diagonal (eigenvalues).")
    ] = None,
    horizon: Annotated[int, typer.Option(help="Steps over which to measure the memory of a DiagonalSSM.")] = 200,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="LAW:CONSTANTS",
            help="Also report how large the weights must be for a memory that decays by this law, such as power:1.5.",
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(help="Steps of random inputs or tokens over which to follow a selective recurrence (0: none)."),
    ] = 256,
    starts: Annotated[int, typer.Option(help="Number of states from which to search for equilibria.")] = 16,
    limit: Annotated[int, typer.Option(help="Largest dense state to analyse, in numbers.")] = 2048,
    details: Annotated[
        bool, typer.Option("--details", help="Also print spectra, Lyapunov norms and the bounds of the papers.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the starting states and of a model with random weights.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=file, help="Write the eigenvalues to this figure (.png, .pdf or .svg)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Check from the weights whether each recurrence is stable, with its margin and how far a state can grow.

    Exits with status 1 if a recurrence is not stable.

    Example: holdfast certify my_models.py:lstm --plot eigenvalues.png
    """
    if plot is not None:
        check_plot(plot)
    torch.manual_seed(seed)
    loaded = models.load_model(model)
    module = loaded.plain if loaded.plain is not None else loaded.model
    if not isinstance(module, nn.Module):
        raise ArgumentError(
            f"MODEL must be an nn.Module, which has weights; got a {type(module).__name__} from {model}"
        )
    law = None if target is None else law_of(target)
    certificate = certify(
        module,
        weight,
        time=time,  # type: ignore[arg-type]
        structure=structure,  # type: ignore[arg-type]
        inputs=None if weight is not None else _inputs(loaded, module, steps, seed),
        horizon=horizon,
        target=law,
        starts=starts,
        limit=limit,
        seed=seed,
    )
    parts = certificate.parts or (certificate,)
    if plot is not None:
        write_plot(_figure(parts, loaded.name), plot)
    whole = {"model": loaded.name, "about": list(loaded.notes), **certificate.to_dict()}
    bad = any(part.status != "stable" for part in parts)
    answer(as_json, whole, lambda: report(", ".join((loaded.name, *loaded.notes)), parts, details), bad=bad)


def _inputs(loaded: models.LoadedModel, module: nn.Module, steps: int, seed: int) -> torch.Tensor | None:
    """Random inputs for a model with a selective recurrence in it: normal numbers, or tokens of a transformers model."""
    if steps < 1 or not any(view.selective for view in recurrences(module)):
        return None
    generator = torch.Generator().manual_seed(seed)
    if loaded.plain is not None:
        config: Any = loaded.plain.config
        return torch.randint(config.vocab_size, (1, steps), generator=generator)
    weight = next(module.parameters())
    return torch.randn(1, steps, loaded.input_size or 1, generator=generator).to(weight)


def report(name: str, parts: tuple[Certificate, ...], details: bool = False) -> None:
    """How near each recurrence is to the edge, what has to be said in words, what it means and what to do next."""
    console = screen()
    say(console, name)
    console.print(_edges(parts))
    if details:
        console.print(_spectra(parts))
    told: dict[str, list[str]] = {}
    for part in parts:
        for line in [*remarks(part), *(theory(part) if details else [])]:
            told.setdefault(line, []).append(part.path or "(model)")
    for line, paths in told.items():  # what several recurrences share is reported once
        many = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        say(console, f"{paths[0]}{many}: {line}")
    worst = min(parts, key=lambda part: part.margin if np.isfinite(part.margin) else -np.inf)
    say(console, f"nearest to the edge: {worst.path or 'the model'}, {worst.margin:.4g} per step")
    for line in _meaning(parts):
        say(console, line)


def _meaning(parts: tuple[Certificate, ...]) -> list[str]:
    """What the words of the table mean, and what to do next."""
    lines = [
        "margin: the share by which one step shrinks a deviation of the state; at 0 it never fades, below 0 it grows",
        "scope: global, from every state; local, for small deviations from an equilibrium",
    ]
    if any(part.status != "stable" for part in parts):
        moved = "holdfast.stabilize(model, allow_change=True) makes it stable, changes outputs and reports how far"
        lines.append(f"Next: {moved}; holdfast diagnose tries which call helps")
    else:
        lines.append("Next: holdfast diagnose reports whether training can make it unstable; --details has the theory")
    return lines


def _edges(parts: tuple[Certificate, ...]) -> Table:
    """One row per recurrence: its distance to the boundary per step, dt included, and per unit of time beside it."""
    table = Table(box=None, pad_edge=False)
    table.add_column("recurrence", overflow="fold")
    for head in ("verdict", "scope"):
        table.add_column(head, no_wrap=True)
    for head in ("margin per step", "steps to 1/e", "per unit time"):
        table.add_column(head, justify="right", no_wrap=True)
    for part in parts:
        status = f"[{COLOURS[part.status]}]{part.status}[/]"
        rate = "-" if part.continuous_margin is None else f"{part.continuous_margin:.4g}"
        numbers = (f"{part.margin:.4g}", _steps(part), rate)
        table.add_row(Text(visible(part.path or "(model)")), status, part.scope, *numbers)
    return table


def _steps(part: Certificate) -> str:
    steps = part.time_constant
    return f"x e in {-steps:.4g}" if steps < 0 else f"{steps:.4g}"


def _spectra(parts: tuple[Certificate, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("recurrence", "kind"):
        table.add_column(head, overflow="fold")
    for head in ("spectral", "numerical"):
        table.add_column(head, justify="right", no_wrap=True)
    for part in parts:
        numbers = (f"{part.spectral:.4g}", f"{part.numerical:.4g}")
        table.add_row(Text(visible(part.path or "(model)")), Text(visible(f"{part.kind}, {part.time}")), *numbers)
    return table


def remarks(part: Certificate) -> list[str]:
    """Notes, places of rest, growth on the way, Euler's step, weights for a horizon."""
    lines = list(part.notes)
    if part.equilibria:
        stable = sum(e.stable for e in part.equilibria)
        lines.append(f"{stable} of {len(part.equilibria)} places of rest that were found are stable")
    if part.growth is not None and part.growth.bound > 1.005:
        grown = f"a state may first grow, up to {part.growth.bound:.4g} times"
        lines.append(f"{grown} ({part.growth.measured:.4g} times was seen), before it dies out")
    if part.euler is not None and part.euler.stable:
        e = part.euler
        lines.append(f"the step dt = {e.dt:g} is short enough; up to dt = {e.largest_dt:.4g} it would be")
    if part.weight_bound is not None:
        lines.append(f"weights of norm {part.weight_bound:.4g} or more are needed for that memory (StableSSM, eq. 56)")
    return lines


def theory(part: Certificate) -> list[str]:
    """The Lyapunov norm and why the paper's bound does not hold, and the memory bound: in the papers' words."""
    lines = []
    if part.lyapunov is not None:
        lines.append(
            f"Lyapunov solution |P| = {part.lyapunov.norm:.4g}, the paper's bound {part.lyapunov.paper_bound:.4g}"
        )
    if part.lyapunov is not None and not part.lyapunov.applies:
        lines.append(part.lyapunov.reason)
    if part.euler is not None and part.euler.stable:
        lines.append(f"|1 + dt lam| <= {part.euler.radius:.4g} for Euler's step")
    if part.memory is not None:
        m = part.memory
        lines.append(
            f"memory M(t) <= {m.constant:.4g} e^(-{m.rate:.4g} t) (StableSSM, Thm 3.1); measured / bound is at most "
            f"{m.ratio:.3g} over {len(m.time) - 1} steps"
        )
    return lines


def _figure(parts: tuple[Certificate, ...], name: str) -> Figure:
    """A panel for each recurrence, as its certificate draws it."""
    panels = [
        replace(panel, title=f"{part.path or part.kind}, {part.time} time")
        for part in parts
        for panel in part.figure().panels
    ]
    return Figure("eigenvalues", f"Eigenvalues of {name} in the complex plane.", panels, columns=3)
