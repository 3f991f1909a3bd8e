"""The balls that perturbations live in, one norm per weight, and which weights of a model are perturbed.

A ball draws, projects and knows the steepest direction, each for a batch of perturbations of one weight, (draws, *shape).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.errors import ArgumentError, listed, unknown_name
from holdfast.nn import recurrences
from holdfast.nn._precision import widened
from holdfast.nn._views.view import MemoryWeight, belongs
from holdfast.parameterizations import AbstractParameterization

BallNorm = Literal["spectral", "frobenius", "max-abs"]
Region = Literal["ball", "sphere"]
WeightScope = str | Sequence[str]
NORMS = ("spectral", "frobenius", "max-abs")


class AbstractBall(ABC):
    """The unit ball of a norm on the perturbations of one weight."""

    name: ClassVar[str]

    @abstractmethod
    def norm(self, delta: Tensor) -> Float[Tensor, " draws"]:
        """The norm of each perturbation."""

    @abstractmethod
    def project(self, delta: Tensor, radius: Float[Tensor, " draws"]) -> Tensor:
        """The nearest perturbation of norm at most `radius`, one radius for each perturbation."""

    @abstractmethod
    def steepest(self, gradient: Tensor) -> Tensor:
        """The d of norm at most 1 with the largest <gradient, d>."""

    def draw(self, like: Tensor, draws: int, generator: torch.Generator, where: Region) -> Tensor:
        """Random perturbations of norm 1 ("sphere"), or uniform in the volume of the unit ball ("ball"), in float64.

        Directions are those of normal numbers, so that no entry and no singular direction is preferred.
        """
        # float64 on the CPU whatever the model: the same seed gives the same draws in every dtype and on every device
        wide = torch.complex128 if like.is_complex() else torch.float64
        delta = torch.randn((draws, *like.shape), generator=generator, dtype=wide)
        unit = delta / _column(_not_zero(self.norm(delta)), delta)
        if where == "sphere":
            return unit
        u = torch.rand(draws, generator=generator, dtype=torch.float64)
        # a ball of n dimensions holds the share r^n within radius r
        return unit * _column(u ** (1 / max(1, like.numel() * (2 if like.is_complex() else 1))), delta)


class Spectral(AbstractBall):
    """Largest singular value of a weight taken as a matrix, its first dimension by the rest."""

    name = "spectral"

    def norm(self, delta: Tensor) -> Float[Tensor, " draws"]:
        matrices = _matrices(widened(delta))  # half precision has no eigenvalues
        # the smaller Gram matrix: its eigenvalues cost a quarter of an SVD, and the largest keeps its digits
        wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mH
        return torch.linalg.eigvalsh(wide @ wide.mH)[:, -1].clamp(min=0).sqrt()

    def project(self, delta: Tensor, radius: Float[Tensor, " draws"]) -> Tensor:
        # cutting singular values is the projection in the Frobenius norm onto the spectral ball
        u, s, vh = _svd(_matrices(delta))
        return (u * torch.minimum(s, radius.unsqueeze(-1)).unsqueeze(-2) @ vh).reshape(delta.shape)

    def steepest(self, gradient: Tensor) -> Tensor:
        u, s, vh = _svd(_matrices(gradient))
        # a direction without gradient stays where it is
        kept = (s > s.amax(-1, keepdim=True) * 1e-12).to(u.dtype)
        return (u * kept.unsqueeze(-2) @ vh).reshape(gradient.shape)


def _svd(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular vectors and values; in float64 where LAPACK's float32 does not converge, as on changes of a trained LSTM."""
    try:
        return torch.linalg.svd(matrices, full_matrices=False)
    except torch.linalg.LinAlgError:
        wide = torch.complex128 if matrices.is_complex() else torch.float64
        u, s, vh = torch.linalg.svd(matrices.to(wide), full_matrices=False)
        return u.to(matrices.dtype), s.to(matrices.real.dtype), vh.to(matrices.dtype)


class Euclidean(AbstractBall):
    """Root of the sum of squares: the 2-norm of a vector, the Frobenius norm of a matrix."""

    name = "2-norm"

    def norm(self, delta: Tensor) -> Float[Tensor, " draws"]:
        return torch.linalg.vector_norm(delta.flatten(1), dim=-1)

    def project(self, delta: Tensor, radius: Float[Tensor, " draws"]) -> Tensor:
        size = self.norm(delta)
        return delta * _column(torch.where(size > radius, radius / _not_zero(size), torch.ones_like(size)), delta)

    def steepest(self, gradient: Tensor) -> Tensor:
        # divided by the largest entry first: the square of a gradient of 1e200 is not finite
        scaled = gradient / _column(_not_zero(MaxAbs().norm(gradient)), gradient)
        return scaled / _column(_not_zero(self.norm(scaled)), gradient)


