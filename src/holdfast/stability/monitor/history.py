"""GradientHistory: what a monitor recorded along training."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Int64

from holdfast._record import Record
from holdfast.figures import Axis, Figure, Line, Panel

FEW = 20  # records of a line whose points are marked


@dataclass(frozen=True, eq=False, repr=False)
class GradientHistory(Record):
    """What was recorded, one row for each record and one column for each recurrent weight.

    Args:
        paths: names of the weights.
        levels: which quantiles `quantiles` holds, in [0, 1].
        steps: number of the optimizer step of each record.
        minimum: smallest |dLoss/dw| / |w| over the entries of a weight (0 where both are 0).
        maximum: largest of the same.
        quantiles: quantiles of the same.
        norm_ratio: |dLoss/dw|_2 / |w|_2.
        margin: distance to the stability boundary of one step, dt included, as `certify` has it: for torch's RNN, GRU and
            LSTM from the Jacobian of the step where the state rests on zero input. NaN where it was not computed or has
            no meaning (phases, step sizes).
        continuous_margin: the same per unit of time, -max Re lam; NaN in discrete time too.
        loss: of each record; NaN where it was not recorded.
        gradient_norm: |dLoss/dw|_2 of all weights together.
        largest_state: largest absolute value in outputs and states of the recurrences; NaN before hooks were there.
        step_size: 0.99 quantile of the step sizes of selective recurrences; NaN where they were not looked at.
    """

    paths: tuple[str, ...]
    levels: tuple[float, ...]
    steps: Int64[np.ndarray, " records"]
    minimum: Float64[np.ndarray, "records weights"]
    maximum: Float64[np.ndarray, "records weights"]
    quantiles: Float64[np.ndarray, "records weights levels"]
    norm_ratio: Float64[np.ndarray, "records weights"]
    margin: Float64[np.ndarray, "records weights"]
    continuous_margin: Float64[np.ndarray, "records weights"]
    loss: Float64[np.ndarray, " records"] = field(default_factory=lambda: np.empty(0))
    gradient_norm: Float64[np.ndarray, " records"] = field(default_factory=lambda: np.empty(0))
    largest_state: Float64[np.ndarray, " records"] = field(default_factory=lambda: np.empty(0))
    step_size: Float64[np.ndarray, " records"] = field(default_factory=lambda: np.empty(0))

    def summary(self) -> str:
        """A line: how much was recorded, and the largest gradient over weight with the smallest margin."""
        text = f"{len(self.steps)} records of {len(self.paths)} recurrent weights"
        ratios, margins = self.norm_ratio[~np.isnan(self.norm_ratio)], self.margin[~np.isnan(self.margin)]
        text += f", gradient over weight up to {ratios.max():.3g}" if len(ratios) else ""
        return text + (f", smallest margin {margins.min():.3g}" if len(margins) else "")

    def figure(self) -> Figure:
        """|gradient| over |weight| along the steps, one line per weight; beside it the margins, where they are known."""
        panels = [self._panel("Gradient over weight", "|gradient| / |weight|", self.norm_ratio, log=True)]
        if not np.isnan(self.margin).all():
            panels.append(self._panel("Distance to the stability boundary", "margin", self.margin, log=False))
        return Figure("gradients", f"Along training: {self.summary()}.", panels)

    def _panel(self, title: str, label: str, values: np.ndarray, *, log: bool) -> Panel:
        layers = []
        for k, path in enumerate(self.paths):
            known = ~np.isnan(values[:, k])  # margins are taken at some of the records: no gap is left between two
            if known.any():
                layers.append(Line(path, self.steps[known], values[known, k], colour=k, markers=known.sum() < FEW))
        return Panel(title, Axis("step", limits=self._span()), Axis(label, log=log), layers)

    def _span(self) -> tuple[float, float] | None:
        """Both panels from the first to the last record, with room for a mark at either end."""
        if len(self.steps) < 2:
            return None
        first, last = float(self.steps[0]), float(self.steps[-1])
        return first - 0.03 * (last - first), last + 0.03 * (last - first)
