"""Peak memory of one training step, measured in a process of its own, next to the kernel's stated formula."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import unknown_name
from holdfast_papers.benchmarks.case import OwnKernel, Shape
from holdfast_papers.benchmarks.registry import remembered

PROC = Path("/proc/self")


@dataclass(frozen=True)
class Peak:
    """Bytes over an idle process at the highest point of a training step, inputs included, and what was stated."""

    kernel: str
    shape: Shape
    measured: int | None
    stated: int
    formula: str
    note: str = ""


def measure(kernel: OwnKernel) -> Peak:
    """Runs one training step in a new process and reads the high-water mark of its memory."""
    common = (kernel.name, kernel.memory_shape)
    stated = kernel.stated_bytes(kernel.memory_shape)
    if not (PROC / "clear_refs").exists():
        note = "not measured: the high-water mark of a process is read from Linux's /proc/self"
        return Peak(*common, None, stated, kernel.formula, note)
    code = f"from holdfast_papers.benchmarks import memory; memory.print_peak({kernel.name!r})"
    command = [sys.executable, "-P", "-c", code]  # -P: nothing is imported from the current folder
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Peak(*common, None, stated, kernel.formula, f"not measured: the process failed with {last!r}")
    return Peak(*common, json.loads(done.stdout)["peak"], stated, kernel.formula)


def peak_of_step(kernel: OwnKernel) -> int:
    """Bytes over an idle process at the peak; for a process that has done nothing else."""
    # a small step first: it loads the library and starts the threads, whose memory belongs to no step
    small = kernel.ours(kernel.make_inputs(tuple(min(n, 8) for n in kernel.memory_shape)))
    small.step()
    idle = _status("VmRSS")
    runner = kernel.ours(kernel.make_inputs(kernel.memory_shape))
    (PROC / "clear_refs").write_text("5")  # resets VmHWM to the present size
    runner.step()
    return _status("VmHWM") - idle


def _status(field: str) -> int:
    for line in (PROC / "status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"expected a line {field} in {PROC / 'status'}, got none; memory is measured on Linux only")


def print_peak(name: str) -> None:
    """What the new process does: prints {"peak": bytes} of the kernel called `name`."""
    known = {kernel.name: kernel for kernel in remembered()}
    if name not in known:
        raise unknown_name("kernel", name, known)
    sys.stdout.write(json.dumps({"peak": peak_of_step(known[name])}))
