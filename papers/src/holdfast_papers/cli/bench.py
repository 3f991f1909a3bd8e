"""`holdfast bench`: the kernels against their rooflines and peers, checked before they are timed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.cli._screen import file, print_table, say, screen
from holdfast.errors import ArgumentError

if TYPE_CHECKING:
    from holdfast_papers.benchmarks import Report

BUDGET, QUICK_BUDGET = 150.0, 8.0  # seconds of timing; checks come on top
COLOURS = {"met": "green", "missed": "yellow", "not run": "dim", "wrong": "red"}


def command(
    peers: Annotated[bool, typer.Option("--peers", help="Also compare with mambapy, s5-pytorch and JAX.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Measure only this kernel or case, growth or memory; may be given several times."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes only, in well under a minute.")] = False,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Seconds for all timings together, checks not included (default: 150, with --quick 8).",
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", parser=file, help="Write all measurements as JSON to this file."),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=file, help="Write the tables into this Markdown page.")
    ] = None,
    earlier: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", parser=file, help="Show the JSON file of an earlier run without measuring."
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(metavar="DEVICE", help="Device to measure: cpu, or a GPU (cuda, cuda:1, xpu)."),
    ] = "cpu",
) -> None:
    """Check the kernels, then time them against hardware limits (rooflines) and other libraries.

    Exits with status 1 if a result was wrong; a missed goal is not an error.

    Example: holdfast bench --peers --json bench.json --markdown docs/benchmarks.md
    """
    from holdfast_papers.benchmarks import Report, run, select, write_page

    for path in (json_file, markdown):
        _check_folder(path)
    if device != "cpu":
        _refuse_beside_device(peers=peers, only=only, quick=quick, budget=budget, json=json_file)
        return _on_gpu(device, markdown)
    if earlier is not None:
        _refuse_beside_earlier(peers=peers, only=only, quick=quick, budget=budget, json=json_file)
        report = Report.load(earlier)
    else:
        plan = select(only or (), peers=peers, quick=quick)
        seconds = _seconds(budget, quick)
        _warn_if_busy()
        with _progress() as announce:
            report = run(plan, seconds, announce, f"holdfast {' '.join(sys.argv[1:])}")
    _print(report)
    if json_file is not None:
        report.save(json_file)
    if markdown is not None:
        write_page(markdown, report)
    if any(row.status == "wrong" for row in report.rows):
        raise typer.Exit(1)


def _refuse_beside_earlier(**choices: object) -> None:
    for name, value in choices.items():
        if value:
            raise ArgumentError(
                f"--from shows an earlier run without measuring, got --{name} too; leave one of them out"
            )


def _refuse_beside_device(**choices: object) -> None:
    for name, value in choices.items():
        if value:
            raise ArgumentError(
                f"--device measures every kernel and peer on a GPU, got --{name} too; leave one of them out"
            )


def _on_gpu(name: str, markdown: Path | None) -> None:
    """The table of one card: what was checked, and how many times faster ours is."""
    import torch

    from holdfast_papers.benchmarks.gpu import check_device, run_on_gpu

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ArgumentError(f"--device: expected a device of torch (cuda, cuda:1, xpu), got {name!r}") from error
    check_device(device)
    card = torch.get_device_module(device).get_device_name(device)
    heads = ["kernel", "against", "ours, ms", "other, ms", "times faster", "note"]
    lines = []
    for row in run_on_gpu(device):
        numbers = ("" if x is None else f"{x:.3g}" for x in (row.ours_ms, row.other_ms, row.ratio))
        lines.append([row.kernel, row.against, *numbers, row.note])
    console = screen()
    console.print(f"{card}, torch {torch.__version__}", style="bold", markup=False)
    print_table(console, heads, lines, [None] * len(lines))
    say(console, "Speeds on GPUs have not been measured by us: please send this table with an issue.")
    if markdown is not None:
        rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        rule = "|---" * len(heads) + "|"
        markdown.write_text(f"{card}, torch {torch.__version__}\n\n| {' | '.join(heads)} |\n{rule}\n{rows}\n")


def _seconds(budget: float | None, quick: bool) -> float:
    if budget is None:
        return QUICK_BUDGET if quick else BUDGET
    if not 0 < budget < float("inf"):
        raise ArgumentError(f"--budget: expected seconds above 0, got {budget}")
    return budget


def _check_folder(path: Path | None) -> None:
    """Minutes of measuring are not lost to a missing folder."""
    if path is not None and not path.absolute().parent.is_dir():
        raise ArgumentError(f"cannot write {path}: the folder {path.absolute().parent} does not exist; create it first")


def _warn_if_busy() -> None:
    from holdfast_papers.benchmarks.run import load_of_others

    load, cores = load_of_others(), os.cpu_count() or 1
    if load is not None and load > 0.5 * cores:
        # OpenMP threads wait for each other by spinning: one that lost its core can make a step 100x slower
        typer.echo(f"the machine is busy (load {load:.1f} on {cores} cores): ratios may be far off", err=True)


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal, plain lines elsewhere; on stderr, so that stdout holds the tables alone."""
    if not sys.stderr.isatty():
        start = time.monotonic()
        yield lambda text, done: typer.echo(f"[{time.monotonic() - start:4.0f} s, {done:4.0%}] {text}", err=True)
        return
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda text, done: bar.update(task, description=text, completed=done)


def _print(report: Report) -> None:
    from holdfast_papers.benchmarks.table import machine, summary, tables

    console = screen()
    for text in tables(report):
        console.print(text.title, style="bold", markup=False)
        print_table(console, text.heads, text.lines, [COLOURS.get(line[-1].split(":")[0]) for line in text.lines])
        console.print()
    say(console, machine(report))
    say(console, summary(report))
