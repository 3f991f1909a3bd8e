"""`holdfast train`: a config file to a trained model, or a sweep to a page with curves side by side."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast._codec import plain
from holdfast._words import duration
from holdfast.cli._screen import (
    INTERRUPTED,
    SECONDS_BETWEEN_LINES,
    answer,
    print_table,
    progress_bar,
    say,
    screen,
    termination_as_interrupt,
    visible,
)
from holdfast.cli._screen import folder as folder_option
from holdfast.errors import ArgumentError

if TYPE_CHECKING:
    from holdfast.training import TrainingRun
    from holdfast.training._recipe import Recipe

RUNS = Path("runs")
DIVERGED = (
    "Next: --range-test finds rates that are safe; where the recurrence is at fault, "
    '--set model.parameterization="best" keeps it stable at any rate'
)


def command(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG.toml", help="Config file of the training run; docs/training.md explains its keys."
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Override a value of the config file; may be given several times.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=folder_option,
            help="Folder of the run (default: runs/CONFIG).",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder, or start it if the folder holds none.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Build the task and the model, report sizes and cost, and stop before training."
        ),
    ] = False,
    range_test: Annotated[
        bool,
        typer.Option(
            "--range-test",
            help="Propose a learning rate for recurrent weights and one for the others, without keeping a run.",
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of runs of a sweep to train at the same time (default: one for each core).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a model from a config file; lists of values in it make a sweep with one page for all runs.

    You can stop it at any time and continue with the same command and --resume. Exits with status 1 if a run diverged.

    Example: holdfast train examples/configs/smnist.toml --set optimizer.lr=0.002 --folder runs/mnist
    """
    from holdfast.training._recipe import read_recipes

    recipes = read_recipes(config, changes or [])
    where = folder or RUNS / config.stem
    if len(recipes) > 1:
        if dry_run or range_test:
            raise ArgumentError(
                f"--dry-run and --range-test need one run, got a sweep of {len(recipes)} in {config}; choose one with --set"
            )
        _sweep(config.stem, recipes, where, resume, workers, as_json)
        return
    if workers is not None:
        raise ArgumentError(f"--workers is for a sweep, and {config} has no list of values; leave it out")
    recipe = recipes[0][1]
    if dry_run:
        _say_estimate(recipe, as_json)
    elif range_test:
        _try_rates(recipe, as_json)
    else:
        _train(recipe, where, resume, as_json)


def _train(recipe: Recipe, folder: Path, resume: bool, as_json: bool) -> None:
    from holdfast.training._fit import fit_recipe
    from holdfast.training._folder import read_run
    from holdfast.training._rates import resolved_rate, told

    task = recipe.load_task()
    model = recipe.build_model(task)
    _note(f"{task.describe()}\n{sum(p.numel() for p in model.parameters()):,} parameters; in {folder}")
    for line in told(resolved_rate(model, task, recipe.config, read_run(folder) if resume else None)):
        _note(line)
    try:
        with termination_as_interrupt(), progress_bar("training", SECONDS_BETWEEN_LINES) as tick:
            run = fit_recipe(recipe, model, task, folder, resume=resume, progress=tick)
    except KeyboardInterrupt:
        # the line to type, with the options that this run had
        again = [*sys.argv[1:], *([] if resume else ["--resume"])]
        _note(f"stopped; continue with: {shlex.join(['holdfast', *again])}")
        raise typer.Exit(INTERRUPTED) from None
    # every process of a cluster runs this command, and one of them speaks
    if not _is_first_process():
        return
    answer(as_json, _as_json(run), lambda: _say_run(run), bad=run.status == "diverged")


def _say_run(run: TrainingRun) -> None:
    console = screen()
    for warning in run.warnings:
        say(console, f"WARNING  {warning}")
    say(console, run.summary())
    for which, path in run.checkpoints.items():
        say(console, f"{which} weights: {path}")
    if run.status == "diverged":
        say(console, DIVERGED)


def _as_json(run: TrainingRun) -> dict[str, Any]:
    """The run without its curves, which are in its folder."""
    # a history of a million steps is no answer of a command
    told = {name: value for name, value in run.to_dict().items() if name != "history"}
    return {**told, "checkpoints": {which: str(path) for which, path in run.checkpoints.items()}}


def _say_estimate(recipe: Recipe, as_json: bool) -> None:
    from holdfast.training._estimate import estimate
    from holdfast.training._rates import resolved_rate, told

    task = recipe.load_task()
    model = recipe.build_model(task)
    rates = told(resolved_rate(model, task, recipe.config, None))
    cost = estimate(model, task, recipe.config)
    if as_json:
        told_of = {**plain(cost), "seconds": cost.seconds, "data": task.describe(), "notes": rates}
        typer.echo(json.dumps(told_of, indent=1))
        return
    typer.echo(visible(task.describe()))
    typer.echo(f"parameters   {cost.parameters:,}, of which {cost.recurrent:,} are recurrent")
    typer.echo(
        f"memory       {_bytes(cost.weights)} for weights, gradients and AdamW; {_bytes(cost.activations)} per step"
    )
    for line in rates:
        typer.echo(visible(line))
    typer.echo(f"tokens       {cost.tokens:,} per step")
    typer.echo(
        f"time         {duration(cost.seconds)} for {cost.steps:,} steps of {1e3 * cost.step_seconds:.3g} ms on this machine"
    )


def _try_rates(recipe: Recipe, as_json: bool) -> None:
    from holdfast.training import range_test

    task = recipe.load_task()
    config = recipe.config
    with progress_bar("trying learning rates", SECONDS_BETWEEN_LINES) as tick:
        tried = range_test(recipe.build_model(task), task, batch=config.batch, seed=config.seed, progress=tick)
    if as_json:
        typer.echo(json.dumps(tried.to_dict(), indent=1, allow_nan=False))
        return
    console = screen()
    for line in tried.lines():
        say(console, line)
    if rates := " ".join(f"--set optimizer.{name}={rate:.2g}" for name, rate in tried.suggestion.items()):
        say(console, f"Next: train with {rates}")


def _sweep(name: str, recipes: list[Any], folder: Path, resume: bool, workers: int | None, as_json: bool) -> None:
    from holdfast.training._sweep import PAGE, run_sweep

    try:
        with termination_as_interrupt(), progress_bar("training", SECONDS_BETWEEN_LINES) as tick:
            sweep = run_sweep(name, recipes, folder, resume=resume, workers=workers, progress=tick)
    except KeyboardInterrupt:
        _note("stopped; finished runs are kept. Continue with the same command and --resume")
        raise typer.Exit(INTERRUPTED) from None
    for label, reason in sweep.failures.items():
        _note(f"FAILED  {label}: {reason}")
    if sweep.runs:
        _print_table(sweep.rows(), folder / PAGE, as_json)
    # after the table: a script sees the code, a person what went well
    if sweep.failures or any(run.status == "diverged" for run in sweep.runs.values()):
        raise typer.Exit(1)


def _print_table(rows: list[dict[str, Any]], page: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"page": str(page.absolute()), "runs": rows}, indent=1, allow_nan=False))
        return
    cells = [["-" if c is None else f"{c:.4g}" if isinstance(c, float) else str(c) for c in r.values()] for r in rows]
    print_table(screen(), list(rows[0]), cells)
    typer.echo(visible(f"Page: {page.absolute()}"))


def _is_first_process() -> bool:
    """Whether this process speaks for all that train together; Fabric, torchrun and clusters number them so."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK"))


def _note(text: str) -> None:
    if _is_first_process():
        typer.echo(visible(text), err=True)


def _bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"
