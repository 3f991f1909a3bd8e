"""What `bench --device` runs: each kernel with its inputs, and the other libraries that compute the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast import kernels
from holdfast.kernels._common.backends import Backend
from holdfast.kernels.gate import gate_reference

Step = Callable[[], tuple[Tensor, ...]]  # forward and backward: the output and all gradients
Inputs = dict[str, Tensor]
Sizes = tuple[int, int, int]  # rows, steps, channels
Draw = Callable[..., Tensor]
_STATES = 16  # of a channel, in selective and s4d
_UNITS, _GATED_UNITS = 128, 64  # of a nonlinear recurrence: as many as a kernel keeps on the chip
_SHORTER = 8  # a nonlinear recurrence runs over as many times fewer steps: it has no parallel form


@dataclass(frozen=True)
class Case:
    """A kernel: its inputs, a sequence first, its outputs by a backend, and how many sequences a training step moves.

    That number is the least: sequences in and out and their gradients, states that are kept, no weights.
    """

    inputs: Callable[[Draw, Sizes], Inputs]
    run: Callable[[Inputs, Backend], Tensor]
    arrays: int


def stepped(run: Callable[[], Tensor], inputs: Inputs) -> Step:
    """Forward and backward of what `run` gives, with gradients of all inputs."""

    def step() -> tuple[Tensor, ...]:
        y = run()
        return (y.detach(), *torch.autograd.grad(y, list(inputs.values()), torch.ones_like(y)))

    return step


def _scan(draw: Draw, sizes: Sizes) -> Inputs:
    return {"b": draw(*sizes), "a": torch.sigmoid(draw(*sizes) + 2)}


def _lru(draw: Draw, sizes: Sizes) -> Inputs:
    channels = sizes[2]
    turn, weights = draw(channels), {"b": draw(2 * channels, channels), "c": draw(channels, 2 * channels)}
    scale = channels**-0.5
    lam = {"lam_re": 0.9 * torch.cos(turn), "lam_im": 0.9 * torch.sin(turn)}
    return {"u": draw(*sizes), **lam, **{key: scale * value for key, value in weights.items()}, "d": draw(channels)}


def _s4d(draw: Draw, sizes: Sizes) -> Inputs:
    channels = sizes[2]
    modes = {key: draw(channels, _STATES) for key in ("lam_im", "c_re", "c_im")}
    return {"u": draw(*sizes), "dt": 0.01 + 0.1 * torch.sigmoid(draw(channels)), "d": draw(channels),
            "lam_re": -torch.sigmoid(draw(channels, _STATES)), **modes}  # fmt: skip


def _selective(draw: Draw, sizes: Sizes) -> Inputs:
    rows, steps, channels = sizes
    weights = {"B": draw(rows, steps, _STATES), "C": draw(rows, steps, _STATES), "D": draw(channels)}
    return {"u": draw(*sizes), "dt": draw(*sizes) - 4, "A": -torch.sigmoid(draw(channels, _STATES)), **weights}


def _causal_conv(draw: Draw, sizes: Sizes) -> Inputs:
    return {"x": draw(*sizes), "weight": draw(sizes[2], 4), "bias": draw(sizes[2])}


def _gate(draw: Draw, sizes: Sizes) -> Inputs:
    width = sizes[2]
    return {
        "y": draw(*sizes),
        "x": draw(*sizes),
        "weight": draw(2 * width, width) * width**-0.5,
        "bias": draw(2 * width),
    }


def _rnn(draw: Draw, sizes: Sizes) -> Inputs:
    rows, steps, n = sizes[0], max(1, sizes[1] // _SHORTER), min(sizes[2], _UNITS)
    return {"x": draw(rows, steps, n), "w": draw(n, n) * 0.5 * n**-0.5, "u": draw(n, n) * n**-0.5, "b": draw(n)}


def _gated(gates: int, draw: Draw, sizes: Sizes) -> Inputs:
    rows, steps, n = sizes[0], max(1, sizes[1] // _SHORTER), min(sizes[2], _GATED_UNITS)
    weights = {key: draw(gates * n, n) * n**-0.5 for key in ("w_ih", "w_hh")}
    return {"x": draw(rows, steps, n), **weights, "b_ih": draw(gates * n), "b_hh": draw(gates * n)}


def _run_gate(inputs: Inputs, backend: Backend) -> Tensor:
    return (kernels.gate if backend == "auto" else gate_reference)(**inputs)


def _run_gated(name: str, inputs: Inputs, backend: Backend) -> Tensor:
    x, *weights = inputs.values()
    return getattr(kernels, name)(x, tuple(weights), backend=backend)[0]


def _run(name: str, inputs: Inputs, backend: Backend) -> Tensor:
    options = {"dt_softplus": True} if name == "selective" else {}
    return getattr(kernels, name)(**inputs, **options, backend=backend)[0]


CASES = {
    "scan": Case(_scan, functools.partial(_run, "scan"), 8),
    "lru": Case(_lru, functools.partial(_run, "lru"), 23),
    "s4d": Case(_s4d, functools.partial(_run, "s4d"), 6),
    "selective": Case(_selective, functools.partial(_run, "selective"), 7),
    "causal_conv": Case(_causal_conv, functools.partial(_run, "causal_conv"), 5),
    "gate": Case(_gate, _run_gate, 12),
    "rnn": Case(_rnn, functools.partial(_run, "rnn"), 8),
    "lstm": Case(functools.partial(_gated, 4), functools.partial(_run_gated, "lstm"), 18),
    "gru": Case(functools.partial(_gated, 3), functools.partial(_run_gated, "gru"), 15),
}


def _accelerated_scan(inputs: Inputs) -> Step:
    from accelerated_scan.warp import scan  # type: ignore[import-not-found]

    def run() -> Tensor:
        return scan(inputs["a"].mT.contiguous(), inputs["b"].mT.contiguous()).mT

    return stepped(run, inputs)


def _fla(inputs: Inputs) -> Step:
    from fla.ops.hgrn import fused_recurrent_hgrn  # type: ignore[import-not-found]

    return stepped(lambda: fused_recurrent_hgrn(inputs["b"], inputs["a"].log())[0], inputs)


def _mamba_ssm(inputs: Inputs) -> Step:
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn  # type: ignore[import-not-found]

    def run() -> Tensor:
        u, dt, B, C = (inputs[key].mT.contiguous() for key in ("u", "dt", "B", "C"))
        return selective_scan_fn(u, dt, inputs["A"], B, C, inputs["D"], delta_softplus=True).mT

    return stepped(run, inputs)


def _causal_conv1d(inputs: Inputs) -> Step:
    from causal_conv1d import causal_conv1d_fn  # type: ignore[import-not-found]

    def run() -> Tensor:
        return causal_conv1d_fn(inputs["x"].mT.contiguous(), inputs["weight"], inputs["bias"]).mT

    return stepped(run, inputs)


def _torch_gated(name: str, inputs: Inputs) -> Step:
    """torch.nn's own, which is cuDNN's or MIOpen's on a GPU."""
    x, *weights = inputs.values()
    zeros = x.new_zeros(1, x.shape[0], inputs["w_hh"].shape[1])
    start = (zeros, zeros) if name == "lstm" else zeros
    run = getattr(torch, name)
    return stepped(lambda: run(x, start, weights, True, 1, 0.0, True, False, True)[0], inputs)


PEERS: dict[str, dict[str, tuple[str, Callable[[Inputs], Step]]]] = {
    "scan": {"accelerated-scan": ("accelerated_scan", _accelerated_scan), "fla (hgrn)": ("fla", _fla)},
    "selective": {"mamba-ssm": ("mamba_ssm", _mamba_ssm)},
    "causal_conv": {"causal-conv1d": ("causal_conv1d", _causal_conv1d)},
    "lstm": {"torch.nn.LSTM": ("torch", functools.partial(_torch_gated, "lstm"))},
    "gru": {"torch.nn.GRU": ("torch", functools.partial(_torch_gated, "gru"))},
}
