"""`holdfast fit-kernel`: a kernel rho(t) from a file by sums of decaying exponentials, and the layer that has it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from holdfast import parameterizations
from holdfast._types import Time
from holdfast.approximate import METHODS, ExponentialSum, Method, fit_exponential_sum, save_layer
from holdfast.cli.kernel_file import read_kernel
from holdfast.cli.kernel_plot import draw
from holdfast.cli.memory_plot import terminal_plot
from holdfast.cli.plot import new_figure
from holdfast.cli.text import visible
from holdfast.errors import ArgumentError, HoldfastError, unknown_name
from holdfast.memory import MemoryCurve

if TYPE_CHECKING:
    from holdfast.decay import DecayFit

# quadrature needs a law
OFFERED: tuple[Method, ...] = tuple(method for method in METHODS if method != "quadrature")
# least_squares is never better than nonlinear
TRIED: tuple[Method, ...] = ("nonnegative", "nonlinear", "matrix_pencil")


@dataclass(frozen=True, eq=False)
class Answer:
    """What one call found out: the samples, the best sum of each order, the last useful one, the chosen one."""

    name: str
    time: np.ndarray
    values: np.ndarray
    sums: dict[int, ExponentialSum]
    useful: int
    chosen: int
    tolerance: float
    decay: DecayFit
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> float:
        """L1 norm of the samples, to which errors are relative."""
        return float(np.trapezoid(np.abs(self.values), self.time))

    @property
    def reached(self) -> bool:
        """Whether the chosen sum is within the tolerance."""
        return self.sums[self.chosen].l1_error <= self.tolerance * self.size


def command(
    file: Annotated[Path, typer.Argument(help="CSV or NPY: a column of rho, or two columns t and rho.")],
    orders: Annotated[str, typer.Option(help="Numbers of modes to try.")] = "1,2,3,4,6,8,12,16,24,32",
    method: Annotated[str, typer.Option(help=f"best, or one of {', '.join(OFFERED)}.")] = "best",
    tolerance: Annotated[float, typer.Option(help="L1 error wanted, relative to the kernel's L1 norm.")] = 0.01,
    dt: Annotated[float | None, typer.Option(help="Spacing of the samples where the file has no times. [1]")] = None,
    export: Annotated[Path | None, typer.Option(help="Write the chosen sum's layer as safetensors.")] = None,
    parameterization: Annotated[str, typer.Option(help="Parameterization of the exported layer.")] = "exp",
    layer_time: Annotated[
        str, typer.Option("--time", help="Exported layer: discrete (y = sum rho x) or continuous (inputs held).")
    ] = "discrete",
    plot: Annotated[
        Path | None, typer.Option(help="Write kernel, fit and errors as a figure (.png, .pdf, .svg).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Fit a kernel by decaying modes: the best sum of each order, its errors, the decay law, a layer to use.

    Chosen is the smallest order within the tolerance, else the best that the samples carry (by information criterion).
    Ends with 1 if none is within the tolerance.

    Example: holdfast fit-kernel rho.csv --tolerance 1e-3 --export layer.safetensors --plot fit.png
    """
    _check_outputs(export, plot, parameterization, layer_time)
    time, values = read_kernel(file, dt)
    if export is not None and layer_time == "discrete":
        _step(time)
    answer = examine(file.name, time, values, _orders(orders), method, tolerance)
    if export is not None:
        _export(answer, export, parameterization, layer_time)
    if plot is not None:
        chosen = answer.sums[answer.chosen]
        draw(plot, answer.name, answer.time, answer.values, chosen, answer.sums, answer.tolerance * answer.size)
    if as_json:
        typer.echo(json.dumps(as_dict(answer), indent=1))
    else:
        _report(answer, export)
    if not answer.reached:
        raise typer.Exit(1)


