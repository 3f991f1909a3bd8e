"""What training does to a model at its start: gradients against weights, with longer sequences, and stable learning rates."""

from __future__ import annotations

import copy
import gc
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.diagnosis._reading import LARGE, Reading, count_weights, runnable
from holdfast.diagnosis._samples import Samples
from holdfast.errors import ArgumentError, HoldfastError
from holdfast.memory._subject import INPUT_ERRORS
from holdfast.stability import parameter_groups

RATES = (1e-4, 3.2e-4, 1e-3, 3.2e-3, 1e-2, 3.2e-2, 0.1, 0.32, 1.0)
RUN_STEPS, FEW_RUN_STEPS = 20, 10  # of Adam at one rate, and those of a large model
LOSS_BOUND = 2.0  # times the first held-out loss: no batch may go beyond
END_BOUND = 1.05  # times the first held-out loss: a trained model begins near its lowest
LOW_RATE = 0.01  # a stable rate up to which it is worth giving the recurrent weights one of their own
USUAL_RATE = 1e-3  # the one that is tried first
RISE = 0.02  # of the first held-out loss: a rate may end so much higher than a smaller one
MET_SHARE = 1e-3  # of the error of an answer that ignores the inputs: a model below that meets its targets
MAX_SECONDS, MAX_LARGE_SECONDS = 40.0, 15.0  # of CPU time, after which no further rate is tried; of a large model
MAX_PEAK = 1.15  # times the largest entry of a new weight that is drawn between bounds
EVEN_PEAK = 2.0  # largest entry over root mean square, below which a weight was drawn between bounds
KINDS = ("recurrent", "other")
LEARNED_SHARE = 0.9  # of the error of an answer that ignores the inputs: a model below that has learned something
MIN_EVEN_NUMBERS = 64  # of a weight whose largest entry is compared
MIN_NUMBERS = 16  # of a weight whose size is compared
MIN_LOG_RATIO = 0.1  # of the size of a weight over that of an untrained one, beyond what so few numbers may differ by


