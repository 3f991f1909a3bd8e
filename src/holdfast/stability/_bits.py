"""bit_budget: how many bits the recurrent weights of a model need, from the radius that it survives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast._record import Record
from holdfast.errors import ArgumentError
from holdfast.figures import Axis, Figure, Line, Panel, Rule
from holdfast.memory.preserve import undisturbed
from holdfast.stability.perturbation import perturbation_error
from holdfast.stability.perturbation._balls import PerturbedWeight, WeightScope, select_weights
from holdfast.stability.perturbation._error import first_run, in_dtype_of
from holdfast.stability.perturbation._evaluate import MAX_BYTES, Data, LoopEvaluator, MetricName, get_metric
from holdfast.stability.perturbation._options import Ball, Search, SearchName


@dataclass(frozen=True, eq=False, repr=False)
class BitBudget(Record):
    """How coarse the grid may be that the weights are rounded to, by number of bits.

    Args:
        bits: numbers of bits that were tried, increasing.
        half_steps: half the spacing of the grid, in units of the weights: rounding changes no weight by more.
        worst: error of the worst perturbation found within that distance, E(half_step), in units of the outputs.
        rounded: error of the rounded weights, in units of the outputs.
        level: the error that is allowed.
        scope: paths of the weights.
    """

    bits: Float64[np.ndarray, " bits"]
    half_steps: Float64[np.ndarray, " bits"]
    worst: Float64[np.ndarray, " bits"]
    rounded: Float64[np.ndarray, " bits"]
    level: float
    scope: tuple[str, ...]

    @property
    def needed(self) -> int | None:
        """The fewest bits from which on no perturbation that was found breaks the level; None where all are too few."""
        return _fewest(self.bits, self.worst, self.level)

    @property
    def enough(self) -> int | None:
        """The fewest bits from which on the weights as rounded keep to the level; None where all are too few."""
        return _fewest(self.bits, self.rounded, self.level)

    def summary(self) -> str:
        """A line: bits by the stability radius, and by rounding."""
        most = f"more than {self.bits[-1]:g}"
        return (
            f"{self.needed or most} bits keep the error below {self.level:.3g} whatever the rounding, "
            f"{self.enough or most} by rounding to the nearest; {len(self.scope)} weights"
        )

    def figure(self) -> Figure:
        """Both errors over the number of bits, with the level."""
        layers = [
            Line("worst within half a step", self.bits, self.worst, markers=True),
            Line("as rounded", self.bits, self.rounded, markers=True),
            Rule("allowed", y=self.level),
        ]
        panel = Panel("Bits of the recurrent weights", Axis("bits per weight"), Axis("error", log=True), layers)
        return Figure("bits", f"Error against bits per weight: {self.summary()}.", [panel])


@checked
def bit_budget(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor | None = None,
    *,
    level: float = 0.05,
    bits: Sequence[int] = tuple(range(2, 17)),
    metric: MetricName = "sup",
    search: SearchName | Search = "adversarial",
    scope: WeightScope = "recurrent",
) -> BitBudget:
    """How many bits the recurrent weights need so that the model still does its work.

    With b bits each weight tensor is rounded to the 2^b - 1 multiples of s = max|w| / (2^(b-1) - 1) from -max|w| to
    max|w|, which moves no entry by more than s/2. So b bits are enough, whatever the way of rounding, where the
    stability radius in the norm max-abs (iat, Def. 3.5) is at least the largest s/2. That is checked by rounding.

    Args:
        model: any module that gives the same output for the same input; it is left as it was.
        inputs: what the model is run on.
        targets: what its outputs are compared with; None is its own outputs.
        level: the error that is allowed, as a share of the targets' norm.
        bits: numbers of bits to try, increasing, each at least 2.
        metric: norm of the error: "sup", "mean-square" or "sobolev".
        search: how the worst perturbation is searched: "adversarial", "random" or "modes", or a `Search` with its draws
            and seed.
        scope: weights that are rounded: "recurrent", "all", or names or prefixes of names. They are rounded as they are
            stored: before the parameterization.

    Returns:
        a BitBudget: for each of the `bits` the error of the worst perturbation found and of the rounded weights, (bits,), in
        units of the outputs; `needed` and `enough` are the fewest bits by one and by the other, None where all are too few.

    Raises:
        ArgumentError: bits that do not increase from 2 to 52, a level that is not above 0, or a model without recurrent
            weights in `scope`, or with all of them 0.
        UnknownNameError: a metric, a search or a weight that is not known.
        ShapeError: targets that are not shaped like the outputs.
        ModelError: a model that fails on the inputs, keeps a state between calls or draws noise.

    Example:
        >>> import torch, holdfast
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.RNN(1, 4, batch_first=True), torch.randn(2, 20, 1)
        >>> budget = holdfast.stability.bit_budget(model, x, bits=[2, 4, 8, 16])
        >>> budget.enough <= budget.needed  # rounding to the nearest is better than the worst
        True
    """
    tried = _tried(bits, level)
    inputs = in_dtype_of(model, inputs)
    with undisturbed(model), torch.no_grad():
        outputs = first_run(model, inputs)
        wanted = outputs if targets is None else in_dtype_of(model, targets)
        weights = select_weights(model, scope, "max-abs")
        largest = max(float(w.value.abs().max()) for w in weights)
    if not 0 < largest < math.inf:
        raise ArgumentError(f"model: the largest of its recurrent weights is {largest}; expected a finite one above 0")
    # one radius for all tensors: that of the coarsest grid, which belongs to the largest weight
    half_steps = np.array([0.5 * largest / _top(b) for b in tried])
    curve = perturbation_error(
        model, inputs, wanted, half_steps[::-1].copy(), metric=metric, norm=Ball("max-abs", scope), search=search
    )
    with undisturbed(model):
        # checked by rounding itself: the radius is a sufficient bound, the nearest grid point is better
        grids = {w.name: torch.stack([_rounded(w, b) for b in tried]) for w in weights}
        rounded = LoopEvaluator(model, Data(inputs, wanted, get_metric(metric, 1.0)), MAX_BYTES).errors(grids)
    assert curve.target_norm is not None
    return BitBudget(
        bits=np.array(tried, dtype=np.float64),
        half_steps=half_steps,
        worst=curve.errors[::-1].copy(),
        rounded=rounded.cpu().numpy(),
        level=level * curve.target_norm,
        scope=curve.scope,
    )


def _tried(bits: Sequence[int], level: float) -> list[int]:
    tried = list(bits)
    if not tried or min(tried) < 2 or max(tried) > 52 or sorted(set(tried)) != tried:
        raise ArgumentError(f"bits must be increasing numbers from 2 to 52, got {tried}")
    if not 0 < level < math.inf:
        raise ArgumentError(f"level must be above 0, got {level}")
    return tried


def _top(bits: int) -> int:
    """The largest whole number that a weight is stored as; its negative is the smallest."""
    return 2 ** (bits - 1) - 1


def _rounded(weight: PerturbedWeight, bits: int) -> Tensor:
    """The weight on its grid, in float64 on the way: 2^-24 of a step would be lost in float32."""
    step = float(weight.value.abs().max()) / _top(bits) or 1.0
    if weight.value.is_complex():
        parts = torch.view_as_real(weight.value)
        return torch.view_as_complex((parts.double() / step).round().mul(step).to(parts.dtype))
    return (weight.value.double() / step).round().mul(step).to(weight.value.dtype)


def _fewest(bits: np.ndarray, errors: np.ndarray, level: float) -> int | None:
    broken = np.flatnonzero(~(errors <= level))
    first = 0 if len(broken) == 0 else int(broken[-1]) + 1
    return int(bits[first]) if first < len(bits) else None