def _check_outputs(export: Path | None, plot: Path | None, parameterization: str, time: str) -> None:
    """Minutes of fitting are not lost to a folder that is not there or a name that is wrong."""
    for path in (export, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ArgumentError(f"cannot write {path}: there is no folder {path.absolute().parent}; make it first")
    if plot is not None:
        new_figure(plot)
    if time not in ("discrete", "continuous"):
        raise unknown_name("kind of time", time, ("discrete", "continuous"))
    parameterizations.get(parameterization, time=cast("Time", time))


def _orders(text: str) -> list[int]:
    try:
        orders = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise ArgumentError(f"--orders: expected whole numbers with commas, came {text!r}") from error
    if orders[0] < 1:
        raise ArgumentError(f"--orders: expected numbers above 0, came {text!r}")
    return orders


def examine(
    name: str, time: np.ndarray, values: np.ndarray, orders: list[int], method: str, tolerance: float
) -> Answer:
    """The best sum of each order, up to the largest that the samples carry; progress goes to stderr."""
    from holdfast.decay import fit_decay

    if method not in ("best", *OFFERED):
        raise unknown_name("method", method, ("best", *OFFERED))
    if not tolerance > 0:
        raise ArgumentError(f"--tolerance: expected a number above 0, came {tolerance}")
    sums: dict[int, ExponentialSum] = {}
    notes: list[str] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("fitting", total=len(orders))
        for order in orders:
            found = _best(values, time, order, method)
            notes += found.notes
            if found.order in sums and found.status == "reduced":
                break  # further orders would be cut to the same one
            sums[found.order] = found
            progress.update(task, advance=1, description=f"{order} modes")
    useful = _useful_order(sums, time, values)
    size = float(np.trapezoid(np.abs(values), time))
    carried = {order: found for order, found in sorted(sums.items()) if order <= useful}
    within = [order for order, found in carried.items() if found.l1_error <= tolerance * size]
    chosen = within[0] if within else min(carried, key=lambda order: carried[order].l1_error)
    decay = fit_decay(MemoryCurve(time=time, values=np.abs(values)))
    return Answer(name, time, values, sums, useful, chosen, tolerance, decay, tuple(dict.fromkeys(notes)))


def _useful_order(sums: dict[int, ExponentialSum], time: np.ndarray, values: np.ndarray) -> int:
    """The order with the smallest information criterion: past it, two more numbers a mode only follow the noise.

    BIC with errors of Laplace's law, 2 N log(mean |error|) + 2 m log N for N samples and 2 m numbers.
    """
    count, span = len(values), float(time[-1] - time[0])
    floor = 1e-16 * float(np.abs(values).max())

    def criterion(order: int) -> float:
        return 2 * count * float(np.log(max(sums[order].l1_error / span, floor))) + 2 * order * float(np.log(count))

    return min(sums, key=criterion)


def _best(values: np.ndarray, time: np.ndarray, order: int, method: str) -> ExponentialSum:
    if method != "best":
        return fit_exponential_sum(values, order, cast("Method", method), time=time)
    found, failure = [], None
    for name in TRIED:
        try:
            found.append(fit_exponential_sum(values, order, name, time=time))
        except HoldfastError as error:  # unequal spacing, too many samples: another method may do
            failure = error
    if not found:
        assert failure is not None
        raise failure
    return min(found, key=lambda fit: fit.l1_error)


def _step(time: np.ndarray) -> float:
    """The spacing that a discrete layer needs."""
    steps = np.diff(time)
    if len(steps) == 0:
        return 1.0  # one sample, which the fit refuses
    if float(np.ptp(steps)) > 1e-6 * float(steps.mean()):
        raise ArgumentError("a discrete layer needs equally spaced samples; use --time continuous")
    return float(steps.mean())


def _export(answer: Answer, path: Path, parameterization: str, time: str) -> None:
    step = _step(answer.time) if time == "discrete" else float(np.diff(answer.time).mean())
    layer = answer.sums[answer.chosen].to_layer(parameterization, time=cast("Time", time), dt=step)
    save_layer(layer, path)


def as_dict(answer: Answer) -> dict[str, Any]:
    """Everything as plain numbers, for JSON."""
    return {
        "file": answer.name,
        "samples": len(answer.values),
        "l1_norm": answer.size,
        "decay": answer.decay.as_dict(),
        "tolerance": answer.tolerance,
        "reached": answer.reached,
        "useful": answer.useful,
        "chosen": answer.chosen,
        "notes": list(answer.notes),
        "sums": [found.as_dict() for _, found in sorted(answer.sums.items())],
    }


def _report(answer: Answer, export: Path | None) -> None:
    # a report that goes into a file or an issue is not folded at 80 columns
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    about = f"{answer.name}: {len(answer.values)} samples to t = {answer.time[-1]:g}, L1 norm {answer.size:.4g}"
    console.print(visible(about), markup=False)
    console.print(terminal_plot(MemoryCurve(time=answer.time, values=np.abs(answer.values))), markup=False)
    console.print(f"decay law: {_law(answer.decay)}", markup=False)
    table = Table(box=None, pad_edge=False)
    for head in ("", "order", "method", "L1 error", "relative", "sup error", "largest weight", "condition", "status"):
        table.add_column(head, justify="left" if head in ("", "method", "status") else "right")
    for order, found in sorted(answer.sums.items()):
        table.add_row(
            "*" if order == answer.chosen else "",
            str(order),
            found.method + (" (complex)" if found.is_complex else ""),
            f"{found.l1_error:.3e}",
            f"{found.l1_error / answer.size:.1e}",
            f"{found.sup_error:.3e}",
            f"{found.weight_norms['max']:.3g}",
            f"{found.condition:.1e}",
            found.status if order <= answer.useful else "follows noise",
        )
    console.print(table)
    for note in answer.notes:
        console.print(visible(f"note: {note}"), markup=False)
    if max(answer.sums) > answer.useful:
        console.print(f"note: the samples carry about {answer.useful} modes; more follow noise or rounding errors")
    verdict = "within" if answer.reached else "NOT within"
    console.print(f"* chosen: {answer.chosen} modes, {verdict} the relative tolerance {answer.tolerance:g}")
    if export is not None:
        console.print(visible(f"layer written to {export}; holdfast.approximate.load_layer reads it"), markup=False)


def _law(decay: DecayFit) -> str:
    named = {"exponential": ("rate", decay.rate), "polynomial": ("exponent", decay.exponent)}
    named |= {"finite": ("support", decay.support), "periodic": ("period", decay.period)}
    what, value = named.get(decay.law, ("", None))
    constant = f", {what} {value:.4g}" if value is not None else ""
    return f"{decay.law}{constant} ({decay.explanation})"
