"""The largest step of recurrent weights that changes an impulse response by no more than its own size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.nn import AbstractRecurrent
from holdfast.nn.system import LinearSystem
from holdfast.stability._movement import Movement

BISECTIONS = 30
MAX_STEP = 1e4  # of a free weight
TIMES = 256  # at which an impulse response is summed up, geometric from 0 to 20 time constants
TIME_CONSTANTS = 20.0  # e^-20 = 2e-9 is left
MAX_NUMBERS = 2**22  # of modes times pairs of input and output; of a larger layer the slowest rate has to do


@dataclass(frozen=True, eq=False)
class _Response:
    """sum_i c_i a_i^k of every pair of input and output: what each mode weighs in it, and its size in L1."""

    mass: Tensor  # sum over pairs of |c_i| / rate_i, for each mode
    size: float


def safe_step(way: Movement) -> float:
    """The largest movement of free weights in one step that is safe.

    StableSSM, eq. 65: it changes the impulse response in L1 by at most sum_i d_i |c_i| / |f(w_i)|, d_i the relative change
    of a rate, which the modulus g bounds. The largest for which that is at most the L1 norm of the response itself. Where
    modes mix or what reads them is not linear, the movement that changes the slowest rate by its own size.

    Args:
        way: the recurrence.
    """
    way.put(0.0)
    response = _response(_system(way))
    if response is None or not response.size > 0:
        return 1.0 / way.slope()
    low, high = 0.0, MAX_STEP
    for _ in range(BISECTIONS):
        middle = math.sqrt(max(low, high * 1e-12) * high)
        low, high = (middle, high) if _change(way, middle, response.mass) <= response.size else (low, middle)
    way.put(0.0)
    return low


def _system(way: Movement) -> LinearSystem | None:
    module = way.view.module
    system = module.linear_system() if isinstance(module, AbstractRecurrent) else None
    # an activation that is read with slope 1 at 0 changes sizes and not what a step of the rates does to them
    return None if system is None or system.dense or system.activation == "sigmoid" else system


@torch.no_grad()
def _response(system: LinearSystem | None) -> _Response | None:
    """(groups, outputs, inputs, modes) weights c = C B summed up over geometric times."""
    if system is None or system.C.numel() * system.B.shape[-1] * TIMES > MAX_NUMBERS:
        return None
    weights = system.C.unsqueeze(2) * system.B.mT.unsqueeze(1)
    rates = -torch.log(system.factor.abs().double())
    if not bool((rates > 0).all() and torch.isfinite(rates).all()):
        return None
    mass = (weights.abs().double() / rates[:, None, None, :]).sum((1, 2))
    last = TIME_CONSTANTS / float(rates.min())
    edges = torch.cat([torch.zeros(1).double(), torch.logspace(0, math.log10(max(last, 2.0)), TIMES).double()])
    times, widths = (edges[1:] + edges[:-1]) / 2, edges.diff()
    powers = torch.exp(torch.log(system.factor.to(torch.complex128)).unsqueeze(-1) * times)
    values = torch.einsum("goim,gmt->goit", weights.to(torch.complex128), powers).real
    return _Response(mass, float((values.abs() * widths).sum()))


def _change(way: Movement, shift: float, mass: Tensor) -> float:
    """The bound on the change of the response after a movement by `shift` to either side."""
    way.put(0.0)
    before = _rates(way)
    changes = []
    for step in (shift, -shift):
        way.put(step)
        after = _rates(way)
        moved = torch.where(after > 0, (before / after - 1).abs(), math.inf)
        changes.append(torch.nan_to_num(moved, nan=math.inf))
    worst = torch.maximum(*changes)
    return float((worst * mass).sum())


@torch.no_grad()
def _rates(way: Movement) -> Tensor:
    system = _system(way)
    assert system is not None
    return -torch.log(system.factor.abs().double())
