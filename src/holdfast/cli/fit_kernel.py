"""`holdfast fit-kernel`: a kernel rho(t) from a file by sums of decaying exponentials, and the layer that has it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer
from rich.table import Table

from holdfast import parameterizations
from holdfast._types import Time
from holdfast.approximate import save_layer
from holdfast.cli import _screen as options
from holdfast.cli._files import read_kernel
from holdfast.cli._plots import check_plot, kernel_figure, terminal_plot, write_plot
from holdfast.cli._screen import answer, progress_bar, say, screen
from holdfast.decay import DecayFit, KernelFit, fit_kernel
from holdfast.decay._kernel_fit import DEFAULT_ORDERS, OFFERED_METHODS, spacing
from holdfast.errors import ArgumentError, unknown_name
from holdfast.memory import MemoryCurve


def command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            parser=options.file,
            help="CSV or NPY with the kernel rho(t), the weight of the input t steps ago: one column of rho, or t and rho.",
        ),
    ],
    orders: Annotated[str, typer.Option(help="Numbers of modes to try, separated by commas.")] = ",".join(
        map(str, DEFAULT_ORDERS)
    ),
    method: Annotated[
        str, typer.Option(help=f"Method of the fit: best (tries all), {', '.join(OFFERED_METHODS)}.")
    ] = "best",
    tolerance: Annotated[
        float, typer.Option(help="Largest L1 error to accept, relative to the L1 norm of the kernel.")
    ] = 0.01,
    dt: Annotated[
        float | None, typer.Option(help="Spacing of the samples if the file has no column of times (default: 1).")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=options.file, help="Write the layer of the chosen fit to this safetensors file."
        ),
    ] = None,
    parameterization: Annotated[str, typer.Option(help="Parameterization of the exported layer.")] = "exp",
    layer_time: Annotated[
        str, typer.Option("--time", help="Time of the exported layer: discrete (y = sum rho x) or continuous.")
    ] = "discrete",
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=options.file,
            help="Write kernel, fit and errors to this figure (.png, .pdf or .svg).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Fit a layer to a memory kernel: the best sum of decaying modes, its errors and its decay law.

    Chooses the fewest modes within the tolerance, else the number with the best information criterion.
    Exits with status 1 if none is within the tolerance.

    Example: holdfast fit-kernel rho.csv --tolerance 1e-3 --export layer.safetensors --plot fit.png
    """
    _check_outputs(export, plot, parameterization, layer_time)
    time, values = read_kernel(file, dt)
    if export is not None and layer_time == "discrete":
        spacing(time)
    with progress_bar("fitting") as tick:
        fit = fit_kernel(
            values, time, orders=_orders(orders), method=method, tolerance=tolerance,
            progress=lambda done, total: tick("fitting", done, total),
        )  # fmt: skip
    if export is not None:
        save_layer(fit.to_layer(parameterization, time=cast("Time", layer_time)), export)
    if plot is not None:
        write_plot(kernel_figure(file.name, fit), plot)
    whole = {"file": file.name, **fit.to_dict()}
    answer(as_json, whole, lambda: _report(file.name, fit, export), bad=not fit.reached)


def _check_outputs(export: Path | None, plot: Path | None, parameterization: str, time: str) -> None:
    """Minutes of fitting are not lost to a missing folder or a name that is wrong."""
    for path in (export, plot):
        if path is not None and not os.path.isdir(path.absolute().parent):
            raise ArgumentError(
                f"cannot write {path}: the folder {path.absolute().parent} does not exist; create it first"
            )
    if plot is not None:
        check_plot(plot)
    if time not in ("discrete", "continuous"):
        raise unknown_name("kind of time", time, ("discrete", "continuous"))
    parameterizations.get(parameterization, time=cast("Time", time))


def _orders(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ArgumentError(f"--orders: expected whole numbers separated by commas, as 4,8; got {text!r}") from error


def _report(name: str, fit: KernelFit, export: Path | None) -> None:
    console = screen()
    about = f"{name}: {len(fit.values)} samples to t = {fit.time[-1]:g}, L1 norm {fit.size:.4g}"
    say(console, about)
    # brackets in a curve are not markup of rich
    console.print(terminal_plot(MemoryCurve(time=fit.time, values=np.abs(fit.values))), markup=False)
    say(console, f"decay law: {_law(fit.decay)}")
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for head in ("", "modes", "method", "error", "at worst", "largest weight", "condition", "status"):
        left, breaks = head in ("", "method", "status"), head in ("method", "largest weight")
        table.add_column(head, justify="left" if left else "right", no_wrap=not breaks, overflow="fold")
    for order, fitted in sorted(fit.sums.items()):
        table.add_row(
            "*" if order == fit.chosen else "",
            str(order),
            fitted.method + (" (complex)" if fitted.is_complex else ""),
            f"{fitted.l1_error / fit.size:.1e}",
            f"{fitted.sup_error:.2e}",
            f"{fitted.weight_norms['max']:.3g}",
            f"{fitted.condition:.1e}",
            # a fit below the noise has converged, and is of no use
            fitted.status if order <= fit.useful else "follows noise",
        )
    console.print(table)
    for note in fit.notes:
        say(console, f"note: {note}")
    if max(fit.sums) > fit.useful:
        say(console, f"note: the samples carry about {fit.useful} modes; more follow noise or rounding errors")
    verdict = "within" if fit.reached else "NOT within"
    say(console, f"* chosen: {fit.chosen} modes, {verdict} the relative tolerance {fit.tolerance:g}")
    say(
        console,
        "error: area between kernel and sum as a share of the kernel's own; at worst: at one time, not as a share",
    )
    if export is not None:
        say(console, f"layer written to {export}; holdfast.approximate.load_layer reads it")
    elif fit.reached:
        say(console, "--export layer.safetensors writes it as a layer of holdfast.nn with this memory")
    else:
        say(console, "to get nearer: more modes (--orders), longer or less noisy samples, or a larger --tolerance")


def _law(decay: DecayFit) -> str:
    named = {"exponential": ("rate", decay.rate), "polynomial": ("exponent", decay.exponent)}
    named |= {"finite": ("support", decay.support), "periodic": ("period", decay.period)}
    what, value = named.get(decay.law, ("", None))
    constant = f", {what} {value:.4g}" if value is not None else ""
    return f"{decay.law}{constant} ({decay.explanation})"