@dataclass(frozen=True)
class Learning:
    """Training at its start.

    Args:
        task: what was learned, in words.
        ratio: |gradient| / |weight| of the "recurrent" weights and of the "other" ones.
        growth: how many times larger the gradient is for sequences twice as long; NaN where there is none.
        norm: the gradient's norm, of all weights, at the longer length.
        safe: largest stable learning rate of all weights; None where none of those tried is.
        safe_of: the same where only "recurrent" or only "other" weights move; empty unless `safe` is small.
        pair: a larger rate of the others with one of the recurrent weights that were stable together; None where there is
            none.
        met: where the model meets its targets already: its error, and that of an answer that ignores the inputs; no rate is
            looked for then.
        cut: whether time was over before a rate was found that is not stable.
        run_steps: of Adam at each rate that was tried.
    """

    task: str
    ratio: dict[str, float]
    growth: float
    norm: float
    safe: float | None
    safe_of: dict[str, float | None]
    pair: tuple[float, float] | None = None
    met: tuple[float, float] | None = None
    cut: bool = False
    run_steps: int = RUN_STEPS

    @property
    def stable_means(self) -> str:
        """What a stable rate is, in words."""
        return (
            f"the loss never doubles within {self.run_steps} steps of Adam, and the held-out loss ends no higher than "
            "at smaller rates"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        plain = {"task": self.task, "ratio": self.ratio, "growth": self.growth, "norm": self.norm}
        plain |= {"stable_pair": self.pair, "targets_met": self.met, "cut": self.cut}
        return {**plain, "stable_rate": self.safe, "stable_rate_of": self.safe_of, "stable_means": self.stable_means}


def look_at_learning(reading: Reading, model: nn.Module, samples: Samples) -> Learning:
    """Gradients and stable rates on the samples.

    Args:
        reading: how the model is read.
        model: what is run on the samples; it is copied.
        samples: the user's data, or a stand-in.
    """
    if not any(p.requires_grad for p in model.parameters()):
        raise ArgumentError("expected a model with trainable weights, got none with requires_grad")
    x, y = (part[: samples.batch] for part in samples.training)
    task = samples.words
    if reading.large:
        task += f"; {len(x)} sequences of {x.shape[1]} steps, since the model is large"
    half = max(1, x.shape[1] // 2)
    copied = copy.deepcopy(model).eval()
    # of a sequence with one target at its end the later half is as near to it
    shorter = (x[:, half:], y) if samples.once else (x[:, :half], y[:, :half])
    before = _gradient(copied, samples, *shorter)
    after = _gradient(copied, samples, x, y)
    growth = after / before if before > 0 else math.nan
    ratio = {name: _ratio(weights) for name, weights in _groups(copied).items() if weights}
    met = _met(copied, samples)
    if met is not None or not after > 0:
        return Learning(task, ratio, growth, after, None, {}, met=met)
    del copied  # a model with its gradients: the runs make copies of their own
    seconds, steps = (MAX_LARGE_SECONDS, FEW_RUN_STEPS) if reading.large else (MAX_SECONDS, RUN_STEPS)
    run = _Runs(model, samples, time.process_time() + seconds, steps)
    safe, best = run.largest(KINDS)
    held_down = safe is None or safe <= LOW_RATE  # only then is it worth the time to ask which weights do that
    safe_of = {name: run.largest((name,))[0] for name in ratio} if held_down and not run.over else {}
    return Learning(
        task,
        ratio,
        growth,
        after,
        safe,
        safe_of,
        run.pair(safe, safe_of, best) if len(ratio) > 1 else None,
        cut=run.over,
        run_steps=steps,
    )


def _met(model: nn.Module, samples: Samples) -> tuple[float, float] | None:
    """The errors of the model and of an answer that ignores the inputs, where the first is next to nothing."""
    if not samples.given:
        return None
    error, trivial = samples.error(model), samples.trivial_error()
    return (error, trivial) if error <= MET_SHARE * trivial else None


@dataclass(frozen=True, eq=False)
class _Runs:
    """Short runs of training, judged on held-out sequences."""

    model: nn.Module
    samples: Samples
    deadline: float = math.inf
    steps: int = RUN_STEPS

    @property
    def over(self) -> bool:
        """Whether the time for it has passed."""
        return time.process_time() > self.deadline

    def largest(self, moving: tuple[str, ...]) -> tuple[float | None, float]:
        """The largest of RATES up to which all are stable, from the usual one up or down; and the lowest end on the way."""
        usual = RATES.index(USUAL_RATE)
        ends = {usual: self.end(dict.fromkeys(moving, USUAL_RATE))}
        if ends[usual] >= END_BOUND:
            for k in reversed(range(usual)):
                if self.over:
                    break
                if self.end(dict.fromkeys(moving, RATES[k])) < END_BOUND:
                    return RATES[k], math.inf
            return None, math.inf
        for k in range(usual + 1, len(RATES)):
            if self.over:
                break
            end = self.end(dict.fromkeys(moving, RATES[k]))
            if end > min(ends.values()) + RISE:
                break
            ends[k] = end
        return RATES[max(ends)], min(ends.values())

    def pair(self, safe: float | None, safe_of: dict[str, float | None], best: float) -> tuple[float, float] | None:
        """Rates with which the others may go at least 3 times faster than all together, run before they are reported."""
        own, other = (safe_of.get(name) for name in KINDS)
        if safe is None or own is None or other is None or other <= safe or self.over:
            return None
        for times in (10.0, 10**0.5):
            rates = {"recurrent": min(own, safe), "other": min(other, times * safe)}
            if rates["other"] > 3 * safe and self.end(rates) <= min(best + RISE, END_BOUND):
                return rates["other"], rates["recurrent"]
        return None

    def end(self, rates: dict[str, float]) -> float:
        """The last held-out loss over the first; inf where that of a batch on the way was more than twice as high."""
        release_copies(self.model)
        trained = copy.deepcopy(self.model).eval()  # dropout off: the same loss is compared
        groups = _groups(trained)
        optimizer = adam([{"params": groups[name], "lr": rate} for name, rate in rates.items()])
        start, generator = self.samples.error(trained), torch.Generator().manual_seed(0)
        with torch.enable_grad():
            for _ in range(self.steps):
                trained.zero_grad(set_to_none=True)
                loss = self.samples.loss(trained, *self.samples.random_batch(generator))
                if not float(loss.detach()) <= LOSS_BOUND * start:
                    return math.inf
                loss.backward()
                optimizer.step()
        end = self.samples.error(trained)
        return end / start if start > 0 and math.isfinite(end) else math.inf


def adam(groups: list[Any], lr: float = USUAL_RATE) -> torch.optim.Adam:
    """Adam by torch's fused kernel where it has one for these weights: 129 million of them take 0.1 s per step and not 0.4.

    Args:
        groups: weights, or groups of them.
        lr: learning rate of groups without one.
    """
    weights = [p for group in groups for p in (group["params"] if isinstance(group, dict) else [group])]
    kinds = {(p.device.type, p.is_complex()) for p in weights}
    return torch.optim.Adam(groups, lr=lr, fused=True if kinds <= {("cpu", False), ("cuda", False)} else None)


def release_copies(model: nn.Module) -> None:
    """Frees copies of a large model that are no longer used: transformers' models hold themselves in cycles.

    Args:
        model: the model that was copied.
    """
    if count_weights(model) > LARGE:
        gc.collect()


def _gradient(model: nn.Module, samples: Samples, x: Tensor, y: Tensor) -> float:
    """The norm of the gradient, which is left in the weights."""
    model.zero_grad(set_to_none=True)
    with torch.enable_grad():
        samples.loss(model, x, y).backward()
    return _norm([p.grad for p in model.parameters() if p.grad is not None])


def _groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    *others, recurrent = (group["params"] for group in parameter_groups(model, lr=1.0))
    return {"recurrent": recurrent, "other": [p for group in others for p in group if p.requires_grad]}


def _ratio(weights: list[nn.Parameter]) -> float:
    gradient = _norm([p.grad for p in weights if p.grad is not None])
    return gradient / max(_norm([p.detach() for p in weights]), 1e-300)


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(t.detach().abs().double().square().sum()) for t in tensors))


