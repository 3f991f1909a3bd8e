"""The kernels on a GPU: checked against float64, then timed against the card's bandwidth, torch's path and other libraries.

It has not been run on a card here: each peer is called as its documentation says, and one whose result differs from ours,
or that raises, is reported as such and not timed.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import BackendError
from holdfast.kernels._common.backends import Backend, choose
from holdfast_papers.benchmarks._gpu_cases import CASES, PEERS, Case, Inputs, Sizes, Step, stepped

ROUNDS = 21
MAX_ERROR = 1e-4  # relative to the largest number, of float32 over a thousand steps
_CHECK_SIZES, _SIZES = (2, 130, 96), (8, 8192, 1024)  # rows, steps, channels of the check and of the timing


@dataclass(frozen=True)
class GPURow:
    """One kernel against one other: milliseconds of both, None where the other did not run, and why."""

    kernel: str
    against: str
    ours_ms: float | None
    other_ms: float | None
    note: str

    @property
    def ratio(self) -> float | None:
        """How many times faster ours is."""
        return None if self.ours_ms is None or self.other_ms is None else self.other_ms / self.ours_ms


def check_device(device: torch.device) -> None:
    """Refuses a device that torch does not see.

    Args:
        device: to measure on.
    """
    module = torch.get_device_module(device)
    if device.type != "cpu" and not (module.is_available() and (device.index or 0) < module.device_count()):
        raise BackendError(
            f"bench: expected a {device.type} device that torch can use, got none on this machine; run it on a "
            "machine with such a device and a build of torch for it"
        )


def run_on_gpu(device: torch.device, sizes: tuple[int, int, int] = _SIZES, rounds: int = ROUNDS) -> list[GPURow]:
    """Checks and times every kernel on `device`.

    Args:
        device: where to.
        sizes: rows, steps and channels.
        rounds: timings of each, in turn; their median counts.
    """
    check_device(device)
    rows: list[GPURow] = []
    for name, case in CASES.items():
        error = _error(case, device)
        if not error <= MAX_ERROR:
            rows.append(GPURow(name, "float64 reference", None, None, f"wrong: relative error {error:.1e}"))
            continue
        backend = choose(device, function=name)[0]
        rows.append(GPURow(name, "float64 reference", None, None, f"right by {backend}: relative error {error:.1e}"))
        inputs = _inputs(case, sizes, device)
        ours = _step(case, inputs, "auto")
        rows.append(_timed(name, "triad of the same bytes", ours, _triad(case, inputs), rounds, device))
        rows.append(_timed(name, "torch's path (chunked)", ours, _step(case, inputs, "chunked"), rounds, device))
        rows += [_peer(name, peer, inputs, ours, rounds, device) for peer in PEERS.get(name, {})]
    return rows


def _inputs(case: Case, sizes: Sizes, device: torch.device) -> Inputs:
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    given = case.inputs(draw, sizes)
    return {key: value.to(device).requires_grad_() for key, value in given.items()}


def _step(case: Case, inputs: Inputs, backend: Backend) -> Step:
    return stepped(lambda: case.run(inputs, backend), inputs)


def _error(case: Case, device: torch.device) -> float:
    """The largest error of outputs and gradients, relative to the largest number of each."""
    inputs = _inputs(case, _CHECK_SIZES, device)
    wide = {key: value.detach().cpu().double().requires_grad_() for key, value in inputs.items()}
    pairs = zip(_step(case, inputs, "auto")(), _step(case, wide, "reference")(), strict=True)
    return max(float((x.cpu().double() - y).abs().max() / y.abs().max()) for x, y in pairs)


def _triad(case: Case, inputs: Inputs) -> Step:
    """As many bytes as the kernel has to move, by one operator that does nothing else."""
    like = next(iter(inputs.values()))
    count = like.numel() * case.arrays // 3
    x, y, out = (torch.zeros(count, device=like.device) for _ in range(3))
    return lambda: (torch.add(x, y, alpha=2.0, out=out),)


def _timed(name: str, against: str, ours: Step, other: Step, rounds: int, device: torch.device) -> GPURow:
    times: tuple[list[float], list[float]] = ([], [])
    for step in (ours, other):  # compiled, and memory taken, before the clock runs
        step()
    for _ in range(rounds):
        for step, found in zip((ours, other), times, strict=True):
            found.append(_milliseconds(step, device))
    return GPURow(name, against, statistics.median(times[0]), statistics.median(times[1]), "")


def _milliseconds(step: Step, device: torch.device) -> float:
    wait: Callable[[], Any] = (lambda: None) if device.type == "cpu" else torch.get_device_module(device).synchronize
    wait()
    start = time.perf_counter()
    step()
    wait()
    return 1e3 * (time.perf_counter() - start)


def _peer(name: str, peer: str, inputs: dict[str, Tensor], ours: Step, rounds: int, device: torch.device) -> GPURow:
    package, make = PEERS[name][peer]
    if importlib.util.find_spec(package) is None:
        return GPURow(name, peer, None, None, "not installed")
    try:
        other = make(inputs)
        error = max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(other(), ours(), strict=True))
        if not error <= 100 * MAX_ERROR:
            return GPURow(name, peer, None, None, f"not timed: differs from ours by {error:.1e}")
        return _timed(name, peer, ours, other, rounds, device)
    except Exception as problem:  # another library's error is a line of the table, not the end of the run
        return GPURow(name, peer, None, None, f"not timed: {type(problem).__name__}: {str(problem)[:80]}")
