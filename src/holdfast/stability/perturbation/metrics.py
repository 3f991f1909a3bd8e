"""Norms of an error on data: sup, mean square, Sobolev; added up over parts of the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.errors import unknown_name

MetricName = Literal["sup", "mean-square", "sobolev"]
Errors = Float[Tensor, "draws batch time outputs"]
# largest and smallest, or sums: one row of numbers for each perturbation
Partial = Float[Tensor, "draws numbers"]


class AbstractMetric(ABC):
    """A norm of errors (draws, batch, time, outputs): `partial` of parts of the batch, `join`ed, then `finish`ed."""

    name: ClassVar[str]

    @abstractmethod
    def partial(self, error: Errors) -> Partial:
        """What this part of the batch adds."""

    @abstractmethod
    def join(self, a: Partial, b: Partial) -> Partial:
        """Two parts as one."""

    @abstractmethod
    def finish(self, joined: Partial, count: int) -> Float[Tensor, " draws"]:
        """The norm, with `count` numbers of error for each perturbation."""

    def of(self, error: Errors) -> Float[Tensor, " draws"]:
        """The norm of a whole error."""
        return self.finish(self.partial(error), error[0].numel())


class Sup(AbstractMetric):
    """The largest |error| over sequences, times and outputs: an empirical sup norm."""

    name = "sup"

    def partial(self, error: Errors) -> Partial:
        flat = error.flatten(1)
        # without a copy of |error|; NaN goes through both
        return torch.maximum(flat.amax(-1, keepdim=True), -flat.amin(-1, keepdim=True))

    def join(self, a: Partial, b: Partial) -> Partial:
        return torch.maximum(a, b)

    def finish(self, joined: Partial, count: int) -> Float[Tensor, " draws"]:
        return joined.squeeze(-1)


class MeanSquare(AbstractMetric):
    """The mean of error^2 over sequences, times and outputs."""

    name = "mean-square"

    def partial(self, error: Errors) -> Partial:
        return error.flatten(1).square().sum(-1, keepdim=True)

    def join(self, a: Partial, b: Partial) -> Partial:
        return a + b

    def finish(self, joined: Partial, count: int) -> Float[Tensor, " draws"]:
        return joined.squeeze(-1) / count


class Sobolev(AbstractMetric):
    """sup_t (sup |error_t| + sup |d error_t / dt|), the sups over sequences and outputs (iat, eq. 11).

    d/dt is the forward difference over dt; the last time takes the difference before it.
    """

    name = "sobolev"

    def __init__(self, dt: float) -> None:
        self.dt = dt

    def partial(self, error: Errors) -> Partial:
        size = error.abs().amax((1, 3))
        slope = (error.diff(dim=2) / self.dt).abs().amax((1, 3))
        # one step alone has no difference to look at
        slope = torch.cat([slope, slope[:, -1:]], dim=-1) if slope.shape[1] else torch.zeros_like(size)
        return torch.cat([size, slope], dim=-1)

    def join(self, a: Partial, b: Partial) -> Partial:
        return torch.maximum(a, b)

    def finish(self, joined: Partial, count: int) -> Float[Tensor, " draws"]:
        value, slope = joined.chunk(2, dim=-1)
        return (value + slope).amax(-1)


METRICS = ("sup", "mean-square", "sobolev")


def get_metric(name: str, dt: float) -> AbstractMetric:
    """The metric called `name`; dt is the time between two steps of the data."""
    if name == "sobolev":
        return Sobolev(dt)
    if name == "sup":
        return Sup()
    if name == "mean-square":
        return MeanSquare()
    raise unknown_name("metric", name, METRICS)
