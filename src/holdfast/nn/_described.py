"""What a layer says about itself: its eigenvalues, its distance to the stability boundary, the system that it computes.

`memory`, `stability`, `approximate` and `monitor` ask these; none of them names a layer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.nn._discretize import DiscretizationRule, step_margins
from holdfast.nn._pace import from_margins, held_by_form, paced
from holdfast.nn._precision import HALF_DTYPES, widened_twin
from holdfast.nn._recurrent_weight import RecurrentWeight
from holdfast.nn.system import LinearSystem, Motion, RateNetwork, StateSpaceModel
from holdfast.parameterizations import AbstractMatrixParameterization, AbstractParameterization, spectral_margin


class Described(nn.Module, ABC):
    """A recurrence that can be asked what it is; a final class names its recurrent weights and its kind of time."""

    # the weights that decide the eigenvalues: they get their own learning rate and no weight decay
    recurrent_names: ClassVar[tuple[str, ...]]
    # the one among them that decides how far the recurrence is from its boundary; None where gates decide
    boundary_name: ClassVar[str | None] = "w"
    # whether the step size of the recurrence depends on the input
    selective: ClassVar[bool] = False
    # whether a gate that is learned decides how fast it forgets, so that `stabilize` leaves it as it is
    gated: ClassVar[bool] = False
    # where step sizes come from, as names: a bias that shifts them, and the weight by which inputs move them
    step_names: ClassVar[tuple[str | None, str | None]] = (None, None)
    # whether forward runs a kernel of its own, which torch.func.vmap cannot vectorize
    fused: ClassVar[bool] = True
    time: Time

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """The eigenvalues of the recurrence: of the generator in continuous time, of one step in discrete time."""

    @property
    def boundary_form(self) -> AbstractParameterization | AbstractMatrixParameterization | None:
        """The parameterization of the weight `boundary_name`."""
        if self.boundary_name is None:
            return None
        part = getattr(self, self.boundary_name)
        return part.parameterization if isinstance(part, RecurrentWeight) else self.parameterization  # type: ignore[return-value]

    def choices(self) -> dict[str, Any]:
        """The keyword arguments, plain values all, that build a layer of this shape and these settings."""
        raise ArgumentError(f"{type(self).__name__} has no choices() to rebuild it from; save its state_dict() instead")

    @property
    def euler_step(self) -> float | None:
        """The step size where the layer steps by Euler's rule, which is stable at short steps only; else None."""
        return None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What has to be said beside the eigenvalues."""
        return ()

    def recurrent_matrix(self) -> Tensor | None:
        """W, (n, n), of a recurrence whose states mix; None for one of independent modes."""
        return None

    @torch.no_grad()
    def margin(self) -> float:
        """Distance of the recurrence to its stability boundary in its own kind of time, negative beyond it.

        -max Re lam in continuous time, 1 - max |lam| in discrete time; where Euler's rule steps, the smaller of that and
        (1 - max |1 + dt lam|) / dt, both as rates. From the free weights of a diagonal recurrence, so that it keeps its
        digits near the boundary. NaN where gates decide.
        """
        dt = self.euler_step
        if self.boundary_form is None:
            return math.nan
        if self._is_half():
            return widened_twin(self).margin()
        if dt is not None:
            lam = self.eigenvalues()
            return float(torch.minimum(-lam.real.double(), step_margins(lam, dt, "euler") / dt).min())
        return float(self._margins().min())

    def step_size(self) -> Tensor | float | None:
        """The time that one step takes where it multiplies a mode by exp(dt lam): a number, or one for each mode.

        Of a layer whose steps come from its input, those on zero input. None in discrete time, and where a step is
        made by another rule.
        """
        return None

    @torch.no_grad()
    def step_margin(self) -> float:
        """Distance to the stability boundary of one step: 1 - the largest factor by which it multiplies a mode.

        The same for every kind of time: dt is in it. Negative beyond the boundary, NaN where gates decide.
        """
        euler, dt = self.euler_step, self.step_size()
        if self.boundary_form is None:
            return math.nan
        if self._is_half():
            return widened_twin(self).step_margin()
        if self.time == "discrete":
            # a unit of time is a step
            return self.margin()
        if euler is not None:
            return float(step_margins(self.eigenvalues(), euler, "euler").min())
        if dt is None:
            system = self.linear_system()
            return math.nan if system is None else 1 - float(system.eigenvalues().abs().max())
        # by the margins of free weights, which keep their digits where lam itself rounds to the boundary
        return float(step_margins(-self._margins(), dt, "zoh").min())

    def _is_half(self) -> bool:
        """Whether the weights have 16 bits: 1 - lam would have no digit left."""
        return next(self.parameters()).dtype in HALF_DTYPES

    def _margins(self) -> Tensor:
        """That of each mode in the layer's kind of time, from its free weight; of a matrix the smallest."""
        W, form = self.recurrent_matrix(), self.boundary_form
        if W is not None:
            return torch.tensor(spectral_margin(W, self.time), dtype=torch.float64)
        part = getattr(self, str(self.boundary_name))
        return form.margin(part.free[0] if isinstance(part, RecurrentWeight) else part)  # type: ignore[union-attr, operator]

    def _step_rule(self) -> tuple[Tensor | float, DiscretizationRule] | None:
        """Step size and rule by which a step follows from the eigenvalues; None in discrete time."""
        if self.time == "discrete":
            return None
        euler, dt = self.euler_step, self.step_size()
        return (euler, "euler") if euler is not None else None if dt is None else (dt, "zoh")

    @torch.no_grad()
    def time_constants(self) -> Tensor:
        """Steps in which each mode falls to 1/e, of the shape of `eigenvalues()`; inf where it does not fall."""
        lam, rule = self.eigenvalues(), self._step_rule()
        return from_margins(1 - lam.abs().double() if rule is None else step_margins(lam, *rule))

    @torch.no_grad()
    def set_time_constants_(self, steps: Tensor) -> None:
        """Moves the free weights so that modes fall to 1/e in so many steps; frequencies or phases stay.

        Args:
            steps: of the shape of `eigenvalues()`. Where the parameterization cannot hold a rate its constants change; where
                none can, the nearest one is taken.
        """
        lam, rule, form = self.eigenvalues(), self._step_rule(), self.boundary_form
        if form is None:
            raise ArgumentError(
                f"{type(self).__name__} has no fixed modes, its gates set the decay at each step; measure it with fit_decay"
            )
        moved = paced(lam, steps.to(lam.device), *(rule or (1.0, "discrete")))
        part = getattr(self, str(self.boundary_name))
        if isinstance(part, RecurrentWeight):
            part.set_eigenvalues_(moved)
            return
        assert isinstance(form, AbstractParameterization)
        fitted, held = held_by_form(form, moved)
        # before the weights, which are those of the new constants
        self.add_module("parameterization", fitted)
        self.set_eigenvalues_(held)  # type: ignore[operator]

    def linear_system(self) -> LinearSystem | None:
        """One step as matrices, where the state moves linearly and by the same step each time; else None."""
        return None

    def rate_network(self) -> RateNetwork | None:
        """The weights of dh/dt = sigma(W h + U x + b), where that is what the layer computes; else None."""
        return None

    def state_space_model(self) -> StateSpaceModel | None:
        """The weights of StableSSM, eq. 2-3, where the layer solves that model exactly; else None."""
        return None

    def motion_at_rest(self) -> tuple[Motion, Motion] | None:
        """dh/dt on zero input, in float64, and a function that is 0 at equilibria and nowhere else; None if linear."""
        return None
