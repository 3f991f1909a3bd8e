"""Errors of many perturbed copies of a model at once: norms of an error, and two ways that take any module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from holdfast.errors import ShapeError, unknown_name
from holdfast.memory._subject import first_output

MetricName = Literal["sup", "mean-square", "sobolev"]
Errors = Float[Tensor, "draws batch time outputs"]
# largest and smallest, or sums: one row of numbers for each perturbation
Partial = Float[Tensor, "draws numbers"]
Stacked = Mapping[str, Tensor]
MAX_BYTES = 512e6  # bytes of intermediate results and perturbed weights held at a time, unless said otherwise


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


@dataclass(frozen=True, eq=False)
class Data:
    """Inputs and targets with the norm of the error between them; `weight` multiplies the error of each sequence."""

    inputs: Tensor
    targets: Tensor
    metric: AbstractMetric
    weight: Float[Tensor, " batch"] | None = None
    time_first: bool = False

    def error(self, outputs: Tensor) -> Errors:
        """outputs - targets of each draw, (draws, *shape of the targets), as (draws, batch, time, outputs)."""
        # metrics read (draws, batch, time, outputs); a model may give fewer axes
        error = outputs - self.targets
        if self.time_first and error.ndim > 2:
            error = error.transpose(1, 2)
        while error.ndim < 4:
            error = error.unsqueeze(-1)
        error = error.flatten(3)
        return error if self.weight is None else error * self.weight.to(error).reshape(1, -1, 1, 1)

    def target_norm(self) -> float:
        """The norm of the targets: the error of a model that gives 0."""
        return float(self.metric.of(self.error(torch.zeros_like(self.targets).unsqueeze(0))))


class AbstractEvaluator(ABC):
    """Errors of perturbed weights, in parts that stay below `limit` bytes of intermediate results."""

    how: ClassVar[str]

    def __init__(self, limit: float) -> None:
        self.limit = limit

    @property
    @abstractmethod
    def bytes_each(self) -> float:
        """Intermediate results of one draw, roughly, without gradients."""

    @property
    def bytes_with_gradient(self) -> float:
        """The same with gradients: autograd keeps about four times as much."""
        return 4 * self.bytes_each

    @abstractmethod
    def _errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        """The errors of a part."""

    def errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        """The error of each draw, in float64; +inf where it is not finite."""
        with torch.no_grad():
            parts = [self._errors(part) for part in self._parts(stacked, self.bytes_each)]
            return _infinite(torch.cat(parts).double())

    def errors_and_gradients(self, stacked: Stacked) -> tuple[Float[Tensor, " draws"], dict[str, Tensor]]:
        """Errors, and their gradients in the weights; a draw whose error is not finite has gradient 0."""
        errors, gradients = [], []
        for part in self._parts(stacked, self.bytes_with_gradient):
            with torch.enable_grad():
                leaves = {name: value.detach().requires_grad_() for name, value in part.items()}
                part_errors = self._errors(leaves)
                # a diverged draw has a NaN gradient, and would give it to all others of the sum
                finite = torch.where(torch.isfinite(part_errors), part_errors, torch.zeros_like(part_errors))
                grads = torch.autograd.grad(finite.sum(), list(leaves.values()), allow_unused=True)
            errors.append(part_errors.detach())
            # a weight that the output does not depend on has no gradient
            filled = [torch.zeros_like(w) if g is None else g for g, w in zip(grads, leaves.values(), strict=True)]
            gradients.append([torch.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0) for g in filled])
        joined = {name: torch.cat([g[i] for g in gradients]) for i, name in enumerate(stacked)}
        return _infinite(torch.cat(errors).double()), joined

    def _parts(self, stacked: Stacked, each: float) -> list[dict[str, Tensor]]:
        # at least one draw, even where it alone is above the limit
        size = max(1, int(self.limit // max(each, 1.0)))
        split = {name: value.split(size) for name, value in stacked.items()}
        count = len(next(iter(split.values())))
        return [{name: pieces[i] for name, pieces in split.items()} for i in range(count)]


class VmapEvaluator(AbstractEvaluator):
    """One vectorized call of the module for many draws (torch.func.vmap)."""

    how = "vmap"

    def __init__(self, model: nn.Module, data: Data, limit: float) -> None:
        super().__init__(limit)
        self.model, self.data = model, data

    @property
    def bytes_each(self) -> float:
        # hidden sequences are usually wider than the outputs: 16 of the larger of inputs and targets
        return 128.0 * max(self.data.inputs.numel(), self.data.targets.numel())

    def _errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        run = vmap(lambda weights: run_once(self.model, weights, self.data.inputs))
        return self.data.metric.of(self.data.error(run(dict(stacked))))


class LoopEvaluator(AbstractEvaluator):
    """One call of the module for each perturbation."""

    how = "loop"

    def __init__(self, model: nn.Module, data: Data, limit: float) -> None:
        super().__init__(limit)
        self.model, self.data = model, data

    @property
    def bytes_each(self) -> float:
        return float(self.limit)  # one draw at a time

    def _errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        count = len(next(iter(stacked.values())))
        errors = []
        for i in range(count):
            outputs = run_once(self.model, {name: value[i] for name, value in stacked.items()}, self.data.inputs)
            errors.append(self.data.metric.of(self.data.error(outputs.unsqueeze(0))))
        return torch.cat(errors)


def run_once(model: nn.Module, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """The model's first output with some weights replaced; the model itself is not touched."""
    return first_output(functional_call(model, dict(weights), (inputs,)))


def check_targets(outputs: Tensor, targets: Tensor) -> None:
    """Raises unless the targets have the shape of the model's outputs."""
    if outputs.shape != targets.shape:
        raise ShapeError(
            f"the model's output has shape {tuple(outputs.shape)}, the targets have {tuple(targets.shape)}; "
            "expected the same"
        )


def _infinite(errors: Tensor) -> Tensor:
    return torch.where(torch.isfinite(errors), errors, torch.full_like(errors, torch.inf))
