"""What a benchmark is: a shape, inputs, our kernel, what it is measured against, the goal, and the truth to check by.

A contender is built from a case's inputs into a `Runner`, whose `step` does one training step (forward, and backward to
every input) and whose `read` turns what a step gave into named results. A contender that computes the same function as
ours is checked against the case's float64 truth; one that computes another (an LSTM, a bare GEMM) brings its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
    """A contender ready to run: `step` is what is timed, `read` names its outputs and gradients."""

    step: Callable[[], Any]
    read: Callable[[Any], Results]


@dataclass(frozen=True)
class Contender:
    """One way to compute a training step.

    `modules` are the imports that it cannot do without, `memory` the bytes that it takes at its peak, roughly. `truth`
    is given where it computes another function than ours; it is then checked on the first `checked_steps` time steps.
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
    """Ours against one contender: the row of the speed table that it belongs to, and the goal there, if any.

    The ratio is (its time) / (our time) and the goal a lower bound; with sense "at most" it is (our time) / (its time)
    and the goal an upper bound.
    """

    against: Contender
    row: str
    goal: float | None = None
    sense: Sense = "at least"


@dataclass(frozen=True)
class Case:
    """One shape of one kernel, with all that it is measured against; `memory` is what the truth takes, roughly."""

    group: str
    shape: Shape
    inputs: Callable[[], Inputs]
    truth: Callable[[Inputs], Results]
    ours: Contender
    matches: tuple[Match, ...]
    memory: int = 0

    @property
    def name(self) -> str:
        """As in `--only`: the group, then the sizes (B, T, D, N), or (B, T, channels) of a raw scan."""
        return f"{self.group}-{'x'.join(str(n) for n in self.shape)}"

    @property
    def tolerance(self) -> float:
        """How far a float32 result may be from the float64 truth, as a share of the truth's largest entry.

        Roundings of random sign grow like the root of the number of terms in the longest sum, the gradient of a weight
        (batch times time terms); four units in the last place are about ten times what contenders show. A fault in an
        algorithm or a gradient gives errors of 1e-2 and more.
        """
        batch, time, *_ = self.shape
        return 4 * 2.0**-23 * math.sqrt(batch * time)


@dataclass(frozen=True)
class OwnKernel:
    """One of our kernels, for the measurements that compare it with itself: growth of its time, and its memory.

    `sweeps` gives sizes for each letter of `dims`, the others staying as in `base`; `bounds` the exponents that its
    arithmetic has at most. `formula` says in words what `stated_bytes` counts.
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
