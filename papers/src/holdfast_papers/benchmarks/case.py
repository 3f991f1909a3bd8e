"""What a benchmark is: a shape, inputs, our kernel, what it is measured against, the goal, and the truth to check by.

A contender is built from a case's inputs into a `Runner`, whose `step` does one training step (forward, and backward to
every input) and whose `read` turns what a step gave into named results. A contender that computes the same function as
ours is checked against the case's float64 truth; one that computes another (an LSTM, a bare GEMM) brings its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Inputs = Mapping[str, Tensor]
Results = Mapping[str, Tensor]
Kind = Literal["ours", "roofline", "torch", "peer"]
Sense = Literal["at least", "at most"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Runner:
    """A contender ready to run.

    Args:
        step: what is timed: one training step.
        read: turns what a step gave into outputs and gradients by name.
    """

    step: Callable[[], Any]
    read: Callable[[Any], Results]


@dataclass(frozen=True)
class Contender:
    """One way to compute a training step.

    Args:
        name: what it is called in the table.
        kind: "ours", "roofline", "torch" or "peer".
        build: makes a Runner of a case's inputs.
        modules: imports that it cannot do without.
        truth: given where it computes another function than ours; None is the case's own.
        checked_steps: time steps on which it is checked against its own truth; None is all.
        memory: bytes that it takes at its peak, roughly.
    """

    name: str
    kind: Kind
    build: Callable[[Inputs], Runner]
    modules: tuple[str, ...] = ()
    truth: Callable[[Inputs], Results] | None = None
    checked_steps: int | None = None
    memory: int = 0


@dataclass(frozen=True)
class Match:
    """Ours against one contender.

    Args:
        against: the contender.
        row: the row of the speed table that it belongs to.
        goal: the ratio that is to be reached, if any.
        sense: "at least": the ratio is (its time) / (our time) and the goal a lower bound; "at most": it is (our time)
            / (its time) and the goal an upper bound.
    """

    against: Contender
    row: str
    goal: float | None = None
    sense: Sense = "at least"


@dataclass(frozen=True)
class Case:
    """One shape of one kernel, with all that it is measured against.

    Args:
        group: the kernel, or what is measured.
        shape: its sizes (B, T, D, N), or (B, T, channels) of a raw scan.
        inputs: makes the inputs.
        truth: computes their results in float64.
        ours: our kernel.
        matches: what it is measured against.
        memory: bytes that the truth takes, roughly.
        beside: what goes on while it is timed.
    """

    group: str
    shape: Shape
    inputs: Callable[[], Inputs]
    truth: Callable[[Inputs], Results]
    ours: Contender
    matches: tuple[Match, ...]
    memory: int = 0
    beside: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def name(self) -> str:
        """As in `--only`: the group, then the sizes (B, T, D, N), or (B, T, channels) of a raw scan."""
        return f"{self.group}-{'x'.join(str(n) for n in self.shape)}"

    @property
    def tolerance(self) -> float:
        """How far a float32 result may be from the float64 truth, as a share of the truth's largest entry.

        Roundings of random sign grow like the root of the number of terms in the longest sum: the gradient of a weight
        (batch times time terms), or a product over the channels where these are more, as in one token of a Mamba (2.0e-6 to
        4.0e-6 over four draws, transformers' own 2.1e-6 to 2.9e-6). Four units in the last place are about ten times what
        contenders show. A fault in an algorithm or a gradient gives errors of 1e-2 and more.
        """
        batch, time, *sizes = self.shape
        return 4 * 2.0**-23 * math.sqrt(max(batch * time, *sizes))


@dataclass(frozen=True)
class OwnKernel:
    """One of our kernels, for the measurements that compare it with itself: growth of its time, and its memory.

    Args:
        name: of the kernel.
        dims: one letter for each size of a shape.
        make_inputs: makes the inputs of a shape.
        ours: makes a Runner of them.
        base: the shape that sizes are varied around.
        sweeps: the values of each letter of `dims`, the others staying as in `base`.
        bounds: for each letter the exponent that its arithmetic has at most.
        memory_shape: the shape at which peak memory is measured.
        stated_bytes: the memory that is promised for a shape.
        formula: what `stated_bytes` counts, in words.
    """

    name: str
    dims: str
    make_inputs: Callable[[Shape], Inputs]
    ours: Callable[[Inputs], Runner]
    base: Shape
    sweeps: Mapping[str, tuple[int, ...]]
    bounds: Mapping[str, float]
    memory_shape: Shape
    stated_bytes: Callable[[Shape], int]
    formula: str