class MaxAbs(AbstractBall):
    """Largest absolute entry; for the vector w of a diagonal recurrence this is the spectral norm of diag(w)."""

    name = "max-abs"

    def norm(self, delta: Tensor) -> Float[Tensor, " draws"]:
        return delta.abs().flatten(1).amax(-1) if delta.shape[1:].numel() else delta.new_zeros(len(delta)).abs()

    def project(self, delta: Tensor, radius: Float[Tensor, " draws"]) -> Tensor:
        # entry by entry, with the phase of a complex one kept
        return torch.sgn(delta) * torch.minimum(delta.abs(), _column(radius, delta))

    def steepest(self, gradient: Tensor) -> Tensor:
        return torch.sgn(gradient)

    def draw(self, like: Tensor, draws: int, generator: torch.Generator, where: Region) -> Tensor:
        # uniform numbers fill the cube of real weights; of complex ones each entry has a disk instead
        if like.is_complex():
            return super().draw(like, draws, generator, where)
        delta = 2 * torch.rand((draws, *like.shape), generator=generator, dtype=torch.float64) - 1
        return delta if where == "ball" else delta / _column(_not_zero(self.norm(delta)), delta)


def ball_of(norm: BallNorm, shape: torch.Size, *, diagonal: bool) -> AbstractBall:
    """The ball of a weight: "spectral" is the 2-norm for a vector and max-abs for the vector of a diagonal recurrence.

    "Inverse Approximation Theory", Def. 3.4, and "StableSSM", Def. 2.4: |theta| = max(|W|_2, |U|_2, |b|_2, |c|_2).
    """
    if norm == "max-abs" or (norm == "spectral" and diagonal):
        return MaxAbs()
    if norm == "frobenius":
        return Euclidean()
    if norm != "spectral":
        raise unknown_name("norm", norm, NORMS)
    rows = shape[0] if shape else 1
    # a vector, or a matrix with one row or column: its one singular value is the 2-norm, which needs no SVD
    return Euclidean() if min(rows, math.prod(shape[1:])) <= 1 else Spectral()


@dataclass(frozen=True, eq=False)
class PerturbedWeight:
    """A weight with its ball; `modes` is f where the weight is the w of a diagonal recurrence lam = f(w)."""

    name: str
    value: Tensor
    ball: AbstractBall
    modes: AbstractParameterization | None = None


def select_weights(model: nn.Module, scope: WeightScope, norm: BallNorm) -> list[PerturbedWeight]:
    """The weights in `scope` ("all", "recurrent", or names and prefixes), each with the ball of `norm`."""
    if norm not in NORMS:
        raise unknown_name("norm", norm, NORMS)
    every = {name: p for name, p in model.named_parameters() if p.is_floating_point() or p.is_complex()}
    if not every:
        raise ArgumentError(f"{type(model).__name__} has no weights to perturb")
    # by the free weights: what training moves is perturbed, before the parameterization
    recurrent = {path: weight for view in recurrences(model) for weight in view.weights for path in weight.free}
    weights = []
    for name in _names(every, recurrent, scope):
        weight = recurrent.get(name)
        value = every[name].detach()
        ball = ball_of(norm, value.shape, diagonal=weight is not None and weight.diagonal)
        weights.append(PerturbedWeight(name, value, ball, None if weight is None else weight.modes))
    return weights


def _names(every: dict[str, nn.Parameter], recurrent: dict[str, MemoryWeight], scope: WeightScope) -> list[str]:
    if scope == "all":
        return list(every)
    if scope == "recurrent":
        names = [n for n in every if n in recurrent]
        if not names:
            raise ArgumentError(
                "scope='recurrent' needs recurrent weights that holdfast recognizes, got a model without any; pass "
                "their names, as scope=['layer.weight'], or describe the step with holdfast.nn.StepFunction. The "
                f"model's weights: {listed(every)}"
            )
        return names
    wanted = [scope] if isinstance(scope, str) else list(scope)
    if not wanted:
        raise ArgumentError("scope must be 'all', 'recurrent' or names of weights, got an empty list")
    # a misspelt name would silently perturb nothing
    for prefix in wanted:
        if not any(belongs(name, prefix) for name in every):
            raise unknown_name("weight", prefix, ["all", "recurrent", *every])
    return [name for name in every if any(belongs(name, prefix) for prefix in wanted)]


def _matrices(delta: Tensor) -> Tensor:
    return delta.flatten(2) if delta.ndim > 2 else delta.unsqueeze(-1)


def _not_zero(size: Tensor) -> Tensor:
    """Sizes to divide by: what has size 0 stays 0, in float32 too."""
    return size.clamp(min=torch.finfo(size.dtype).tiny)


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.ndim - 1))
