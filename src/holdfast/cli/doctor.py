"""`holdfast doctor`: what is installed, what is fast, what is missing, and a self-test."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated

import torch
import typer
from rich.table import Table

from holdfast import laws, parameterizations
from holdfast.cli._screen import answer, plain, say, screen
from holdfast.data import data_root, find_sets
from holdfast.kernels import _linear
from holdfast.kernels._common import backends, gpu, library, rooflines

# what decides how long an idle thread of a team spins: OpenMP's own setting, GNU's and LLVM's
SPIN_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
PACKAGES = ("holdfast", "torch", "numpy", "scipy")
EXTRAS = {
    "train": "lightning-fabric",
    "hf": "transformers",
    "cluster": "ray",
    "triton": "triton",
}  # and the package that each brings


@dataclass(frozen=True)
class Check:
    """One line of the report; `good` is None for a plain fact."""

    name: str
    value: str
    good: bool | None = None


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Report what this installation can do, and run a self-test of a few seconds.

    Example: holdfast doctor
    """
    checks = look_around()
    answer(as_json, checks, lambda: _print(checks), bad=any(check.good is False for check in checks))


def look_around() -> list[Check]:
    """Every line of the report, the self-test last."""
    return [*_versions(), *_extras(), *_native(), *_gpus(), *_data(), *_self_test()]


def _versions() -> list[Check]:
    lines = [Check("python", f"{platform.python_version()} on {platform.platform()}")]
    lines += [Check(name, metadata.version(name)) for name in PACKAGES]
    return [*lines, *_cores()]


def _cores() -> list[Check]:
    """Cores, the share of them that a container may use, and how busy they are, each with what to set."""
    cores, threads, quota = os.cpu_count() or 1, torch.get_num_threads(), library.cpu_quota()
    lines = [Check("cores", f"{cores}, torch uses {threads} threads")]
    if quota < threads:
        lines.append(
            Check(
                "CPU quota",
                f"{quota:g} cores for this container: set OMP_NUM_THREADS={max(1, int(quota))}; kernels do so",
            )
        )
    else:
        lines.append(Check("CPU quota", "none below that"))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = threads > 1 and load > cores / 2
    advice = (
        ": torch's own operators may wait for a thread: OMP_NUM_THREADS=1, or OMP_WAIT_POLICY=passive" if busy else ""
    )
    lines.append(Check("load", f"{load:.1f} on {cores} cores{advice}"))
    settings = [f"{name}={os.environ[name]}" for name in SPIN_SETTINGS if name in os.environ]
    unset = "OpenMP's own: threads that wait spin for a while, which a busy machine pays for; OMP_WAIT_POLICY=passive ends it"
    lines.append(Check("spinning", ", ".join(settings) or ("one thread does not wait" if threads == 1 else unset)))
    return lines


def _extras() -> list[Check]:
    return [Check(f"extra {extra}", _installed(extra, package)) for extra, package in EXTRAS.items()]


def _installed(extra: str, package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"not installed; to have it: pip install 'holdfast[{extra}]'"


def _native() -> list[Check]:
    status = library.status()
    if not status.available:
        # the torch versions of every kernel still work, so this is a fact and not a fault
        return [Check("native kernels", f"none ({status.reason}); the slower torch versions are used")]
    lines = [Check("native kernels", f"variant {status.variant} ({status.reason})", True)]
    if _linear.pays():
        text = (
            "torch takes float products from MKL, which uses AVX2 although this CPU has AVX-512; holdfast's layers, and "
            "nn.Linear after holdfast.accelerate, use products of ours"
        )
        lines.append(Check("matrix products", text))
    return lines


def _gpus() -> list[Check]:
    """Which kernels each device other than the CPU gets, and why."""
    devices = [
        torch.device(kind, i) for kind in gpu.DEVICES for i in range(torch.get_device_module(kind).device_count())
    ]
    if not devices:
        return [Check("GPUs", "none that torch can use (CUDA, ROCm, XPU); all runs on the CPU")]
    lines = []
    for device in devices:
        missing, name = gpu.missing(device), torch.get_device_module(device).get_device_name(device)
        kernels = f"torch's own operators: the Triton kernels are {missing}" if missing else _triton_kernels()
        lines.append(Check(str(device), f"{name}: {kernels}"))
    return lines


def _triton_kernels() -> str:
    return f"Triton kernels for {', '.join(backends.TRITON)}, torch's own operators for the rest; not measured by us"


def _data() -> list[Check]:
    present = [name for name, there in find_sets().items() if there]
    where = f"{data_root()}; set HOLDFAST_DATA to use another folder"
    return [Check("data", f"{', '.join(present) or 'nothing yet'} in {where}")]


def _self_test() -> list[Check]:
    return [_timed("formulas", _formulas), _timed("native call", _native_call)]


def _timed(name: str, test: Callable[[], tuple[bool | None, str]]) -> Check:
    start = time.perf_counter()
    good, text = test()
    return Check(f"self-test: {name}", f"{text} ({time.perf_counter() - start:.1f} s)", good)


def _formulas() -> tuple[bool | None, str]:
    """Every exact modulus against its numerical sup, one law's tail against quadrature."""
    worst = 0.0
    for kind in ("exp", "softplus", "best"):
        f = parameterizations.get(kind)
        searched = parameterizations.numerical_modulus(f, "continuous", 0.3)
        worst = max(worst, abs(f.modulus(0.3) - searched))
    law = laws.PowerLaw(1.5)
    t = torch.linspace(0, 10, 100_001, dtype=torch.float64)
    worst = max(worst, abs(float(torch.trapezoid(law(t), t)) - law.integral(0.0, 10.0)))
    return worst < 1e-8, f"largest difference {worst:.1e}"


def _native_call() -> tuple[bool | None, str]:
    if not library.status().available:
        return None, "skipped, no native kernels"
    n = 1 << 24
    x, y, out = torch.rand(n), torch.rand(n), torch.empty(n)
    rooflines.triad(out, x, y, 2.0)
    error = float((out - (x + 2 * y)).abs().max())
    start = time.perf_counter()
    for _ in range(5):
        rooflines.triad(out, x, y, 2.0)
    bandwidth = 5 * 12 * n / (time.perf_counter() - start) / 1e9
    # one fused multiply-add may differ from multiply then add by one rounding of a number below 4
    return error <= 2.4e-7, f"memory bandwidth {bandwidth:.0f} GB/s, error {error:.1e}"


def _print(checks: list[Check]) -> None:
    console, table = screen(), Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    marks = {None: " ", True: "[green]ok[/]", False: "[red]BAD[/]"}
    for check in checks:
        table.add_row(marks[check.good], plain(check.name), plain(check.value))
    console.print(table)
    say(console, _conclusion(checks))


def _conclusion(checks: list[Check]) -> str:
    bad = [check.name for check in checks if check.good is False]
    if bad:
        again = (
            "install again (pip install --force-reinstall holdfast); if it stays so, please report it with this text"
        )
        return f"Not as it should be: {', '.join(bad)}. What to do: {again}."
    return "All is well. Next: holdfast diagnose your_file.py:your_model"
