"""The tasks of rates-rule and rates-choice: seen ones, on which the constants of the rule were chosen, and held-out ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Draw = Callable[[int, int], tuple[Tensor, Tensor]]  # seed of the draw, count -> inputs (count, time, features), targets
TEST = 10**9  # draws from here on are for the test


@dataclass(frozen=True)
class LinearTask:
    """A kernel that a linear diagonal layer learns from windows of white noise.

    Args:
        rho: its kernel, of norm 1.
        memory: T, the steps that it has to remember.
        modes: of the layer.
        oscillating: whether modes are complex.
    """

    rho: Tensor
    memory: float
    modes: int = 16
    oscillating: bool = False


@dataclass(frozen=True)
class SequenceTask:
    """A sequence with an answer at its last step, for a stack.

    Args:
        draw: makes samples.
        memory: T, the steps that it has to remember.
        sizes: number of inputs and of outputs.
        classes: whether the answer is a class.
    """

    draw: Draw
    memory: float
    sizes: tuple[int, int]
    classes: bool


LINEAR_SEEN = ("scales", "power-0.7", "power-1.1", "slow")
STACK_SEEN = ("delay-30", "adding-50", "recall-16", "digits")
LINEAR_HELD_OUT = ("delay-100", "teacher")
STACK_HELD_OUT = ("adding-200", "recall-64", "pixels")
SEEN, HELD_OUT = LINEAR_SEEN + STACK_SEEN, LINEAR_HELD_OUT + STACK_HELD_OUT
SCALES = (3, 10, 30, 100)  # time constants, with an equal share of the variance each
SEEN_MEMORY, LAGS_PER_MEMORY = 100, 4
CLASSES = 10


@functools.cache
def task(name: str) -> LinearTask | SequenceTask:
    """A task by its name."""
    if name in LINEAR_SEEN:
        return LinearTask(_unit(_seen_kernel(name)), SEEN_MEMORY)
    if name == "delay-100":
        rho = torch.zeros(256)
        rho[100] = 1.0
        return LinearTask(rho, 100, modes=64, oscillating=True)
    if name == "teacher":
        from holdfast_papers.experiments.rates._teacher import teacher_kernel

        rho, memory = teacher_kernel()
        return LinearTask(_unit(rho), memory, modes=32, oscillating=True)
    if name == "delay-30":
        return SequenceTask(_delayed(30), 30, (1, 1), False)
    if name in ("adding-50", "adding-200"):
        length = int(name.removeprefix("adding-"))
        return SequenceTask(_adding(length), length, (2, 1), False)
    if name in ("recall-16", "recall-64"):
        length = int(name[-2:])
        return SequenceTask(_recall(length), length, (CLASSES, CLASSES), True)
    if name == "digits":
        return SequenceTask(_images("digits"), 64, (1, CLASSES), True)
    assert name == "pixels", name
    return SequenceTask(_images("mnist"), 196, (1, CLASSES), True)


def _unit(rho: Tensor) -> Tensor:
    return (rho / rho.norm()).float()


def _seen_kernel(name: str) -> Tensor:
    t = torch.arange(LAGS_PER_MEMORY * SEEN_MEMORY, dtype=torch.float64)
    if name == "scales":
        return sum(math.sqrt(-math.expm1(-2 / tau)) * torch.exp(-t / tau) for tau in SCALES)  # type: ignore[return-value]
    if name == "slow":
        return torch.exp(-t / SEEN_MEMORY)
    return (1 + t) ** -float(name.removeprefix("power-"))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _delayed(delay: int) -> Draw:
    def draw(seed: int, count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 2 * delay, 1, generator=_generator(seed))
        return x, x[:, -1 - delay]

    return draw


def _adding(length: int) -> Draw:
    """Numbers in [0, 1] and two marks, one in each half; the answer is the sum of the marked numbers less its mean."""

    def draw(seed: int, count: int) -> tuple[Tensor, Tensor]:
        generator = _generator(seed)
        values = torch.rand(count, length, generator=generator)
        marks = torch.zeros(count, length)
        half = length // 2
        for first in (0, half):
            at = first + torch.randint(half, (count, 1), generator=generator)
            marks.scatter_(1, at, 1.0)
        return torch.stack((values, marks), -1), (values * marks).sum(1, keepdim=True) - 1.0

    return draw


def _recall(length: int) -> Draw:
    """Pairs of key and value, then a key; holdfast.data.RecallTask, the answer alone."""
    from holdfast.data._recall import RecallTask

    source = RecallTask(length, CLASSES, valid=0)

    def draw(seed: int, count: int) -> tuple[Tensor, Tensor]:
        first = 0 if seed >= TEST else seed * count
        batch = source.batch("test" if seed >= TEST else "train", first + torch.arange(count))
        return functional.one_hot(batch.inputs, CLASSES).float(), batch.targets[:, -1]

    return draw


def _images(name: str) -> Draw:
    """Pixels one by one, of zero mean and unit variance; the last 1,000 images are for the test (300 of the digits)."""
    images, labels, kept = pixels(name)

    def draw(seed: int, count: int) -> tuple[Tensor, Tensor]:
        generator = _generator(seed)
        if seed >= TEST:
            at = len(images) - kept + torch.arange(min(count, kept))
        else:
            at = torch.randint(len(images) - kept, (count,), generator=generator)
        return images[at].unsqueeze(-1), labels[at]

    return draw


def pixels(name: str) -> tuple[Tensor, Tensor, int]:
    """Images as sequences of zero mean and unit variance, their classes, and how many at the end are for the test."""
    if name == "digits":
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]

        found = load_digits()
        images, labels, kept = found.data, found.target, 300
    else:
        from holdfast.data import mnist

        found = mnist("train", download=False)
        coarse = functional.avg_pool2d(found.images.float().unsqueeze(1), 2)
        images, labels, kept = coarse.flatten(1).numpy(), found.labels.numpy(), 1000
    images = (images - images.mean()) / images.std()
    return torch.from_numpy(np.ascontiguousarray(images)).float(), torch.from_numpy(labels).long(), kept
