"""Which backend and which native algorithm serve a call, and why."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from holdfast.errors import ArgumentError, unknown_name
from holdfast.kernels._common import backends
from holdfast.kernels._common.backends import Backend

Algorithm = Literal["auto", "scan", "fft"]
ALGORITHMS = ("auto", "scan", "fft")


class Choice(NamedTuple):
    """What serves a call of `s4d`.

    Args:
        backend: "native", "triton", "chunked" or "reference".
        algorithm: "scan" or "fft" for the native backend, empty for the others.
        reason: why, in words.
    """

    backend: str
    algorithm: str
    reason: str


MAX_FFT_STEPS = 4096  # past it the transforms leave the caches: at 8192 steps they cost two to three times as much


def algorithm_for(batch: int, time: int, modes: int, pairs: bool, state: bool) -> tuple[str, str]:
    """The faster native algorithm for these sizes.

    Nanoseconds for each number of u in a training step, two cores with AVX-512, fitted to 12 shapes: the scan pays for
    every mode at every step, the transforms for each mode once per feature, and once per row where the state is wanted.
    """
    # a real mode is one multiply-add where a complex one is four, but loads and stores stay
    weight = modes if pairs else 0.35 * modes
    scan = 1.3 + 0.29 * weight
    fft = 3.9 + 1.4 * weight / max(batch, 1) + (0.05 * weight if state else 0.0)
    if time <= MAX_FFT_STEPS and fft < scan:
        return "fft", f"transforms over {time} steps cost less than {modes} modes at every step"
    return "scan", f"{modes} modes at every step cost less than transforms over {time} steps"


def choose(
    batch: int,
    time: int,
    features: int,
    modes: int,
    *,
    complex_modes: bool = True,
    initial_state: bool = False,
    return_state: bool = True,
    device: torch.device | str = "cpu",
    algorithm: Algorithm = "auto",
    backend: Backend = "auto",
) -> Choice:
    """Tells what `s4d` runs for a call of these sizes: backend, native algorithm, and why.

    Args:
        batch: sequences.
        time: steps.
        features: features of the layer.
        modes: modes of each feature.
        complex_modes: whether the modes are complex.
        initial_state: whether an h0 is given.
        return_state: whether the final state is wanted.
        device: where the tensors are.
        algorithm: what was asked for: "auto", "scan" or "fft".
        backend: what was asked for: "auto", "native", "chunked" or "reference".
    """
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise unknown_name("algorithm of s4d", algorithm, ALGORITHMS)
    # who asks for one of its algorithms asks for the native backend
    asked: Backend = "native" if backend == "auto" and algorithm != "auto" else backend
    name, reason = backends.choose(device, asked, function="s4d")
    if name in ("reference", "chunked"):
        if algorithm != "auto":
            raise ArgumentError(f"s4d: algorithm={algorithm!r} is for the native backend, got backend={backend!r}")
        return Choice(name, "", reason)
    if name == "triton":
        return Choice(name, "", reason)
    if algorithm == "fft" and initial_state:
        raise ArgumentError("s4d: algorithm='fft' takes no h0; use algorithm='scan' or 'auto', or leave h0 out")
    if algorithm != "auto":
        return Choice(name, algorithm, "asked for by name")
    if initial_state:
        return Choice(name, "scan", "an initial state costs as much as the scan")
    return Choice(name, *algorithm_for(batch, time, modes, complex_modes, return_state))
