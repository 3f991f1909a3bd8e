"""receptive_field: which past inputs the gradient of an output reaches, and how strongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from holdfast._arguments import as_generator, checked, positive
from holdfast._record import Record
from holdfast.errors import ArgumentError, ShapeError
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Rule
from holdfast.memory._checks import prepare
from holdfast.memory._curve import ModelError
from holdfast.memory._options import Run


@dataclass(frozen=True, eq=False, repr=False)
class ReceptiveField(Record):
    """How strongly an output depends on the input at each distance, averaged over sequences.

    Args:
        offsets: steps from the input to the output, increasing: 0 is the same step, negative ones are inputs after it.
        influence: size of d y_t / d x_(t - offset): the root mean square over rows of its Frobenius norm.
        rows: number of sequences.
    """

    offsets: Float64[np.ndarray, " offsets"]
    influence: Float64[np.ndarray, " offsets"]
    rows: int

    @checked
    def size(self, share: float = 0.95) -> int:
        """The fewest steps around the output, on both sides alike, that hold `share` of all influence.

        Args:
            share: between 0 and 1.
        """
        if not 0 < share <= 1:
            raise ArgumentError(f"share must lie in (0, 1], got {share}")
        total = float(self.influence.sum())
        order = np.argsort(np.abs(self.offsets), kind="stable")
        held = np.cumsum(self.influence[order])
        # half an eps of slack for each term that was added
        enough = np.flatnonzero(held >= share * total * (1 - 1e-12))
        return int(np.abs(self.offsets[order][enough[0]])) + 1 if total > 0 else 0

    def summary(self) -> str:
        """A line: how many of the steps that were looked at hold half, and nearly all, of the influence."""
        if not self.influence.sum() > 0:
            return f"no input within {len(self.offsets)} steps moves the output"
        whole = int(np.abs(self.offsets).max()) + 1
        cut = ", at the end of what was looked at: take a longer horizon" if self.size(0.95) > 0.9 * whole else ""
        return f"half of the influence lies within {self.size(0.5)} steps, 95% within {self.size(0.95)} of {whole}{cut}"

    def figure(self) -> Figure:
        """Influence over distance, with the step that holds 95%."""
        layers: list[Layer] = [Line("influence", self.offsets, self.influence)]
        if self.influence.sum() > 0:
            layers.append(Rule("95%", x=float(self.size(0.95) - 1)))
        axes = Axis("steps before the output"), Axis("|dy/dx|", log=True)
        return Figure(
            "receptive", f"Effective receptive field: {self.summary()}.", [Panel("Receptive field", *axes, layers)]
        )


@checked
def receptive_field(
    model: Callable[..., Any],
    *,
    input_size: int = 1,
    horizon: int = 200,
    ahead: int = 0,
    inputs: Float[Tensor, "rows time features"] | int = 16,
    double: bool = False,
    run: Run | None = None,
    seed: int | torch.Generator = 0,
) -> ReceptiveField:
    """The effective receptive field of a sequence model: how far back the gradient of its output reaches.

    influence(k) = root of the mean over inputs x and random signs v of |v' d y_t / d x_(t-k)|^2, which is the mean
    squared Frobenius norm of that Jacobian (Luo et al. 2016, "Understanding the effective receptive field"). What
    `memory_function` shows for the worst input, this shows for typical ones, and it is what training sees: an input
    outside of it has no gradient to learn from.

    Args:
        model: as `memory_function` takes it; it may look ahead.
        input_size: number of input features.
        horizon: largest distance k that is looked at, in steps.
        ahead: steps after the output that are looked at too, for models that are not causal.
        inputs: the sequences to run it on, (rows, horizon + 1 + ahead, input_size), or the number of random ones, which
            are standard normal.
        double: look at a float64 copy of an nn.Module.
        run: how the model is called (layout, mode, dtype, device); None is `Run()`.
        seed: number or torch.Generator of random inputs and signs.

    Returns:
        a ReceptiveField: `influence`, (ahead + horizon + 1,), in units of output per input, at the `offsets` -ahead to
        horizon in steps; `size(share)` is the number of steps that hold a share of it.

    Raises:
        ArgumentError: an `ahead` below 0, or a horizon or number of sequences below 1.
        ShapeError: inputs that are not (rows, horizon + 1 + ahead, input_size).
        ModelError: a model that cannot be measured, or a gradient that is missing or not finite.

    Example:
        >>> import torch
        >>> from holdfast.memory import receptive_field
        >>> delay = lambda x: torch.nn.functional.pad(x, (0, 0, 2, 0))[:, : x.shape[1]]  # by 2 steps
        >>> receptive_field(delay, horizon=4).influence.tolist()
        [0.0, 0.0, 1.0, 0.0, 0.0]
    """
    positive(horizon=horizon, inputs=inputs if isinstance(inputs, int) else None)
    if ahead < 0:
        raise ArgumentError(f"ahead must not be negative, got {ahead}")
    steps = horizon + 1 + ahead
    if isinstance(inputs, Tensor) and (tuple(inputs.shape[1:]) != (steps, input_size) or len(inputs) == 0):
        raise ShapeError(f"inputs must be (rows, {steps}, {input_size}), got {tuple(inputs.shape)}")
    run = run or Run()
    generator = as_generator(seed)
    with run.undisturbed(model):
        subject = run.subject(model, input_size, double=double)
        with torch.no_grad():
            prepare(subject, generator, causal=False)
        given = subject.normal(inputs, steps, generator) if isinstance(inputs, int) else inputs.detach()
        x = given.to(subject.device, subject.dtype, copy=True).requires_grad_()
        with torch.enable_grad():
            # one output with `horizon` inputs before it and `ahead` after it: all distances in one backward pass
            y = subject(x)[:, horizon]
            # E |v' J|^2 = |J|_F^2 for random signs v: one backward pass instead of one for each output
            signs = 2 * torch.randint(0, 2, y.shape, generator=generator) - 1
            if not y.requires_grad:
                raise ModelError(
                    "expected outputs with a gradient with respect to the inputs, got none; remove torch.no_grad and detach() "
                    "from the model's forward"
                )
            (slopes,) = torch.autograd.grad((y * signs.to(y)).sum(), x)
    influence = slopes.double().square().sum(-1).mean(0).sqrt().cpu().numpy()
    if not np.isfinite(influence).all():
        raise ModelError(
            "expected a finite gradient, got NaN or infinity on these inputs; pass smaller ones as inputs="
        )
    return ReceptiveField(np.arange(-ahead, horizon + 1.0), influence[::-1].copy(), len(x))
