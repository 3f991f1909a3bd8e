"""MemoryCurve: M(t) on a grid of times, with what was probed and how far it can be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Complex128, Float64

from holdfast._arguments import checked, checked_fields
from holdfast._codec import plain
from holdfast._record import Record
from holdfast.errors import ArgumentError, HoldfastError, ShapeError
from holdfast.figures import Axis, Figure, Layer, Line, Panel

CurveSource = Literal["heaviside", "impulse", "reversed", "repeated", "closed form", "given"]
Normalization = Literal["x", "x+1"]
CurveStatus = Literal["ok", "unsettled", "not finite"]
Bound = Literal["exact", "lower bound", "given"]


class ModelError(HoldfastError, ValueError):
    """A model cannot be measured as it was given; the text names what was seen and what to do."""


class NotRepeatableError(ModelError):
    """The same input gave other outputs: noise is on, or the model keeps a state between calls."""


class NotCausalError(ModelError):
    """Outputs before the probe moved because of it: the model reads its future."""


@checked_fields
@dataclass(frozen=True, eq=False, repr=False)
class MemoryCurve(Record):
    """M(t_k) for k = 0, 1, ... ("Inverse Approximation Theory", Def. 3.1, App. F, G; "StableSSM", Def. 2.2).

    Args:
        time: the times t_k, (times,), increasing: steps times `dt`.
        values: M(t_k), (times,), in units of output per input, >= 0, +inf where the model's output was not finite.
        probe: which input was used: "heaviside", "impulse", "reversed", "repeated", "closed form" (from the weights),
            or "given" for a curve made by hand.
        normalization: what M was divided by: "x" is |x|_inf, "x+1" is |x|_inf + 1.
        norm: order of the norm over several outputs.
        dt: duration of one step, in the units of `time`.
        maximiser: row k is the input x that reached the sup at t_k, (times, inputs).
        floor: size of the rounding errors in `values`, (times,): smaller values are noise.
        status: "ok"; "unsettled" where the response to the constant input before the probe still moved when the probe
            began; "not finite" where some outputs were NaN or infinite.
        notes: the status and other remarks in words.
        burn_in: steps that the model ran before the probe.
        zero_input: the output at rest, (outputs,).
        eigenvalues: those of one step dt of the recurrence, where the model is a layer that tells them.
        tried: number of inputs x that were tried.
        bound: "exact" where the values are the sup over x up to rounding, "lower bound" where they are the largest of those
            that were tried, "given" where nothing is known of it.
    """

    how_to_make: ClassVar[str] = " (of plain numbers: MemoryCurve(time=..., values=...))"

    time: Float64[np.ndarray, " time"]
    values: Float64[np.ndarray, " time"]
    probe: CurveSource = "given"
    normalization: Normalization = "x"
    norm: float = math.inf
    dt: float = 1.0
    maximiser: Float64[np.ndarray, "time inputs"] | None = None
    floor: Float64[np.ndarray, " time"] | None = None
    status: CurveStatus = "ok"
    notes: tuple[str, ...] = ()
    burn_in: int = 0
    zero_input: Float64[np.ndarray, " outputs"] | None = None
    eigenvalues: Float64[np.ndarray, " modes"] | Complex128[np.ndarray, " modes"] | None = None
    tried: int = 0
    bound: Bound = "given"

    def __post_init__(self) -> None:
        for name in ("time", "values", "maximiser", "floor", "zero_input"):
            value = getattr(self, name)
            if value is not None:
                # as numpy, so that a tensor, a list or an array may be given by hand
                object.__setattr__(self, name, np.array(_plain(value), dtype=np.float64))
        if self.time.ndim != 1 or self.time.shape != self.values.shape or len(self.time) == 0:
            raise ShapeError(
                f"expected as many times as values, at least one of each, got shapes {self.time.shape} and {self.values.shape}"
            )
        if not (np.isfinite(self.time).all() and (np.diff(self.time) > 0).all()):
            raise ArgumentError(
                "time must be finite and increase, got repeated, decreasing or infinite times; sort them"
            )
        if np.isnan(self.values).any() or (self.values < 0).any():
            raise ArgumentError(
                f"values must be >= 0 and not NaN (infinity where the model diverged), got a smallest of {self.values.min()}"
            )

    @property
    def jump(self) -> float:
        """M at the first time: the jump at t = 0, which holds what passes straight through the model."""
        return float(self.values[0])

    @checked
    def until(self, time: float) -> MemoryCurve:
        """The part of the curve up to `time`: every shorter horizon is already in a measured curve."""
        keep = self.time <= time
        if not keep.any():
            raise ArgumentError(f"time must be at least {self.time[0]:g}, where the curve begins, got {time:g}")
        maximiser = None if self.maximiser is None else self.maximiser[keep]
        floor = None if self.floor is None else self.floor[keep]
        return replace(self, time=self.time[keep], values=self.values[keep], maximiser=maximiser, floor=floor)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists, for JSON; infinite values become None."""
        names = ("probe", "normalization", "dt", "norm", "status", "notes", "burn_in", "tried", "bound")
        shown = {name: getattr(self, name) for name in (*names, "time", "values", "floor", "zero_input")}
        # the order of a norm is not a measured number: its infinity has a name
        shown["norm"] = "inf" if math.isinf(self.norm) else self.norm
        return plain(shown, exact=False)

    def summary(self) -> str:
        """A line: probe, times, first and last value, status, and whether the values are the sup or a bound of it."""
        sup = {"exact": ", exact sup", "lower bound": ", lower bound of the sup", "given": ""}[self.bound]
        return (
            f"{self.probe}, {len(self.time)} times to {self.time[-1]:g}, first {self.values[0]:.3g}, "
            f"last {self.values[-1]:.3g}, status {self.status!r}{sup}"
        )

    def figure(self) -> Figure:
        """M(t) over t, with its rounding floor."""
        layers: list[Layer] = [Line(f"M(t), {self.probe}", self.time, self.values)]
        if self.floor is not None and (self.floor > 0).any():
            layers.append(Line("rounding floor", self.time, self.floor, dash="dot", colour=6))
        caption = f"Memory function: {self.summary()}."
        return Figure("memory", caption, [Panel("Memory", Axis("t"), Axis("M(t)", log=True), layers)])


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