def signs_of_training(model: nn.Module, samples: Samples | None) -> str | None:
    """Why a model counts as trained; None where it looks untrained. In doubt it counts as trained.

    By its error on data, which is below that of an answer that ignores the inputs; or by its weights, whose sizes are not
    those that its modules start from, or whose largest entries lie beyond the bounds that untrained ones are drawn between.

    Args:
        model: the user's model.
        samples: the user's data; None, or a stand-in, which tells nothing.
    """
    if samples is not None and samples.given:
        error, trivial = samples.error(runnable(copy.deepcopy(model))), samples.trivial_error()
        if error < LEARNED_SHARE * trivial:
            return f"{samples.unit} {error:.3g}, {trivial:.3g} without looking at the inputs"
    try:
        fresh = dict(_fresh(model).named_parameters())
    except (HoldfastError, *INPUT_ERRORS):
        return "it cannot be rebuilt to compare its weights"
    for name, weight in model.named_parameters():
        start = fresh[name]
        if weight.numel() < MIN_NUMBERS or torch.equal(weight, start):  # equal: nothing resets it
            continue
        sign = _moved(name, weight.detach().abs().double(), start.detach().abs().double())
        if sign is not None:
            return sign
    return None


def _moved(name: str, weight: Tensor, start: Tensor) -> str | None:
    """Why the sizes of these entries are not those of a new weight: their mean, or entries beyond its bounds."""
    sizes = [float(w.square().mean().sqrt()) for w in (weight, start)]
    peaks = [float(w.max()) for w in (weight, start)]
    if min(sizes) > 0 and abs(math.log(sizes[0] / sizes[1])) > MIN_LOG_RATIO + 3 / math.sqrt(weight.numel()):
        return f"{name} has {sizes[0] / sizes[1]:.2g} times the size of an untrained one"
    even = 0 < peaks[1] < EVEN_PEAK * sizes[1]
    # of n entries between bounds the largest is within 1/n of them: few numbers are no sign
    if even and weight.numel() >= MIN_EVEN_NUMBERS and peaks[0] > MAX_PEAK * peaks[1]:
        return f"{name} has entries up to {peaks[0]:.2g}, an untrained one up to {peaks[1]:.2g}"
    return None


def _fresh(model: nn.Module) -> nn.Module:
    """A copy with new weights, as far as its modules know how to make them."""
    config = getattr(model, "config", None)
    if hasattr(config, "to_dict"):  # transformers' models are built from it alone
        return type(model)(copy.deepcopy(config)).to(next(model.parameters()).dtype)
    fresh = copy.deepcopy(model)
    fresh.apply(lambda module: reset() if callable(reset := getattr(module, "reset_parameters", None)) else None)
    return fresh
