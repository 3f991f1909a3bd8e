"""What a step of a model costs: weights, and multiply-adds of its matrix products, convolutions and state updates, counted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.memory.preserve import undisturbed

LENGTHS = (16, 32)  # steps of the two runs whose difference is counted: what is done once per run drops out
COMPLEX = 4  # multiply-adds of a product of two complex numbers


@dataclass(frozen=True)
class Cost:
    """What a model costs.

    Args:
        weights: numbers that training would change.
        operations: multiply-adds of one step of one sequence; None where the model could not be counted.
    """

    weights: int
    operations: float | None


def cost_of(model: nn.Module, inputs: Callable[[int], Tensor]) -> Cost:
    """Counts, and times nothing.

    torch counts matrix products, convolutions and attention; the state updates of holdfast's kernels are added, other
    elementwise work is not counted. A float64 copy is run, in which torch splits its LSTM into products.

    Args:
        model: what is run.
        inputs: gives one sequence of so many steps, as the model takes it.
    """
    # here and not above: it imports Triton where that is installed, which `import holdfast` must not
    from torch.utils.flop_counter import FlopCounterMode

    weights = sum(p.numel() for p in model.parameters())
    totals = []
    try:
        own = copy.deepcopy(model).double().eval()
        for steps in LENGTHS:
            x = inputs(steps)
            counter = FlopCounterMode(display=False, custom_mapping=_formulas())
            with undisturbed(own), torch.no_grad(), counter:
                own(x.double() if x.is_floating_point() else x)
            totals.append(counter.get_total_flops())
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return Cost(weights, None)
    # torch counts a multiply-add as two
    return Cost(weights, (totals[1] - totals[0]) / 2 / (LENGTHS[1] - LENGTHS[0]))


def _formulas() -> dict[Any, Callable[..., int]]:
    """Twice the multiply-adds of each of holdfast's kernels that are loaded."""
    known: dict[str, Callable[..., int]] = {
        "scan_forward": _scan,
        "rnn_forward": _rnn,
        "gated_forward": _gated,
        "lru_forward": _lru,
        "s4d_scan_forward": _s4d,
        "s4d_fft_forward": _s4d,
        "selective_forward": _selective,
        "causal_conv_forward": _conv,
        "gate_forward": _gate,
    }
    kernels = torch.ops.holdfast
    for formula in known.values():
        formula._get_raw = True  # type: ignore[attr-defined]  # tensors, not their shapes: a complex product costs four
    return {getattr(kernels, name): formula for name, formula in known.items() if hasattr(kernels, name)}


def _scan(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return 2 * b.numel() * (COMPLEX if b.is_complex() else 1)


def _rnn(x: Tensor, recurrent: Tensor, fed: Tensor, *_: Any, **__: Any) -> int:
    return 2 * prod(x.shape[:2]) * (recurrent.numel() + fed.numel())


def _gated(x: Tensor, fed: Tensor, recurrent: Tensor, *_: Any, **__: Any) -> int:
    # the products of an LSTM or a GRU; what its gates multiply is elementwise, as torch's own is not counted
    return 2 * prod(x.shape[:2]) * (fed.numel() + recurrent.numel())


def _lru(x: Tensor, size: Tensor, angle: Tensor, fed: Tensor, read: Tensor, *_: Any, **__: Any) -> int:
    return 2 * prod(x.shape[:2]) * (fed.numel() + read.numel() + COMPLEX * size.numel())


def _s4d(x: Tensor, dt: Tensor, modes: Tensor, *_: Any, **__: Any) -> int:
    # the update of a complex mode, its input and its reading, whichever of the two algorithms runs
    return 2 * prod(x.shape[:2]) * 2 * COMPLEX * modes.numel()


def _selective(x: Tensor, dt: Tensor, modes: Tensor, *_: Any, **__: Any) -> int:
    # a h + b x, and the reading c h
    return 2 * prod(x.shape[:2]) * 3 * modes.numel()


def _conv(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    return 2 * prod(x.shape[:2]) * weight.numel()


def _gate(y: Tensor, x: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    return 2 * prod(x.shape[:2]) * weight.numel()
