"""DataMemory: what becomes of one exchanged input of a real sequence, at many places, with medians and quantiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64

from holdfast._arguments import checked
from holdfast._record import Record
from holdfast.errors import ArgumentError
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Rule
from holdfast.memory._curve import MemoryCurve

LEFT_SHARE = 0.01  # of the largest change: below that an input counts as forgotten
BAND = (0.1, 0.9)  # quantiles over places that are reported beside the median
SHOWN_SHARE = 1e-4  # at the foot of the figure


@dataclass(frozen=True, eq=False, repr=False)
class DataMemory(Record):
    """How long a model keeps an input of its own data: one input was exchanged for another, at each of several places.

    Args:
        lags: steps from the exchanged input to the output that is compared, (lags,), increasing.
        sizes: row p: largest change of an output at each lag, for the exchange at place p. Of a model with one answer a
            sequence, row p is a sequence, and entry k the change of its answer where the input k steps before the end is
            exchanged.
        floors: size of rounding errors in each row of `sizes`.
        places: row and time of each exchanged input; of one answer per sequence, row and last time.
        states: the same as `sizes` for the hidden states of torch's recurrent modules inside; None where there are none.
        one_answer: whether the model gives one answer per sequence.
        causal: whether no output before the exchanged input moved.
        notes: remarks, in words.
    """

    lags: Float64[np.ndarray, " lags"]
    sizes: Float64[np.ndarray, "places lags"]
    floors: Float64[np.ndarray, " places"]
    places: Int64[np.ndarray, "places 2"]
    states: Float64[np.ndarray, "places lags"] | None = None
    one_answer: bool = False
    causal: bool = True
    notes: tuple[str, ...] = ()

    @cached_property
    def shares(self) -> Float64[np.ndarray, "seen lags"]:
        """`sizes` over the largest of each row; only rows in which something moved beyond rounding."""
        return self._shares_of(self.sizes)

    @cached_property
    def steps_of_places(self) -> Float64[np.ndarray, " seen"]:
        """Steps after which less than 1% of the largest change is left, for each place; inf where more is left at the end."""
        floors = self.floors[self._seen] / self.sizes[self._seen].max(1)
        return self._ends(self.shares, np.maximum(LEFT_SHARE, floors))

    @property
    def steps(self) -> float:
        """The median over places of the steps until 1% is left; inf where half of them keep more to the end, NaN of none."""
        return self.quantile(0.5)

    @property
    def state_steps(self) -> float | None:
        """The same for the hidden states; None where they cannot be seen."""
        if self.states is None:
            return None
        shares = self._shares_of(self.states)
        return _quantile(self._ends(shares, np.full(len(shares), LEFT_SHARE)), 0.5)

    @checked
    def quantile(self, share: float) -> float:
        """The steps until 1% is left at this share of the places, 0.5 being the median; inf where they are not reached.

        Args:
            share: between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise ArgumentError(f"share must lie in [0, 1], got {share}")
        return _quantile(self.steps_of_places, share)

    @property
    def left(self) -> float:
        """The median over places of the share that is left at the last lag."""
        return float(np.median(self.shares[:, -1])) if len(self.shares) else math.nan

    def curve(self) -> MemoryCurve:
        """The median size of the change at each lag, as a curve that `fit_decay` takes."""
        rows = self.sizes[self._seen] if self._seen.any() else self.sizes
        floor = float(np.median(self.floors))
        return MemoryCurve(time=self.lags, values=np.median(rows, axis=0), floor=np.full(len(self.lags), floor))

    def summary(self) -> str:
        """A line: the median of the steps until 1% is left, and how far places differ."""
        if not len(self.shares):
            return f"no exchange of an input at {len(self.sizes)} places moved an output beyond rounding"
        low, high = (self._told(self.quantile(share)) for share in BAND)
        where = "sequences" if self.one_answer else "places"
        return (
            f"{self._told(self.steps)} steps until 1% of the effect of an exchanged input is left (median over "
            f"{len(self.shares)} {where}; 80% of them: {low} to {high})"
        )

    def figure(self) -> Figure:
        """The share of the change that is left over the steps since, its median and the band of 80% of the places."""
        layers: list[Layer] = []
        if len(self.shares):
            low, middle, high = (np.quantile(self.shares, q, axis=0) for q in (BAND[0], 0.5, BAND[1]))
            layers.append(Line("median of the places, with 80% of them", self.lags, middle, low, high))
        if self.states is not None and len(shares := self._shares_of(self.states)):
            layers.append(Line("of the hidden state", self.lags, np.median(shares, axis=0), dash="dash"))
        layers.append(Rule("1%", y=LEFT_SHARE))
        label = "steps before the end" if self.one_answer else "steps since"
        axes = Axis(label), Axis("share left", log=True, limits=(SHOWN_SHARE, 2.0))
        return Figure("memory-on-data", f"Memory on data: {self.summary()}.", [Panel("On data", *axes, layers)])

    @cached_property
    def _seen(self) -> np.ndarray:
        """The rows in which something moved beyond rounding."""
        return np.isfinite(self.sizes).all(1) & (self.sizes.max(1) > self.floors)

    def _shares_of(self, sizes: np.ndarray) -> np.ndarray:
        rows = sizes[self._seen]
        return rows / np.maximum(rows.max(1, keepdims=True), np.finfo(float).tiny)

    def _ends(self, shares: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """The first lag behind the last that lies above the level; inf where the last of all does."""
        above = shares > levels[:, None]
        last = above.shape[1] - 1 - above[:, ::-1].argmax(1)
        ends = np.append(self.lags, math.inf)[last + 1]
        return np.where(above.any(1), ends, self.lags[0])

    def _told(self, steps: float) -> str:
        return f"more than {self.lags[-1]:.0f}" if math.isinf(steps) else f"{steps:.0f}"


def _quantile(values: np.ndarray, share: float) -> float:
    """One of the values, so that infinite ones are no trouble; NaN of none."""
    return float(np.quantile(values, share, method="inverted_cdf")) if len(values) else math.nan
