"""`holdfast reproduce`: experiments to results, claims and the page, by one command that can be stopped and repeated."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast._codec import plain
from holdfast._words import duration
from holdfast.cli._screen import INTERRUPTED, folder, termination_as_interrupt, visible
from holdfast.errors import ArgumentError, DamagedResultError, unknown_name
from holdfast_papers.cli.claims import print_claims
from holdfast_papers.cli.progress import show

if TYPE_CHECKING:
    from holdfast_papers.execution import Failure, Job, Store
    from holdfast_papers.execution.check import Move
    from holdfast_papers.execution.executor import Executor
    from holdfast_papers.results import Result

STORE = Path("results")
StoreOption = Annotated[Path, typer.Option(metavar="FOLDER", parser=folder, help="Folder of the results.")]
MAX_FAILURES_SHOWN = 5  # failures reported again at the end


def command(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...",
            help="Experiments by their id in `holdfast list`, or .py files of your own; none means all.",
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(help="Size of the runs: quick (minutes), standard (hours) or paper (the settings of the paper)."),
    ] = "quick",
    store: StoreOption = STORE,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of units to run at the same time (default: one for each core).",
            show_default=False,
        ),
    ] = None,
    executor: Annotated[str, typer.Option(help="Where units run: local, or ray (needs the extra cluster).")] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address of the Ray cluster, with --executor ray.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep results of your own experiments even if their code has changed since.")
    ] = False,
    redraw: Annotated[
        bool,
        typer.Option(
            "--redraw", help="Recompute conclusions from saved units, for example after a change of a criterion."
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Also compare with the reference results, and list the numbers that changed."),
    ] = False,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=folder,
            help="Folder of the reference results for --check (default: docs/results).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the claims as JSON.")] = False,
) -> None:
    """Reproduce figures and tables of the papers: run missing experiments, decide the claims, write the page.

    You can stop it at any time and continue with the same command. Exits with status 1 if a unit failed or, with --check,
    if a number changed.

    Example: holdfast reproduce stable-fig2 iat-fig11 --preset quick
    """
    from holdfast_papers.execution import Scheduler, Store, plan
    from holdfast_papers.execution.check import compare
    from holdfast_papers.report import check_folder, write_page

    started = time.monotonic()
    references = _references(reference, check)
    kept = Store(store)
    kept.prepare()
    check_folder(store / "page")
    jobs: list[Job] = []
    try:
        with termination_as_interrupt(), show() as listener:
            jobs = plan(kept, ids or [], preset, listener.notice, keep=keep)
            if redraw:
                _forget_conclusions(kept, jobs)
            listener.planned(jobs)
            performer = make_executor(executor, store, workers, address)
            failures = Scheduler(kept, performer, listener, jobs).run()
    except KeyboardInterrupt:
        _say_how_to_continue(jobs)
        raise typer.Exit(INTERRUPTED) from None
    results, damage = _load(jobs)
    with kept.guarded():
        page = write_page(store, store / "page", notice=lambda text: typer.echo(visible(f"DAMAGED  {text}"), err=True))
    moves = [move for result in results for move in compare(result, references)] if references else []
    _print(results, failures, moves, page, as_json)
    if not as_json:
        took = duration(time.monotonic() - started)
        many = "1 experiment" if len(results) == 1 else f"{len(results)} experiments"
        typer.echo(visible(f"{many} in {took}. Page: {page.absolute()}"))
    if failures or damage or any(move.serious for move in moves):
        raise typer.Exit(1)


def _forget_conclusions(store: Store, jobs: list[Job]) -> None:
    """Conclusions are drawn from units alone: without its manifest one counts as missing, and its units stay."""
    from holdfast_papers.results import MANIFEST

    with store.guarded():
        for job in jobs:
            if job.concluded:
                (job.folder / MANIFEST).unlink(missing_ok=True)
                job.concluded = False


def make_executor(name: str, store: Path, workers: int | None, address: str | None) -> Executor:
    """The executor that --executor, --workers and --address name."""
    if name == "ray":
        from holdfast_papers.execution.cluster import RayExecutor

        return RayExecutor(store, address=address, workers=workers)
    if name != "local":
        raise unknown_name("executor", name, ("local", "ray"))
    if address is not None:
        raise ArgumentError(
            "--address is the address of a Ray cluster and needs --executor ray; add that, or leave it out"
        )
    from holdfast_papers.execution import LocalExecutor

    return LocalExecutor(store, workers)


def _say_how_to_continue(jobs: list[Job]) -> None:
    total = len({task.folder for job in jobs for task in job.units})
    there = len({folder for job in jobs for folder in job.contents})
    again = shlex.join(["holdfast", *sys.argv[1:]])
    typer.echo(visible(f"stopped: {there} of {total} units are finished and kept. Continue with: {again}"), err=True)


def _load(jobs: list[Job]) -> tuple[list[Result], int]:
    """The conclusions, and how many of them cannot be read; the page says which."""
    from holdfast_papers.results import Result

    results, damage = [], 0
    for job in jobs:
        if job.concluded:
            try:
                results.append(Result.load(job.folder))
            except DamagedResultError:
                damage += 1
    return results, damage


def _references(named: Path | None, check: bool) -> Path | None:
    """What to compare with: the folder that was named, or docs/results of the clone that this file lies in."""
    if not check:
        if named is not None:
            raise ArgumentError("--reference is the folder that --check compares with; add --check, or leave it out")
        return None
    if named is not None and named.is_dir():
        return named
    clone = Path(__file__).resolve().parents[4] / "docs" / "results"
    folder = named or (clone if clone.is_dir() else Path("docs/results"))
    if not folder.is_dir():
        raise ArgumentError(f"expected a folder of reference results, got {folder}; name one with --reference")
    return folder


def _print(results: list[Result], failures: list[Failure], moves: list[Move], page: Path, as_json: bool) -> None:
    if as_json:
        summary = {
            "page": str(page.absolute()),
            "claims": [{"experiment": r.experiment, **plain(claim)} for r in results for claim in r.claims],
            "failures": [{"unit": f.task.label, "error": f.text, "traceback": str(f.file)} for f in failures],
            "moves": [asdict(move) for move in moves],
        }
        typer.echo(json.dumps(summary, indent=1))
        return
    print_claims(results)
    for move in moves:
        typer.echo(visible(f"{'MOVED' if move.serious else 'note '}  {move.experiment}: {move.text}"))
    for failure in failures[:MAX_FAILURES_SHOWN]:
        typer.echo(
            visible(f"FAILED  {failure.task.label}: {failure.text}\n        traceback: {failure.file}"), err=True
        )
    if len(failures) > MAX_FAILURES_SHOWN:
        typer.echo(
            visible(f"FAILED  and {len(failures) - MAX_FAILURES_SHOWN} more units: see {failures[0].file.parent}"),
            err=True,
        )
