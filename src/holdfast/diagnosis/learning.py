"""What training does to a model at its start: gradients against weights, with longer sequences, and the rates that are safe."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.diagnosis.reading import Reading
from holdfast.diagnosis.weights import random_inputs
from holdfast.errors import ArgumentError
from holdfast.memory._subject import first_output
from holdfast.nn._views.groups import parameter_groups

RATES = tuple(10 ** (-4 + k / 2) for k in range(9))  # 1e-4 to 1, two a decade
STEPS = 12  # of Adam at one rate
ROWS, FEWEST, SHORTEST = 8, 2, 16  # sequences of a gradient; and of a large model, with steps at half their length
WORK = 1e10  # weights times steps of one gradient, from which on there are fewer and shorter sequences
WORSE = 2.0  # times the first loss: no step may go beyond
SLOW = 0.01  # a safe rate up to which it is worth giving the recurrent weights one of their own
USUAL = 1e-3  # the rate that larger ones are measured by: outputs that a norm bounds never double a loss
SAFE = f"{STEPS} steps of Adam never double the loss and end below it, above {USUAL:g} no higher than there"
STAND_IN = 20.0  # steps over which the stand-in task averages its inputs
KINDS = ("recurrent", "other")


@dataclass(frozen=True)
class Learning:
    """Training at its start.

    Args:
        task: what was learned, in words.
        ratio: |gradient| / |weight| of the "recurrent" weights and of the "other" ones.
        growth: how many times larger the gradient is for sequences twice as long.
        norm: the gradient's norm, of all weights, at the longer length.
        safe: largest safe learning rate of all weights; None where none of those tried is.
        safe_of: the same where only "recurrent" or only "other" weights move; empty unless `safe` is small.
        pair: a larger rate of the others with one of the recurrent weights that were safe together; None where there is
            none.
    """

    task: str
    ratio: dict[str, float]
    growth: float
    norm: float
    safe: float | None
    safe_of: dict[str, float | None]
    pair: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        plain = {"task": self.task, "ratio": self.ratio, "growth": self.growth, "norm": self.norm}
        plain["safe_pair"] = self.pair
        return {**plain, "safe_rate": self.safe, "safe_rate_of": self.safe_of, "safe_means": SAFE}


def look_at_learning(reading: Reading, length: int, seed: int, data: tuple[Tensor, Tensor] | None) -> Learning:
    """Gradients and safe rates, on the data given or on a stand-in task that needs some memory.

    Args:
        reading: the model.
        length: steps of a sequence of the stand-in.
        seed: of its inputs.
        data: inputs (rows, time, features) and targets (rows, time, outputs); None is the stand-in.
    """
    if not any(p.requires_grad for p in reading.model.parameters()):
        raise ArgumentError("the model has no weight that is trained")
    length = length if reading.longest is None else min(length, reading.longest // 2)
    rows, length = _affordable(reading.model, length)
    if data is None:
        x, y = _stand_in(reading, rows, 2 * length, seed)
        task = f"a stand-in: the mean of the inputs over the last {STAND_IN:.0f} steps"
    else:
        x, y = data[0][:rows, : 2 * length], data[1][:rows, : 2 * length]
        task = "the data given"
    if rows < ROWS:
        task += f"; {rows} sequences of {x.shape[1]} steps, since the model is large"
    half = x.shape[1] // 2
    model = copy.deepcopy(reading.model).eval()
    before = _gradient(model, x[:, :half], y[:, :half])
    after = _gradient(model, x, y)
    ratio = {name: _ratio(weights) for name, weights in _groups(model).items() if weights}
    safe = _largest(reading.model, x, y, KINDS)
    held_down = safe is None or safe <= SLOW  # only then is it worth the time to ask which weights do that
    safe_of = {name: _largest(reading.model, x, y, (name,)) for name in ratio} if held_down else {}
    pair = _pair(reading.model, x, y, safe, safe_of)
    return Learning(task, ratio, after / max(before, 1e-300), after, safe, safe_of, pair)


def _pair(
    model: nn.Module, x: Tensor, y: Tensor, safe: float | None, safe_of: dict[str, float | None]
) -> tuple[float, float] | None:
    """Rates with which the others may go at least 3 times faster than all together, tried before they are told."""
    own, other = (safe_of.get(name) for name in KINDS)
    if safe is None or own is None or other is None or other <= safe:
        return None
    for times in (10.0, 10**0.5):
        rates = {"recurrent": min(own, safe), "other": min(other, times * safe)}
        if rates["other"] > 3 * safe and _is_safe(model, x, y, rates, _end(model, x, y, dict.fromkeys(KINDS, USUAL))):
            return rates["other"], rates["recurrent"]
    return None


def _affordable(model: nn.Module, length: int) -> tuple[int, int]:
    """How many sequences, and half the steps of each, so that a gradient of a large model is no long wait."""
    steps = int(WORK / max(sum(p.numel() for p in model.parameters()), 1))
    rows = min(ROWS, max(FEWEST, steps // (2 * length)))
    return rows, min(length, max(SHORTEST, steps // (2 * rows)))


def _stand_in(reading: Reading, rows: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    x = random_inputs(reading, rows, length, seed)
    with torch.no_grad():
        y = first_output(reading.model(x[:1, :2]))
    outputs = y.shape[-1] if y.ndim == 3 else 1
    keep = math.exp(-1 / STAND_IN)
    mean, means = torch.zeros_like(x[:, 0]), []
    for step in x.unbind(1):
        mean = keep * mean + (1 - keep) * step
        means.append(mean)
    y = torch.stack(means, 1)
    y = y / y.std().clamp(min=1e-6)
    return x, y[..., torch.arange(outputs, device=x.device) % y.shape[-1]]


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = first_output(model(x))
    out = out.unsqueeze(-1) if out.ndim == 2 else out
    return (out - y).square().mean()


def _gradient(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The norm of the gradient, which is left in the weights."""
    model.zero_grad(set_to_none=True)
    with torch.enable_grad():
        _loss(model, x, y).backward()
    return _norm([p.grad for p in model.parameters() if p.grad is not None])


def _groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    *others, recurrent = (group["params"] for group in parameter_groups(model, lr=1.0))
    return {"recurrent": recurrent, "other": [p for group in others for p in group if p.requires_grad]}


def _ratio(weights: list[nn.Parameter]) -> float:
    gradient = _norm([p.grad for p in weights if p.grad is not None])
    return gradient / max(_norm([p.detach() for p in weights]), 1e-300)


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(t.detach().abs().double().square().sum()) for t in tensors))


def _largest(model: nn.Module, x: Tensor, y: Tensor, moving: tuple[str, ...]) -> float | None:
    """The largest of RATES that is safe, by bisection: a rate above an unsafe one counts as unsafe."""
    usual = _end(model, x, y, dict.fromkeys(moving, USUAL))
    low, high = -1, len(RATES)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_safe(model, x, y, dict.fromkeys(moving, RATES[middle]), usual):
            low = middle
        else:
            high = middle
    return None if low < 0 else RATES[low]


def _is_safe(model: nn.Module, x: Tensor, y: Tensor, rates: dict[str, float], usual: float) -> bool:
    """Whether training at these rates ends below the first loss, and above the usual rate also no worse than there."""
    end = _end(model, x, y, rates)
    return end < 1 and (max(rates.values()) <= USUAL or end <= usual)


def _end(model: nn.Module, x: Tensor, y: Tensor, rates: dict[str, float]) -> float:
    """The last loss over the first; inf where one on the way was more than twice the first."""
    trained = copy.deepcopy(model).eval()  # dropout off: the same loss is compared
    groups = _groups(trained)
    optimizer = torch.optim.Adam([{"params": groups[name], "lr": rate} for name, rate in rates.items()])
    losses: list[float] = []
    with torch.enable_grad():
        for _ in range(STEPS + 1):
            trained.zero_grad(set_to_none=True)
            loss = _loss(trained, x, y)
            losses.append(float(loss.detach()))
            if not losses[-1] <= WORSE * losses[0]:
                return math.inf
            loss.backward()
            optimizer.step()
    return losses[-1] / losses[0] if losses[0] > 0 else math.inf
