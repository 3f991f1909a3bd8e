"""holdfast's own layers, which describe themselves (`holdfast.nn._described`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._pace import assigned, assigned_to_pairs, checked_time_constants
from holdfast.nn._recurrent_weight import RecurrentWeight
from holdfast.nn._views.rest import Driven, StepMap, layer_driven
from holdfast.nn._views.view import Gate, MemoryWeight, NonlinearView, RecurrenceView, StepSource, matrix_map, modes_map
from holdfast.nn.system import RateNetwork, StateSpaceModel
from holdfast.parameterizations import AbstractParameterization


def recognise(path: str, module: nn.Module) -> list[RecurrenceView]:
    """The view of a layer."""
    if not isinstance(module, AbstractRecurrent):
        return []
    return [GatedLayerView(path, module) if module.motion_at_rest() is not None else LayerView(path, module)]


class LayerView(RecurrenceView):
    """A layer whose state moves linearly, or whose nonlinear step has the eigenvalues of its matrix."""

    module: AbstractRecurrent

    def __init__(self, path: str, layer: AbstractRecurrent) -> None:
        super().__init__(path, layer, _weights(path, layer))
        self.kind, self.time, self.euler = type(layer).__name__, layer.time, layer.euler_step
        self.selective, self.remarks = layer.selective, layer.remarks
        self.steps = StepSource(*layer.step_names)
        if layer.gated:
            self.left_alone = gated_words(self.weights[0].path, self.kind, "call view.set_time_constants")

    @property
    def crosses(self) -> bool:  # type: ignore[override]
        """Whether Euler's rule or the range of its parameterization lets it."""
        return self.euler is not None or _reaches_boundary(self.module.boundary_form, self.time)

    def eigenvalues(self) -> Tensor:
        return self.module.eigenvalues().detach()

    def matrix(self) -> Tensor | None:
        W = self.module.recurrent_matrix()
        return None if W is None else W.detach()

    def margin(self) -> float:
        # a selective layer in a model that rests has steps of its own there, not those of zero input
        if self.resting_steps is None:
            return self.module.step_margin()
        return -float(torch.expm1(self.eigenvalues().real.double().cpu() * self._steps_at_rest()).max())

    def _steps_at_rest(self) -> Tensor:
        """Of a selective layer where the model rests, of a shape that multiplies its rates."""
        steps = self.resting_steps
        assert steps is not None
        return steps.unsqueeze(-1) if self.eigenvalues().ndim > 1 else steps

    def driven(self) -> Driven | None:
        """By the layer's own step, where that is not linear."""
        linear = self.module.linear_system() is not None or self.selective or self.module.rate_network() is None
        return None if linear else layer_driven(self.module)

    def rate(self) -> float | None:
        # Euler's rule has a margin of its own, which is one of steps
        return self.module.margin() if self.time == "continuous" and self.euler is None else super().rate()

    def time_constants(self) -> Tensor:
        return self.module.time_constants()

    def time_weights(self) -> tuple[Tensor, ...]:
        return tuple(p for weight in self.weights if weight.decides for p in weight.free.values())

    @torch.no_grad()
    def set_time_constants(self, steps: Tensor) -> None:
        values, now, lam = checked_time_constants(steps), self.time_constants(), self.eigenvalues()
        # eigenvalues of a real matrix come in conjugate pairs, which need one time constant
        if self.matrix() is not None:
            self.module.set_time_constants_(assigned_to_pairs(lam.cpu(), now.cpu(), values))
        else:
            self.module.set_time_constants_(assigned(now, values, lam.imag if lam.is_complex() else None))

    @torch.no_grad()
    def step_map(self) -> StepMap:
        system, dt = self.module.linear_system(), self.module.step_size()
        if system is not None and system.dense:
            return matrix_map(system.factor[0], "discrete")
        if system is not None:
            return modes_map(system.factor, "discrete")
        if dt is not None:
            return modes_map(torch.exp(self.eigenvalues() * dt), "discrete")
        W = self.matrix()
        step = self.euler or 1.0
        return modes_map(self.eigenvalues(), self.time, step) if W is None else matrix_map(W, self.time, step)

    def network(self) -> RateNetwork | None:
        return self.module.rate_network()

    def state_space_model(self) -> StateSpaceModel | None:
        return self.module.state_space_model()


class GatedLayerView(NonlinearView):
    """A layer that says how its state moves on zero input."""

    module: AbstractRecurrent

    def __init__(self, path: str, layer: AbstractRecurrent) -> None:
        super().__init__(path, layer, _weights(path, layer))
        self.kind, self.time, self.euler = type(layer).__name__, layer.time, layer.euler_step
        self.left_alone = gated_words(self.weights[0].path, self.kind, "lower the bias of its gate z")
        if getattr(layer, "b", None) is not None:
            self.gate = Gate("update", "b", 0, layer.state_size, keeps=False)

    def step_map(self) -> StepMap:
        moving = self.module.motion_at_rest()
        assert moving is not None
        # only on zeros does the layer describe its motion in closed form
        if self.resting_input is not None and bool(self.resting_input.any()):
            return self._map_at(self.resting_input)
        return StepMap(*moving, math.prod(self.module.state_shape), self.time, self.euler or 1.0)

    def _map_at(self, x: Tensor) -> StepMap:
        """On a constant input, by the layer's own step: its forward difference is what vanishes at rest."""
        driven, dt = self.driven(), self.euler or 1.0

        def moved(h: Tensor) -> Tensor:
            flat = h.reshape(-1, driven.size)
            return (driven.step(flat, x.expand(len(flat), -1)) - flat).reshape(h.shape) / dt

        return StepMap(moved, moved, driven.size, self.time, dt, vectorised=False)

    def driven(self) -> Driven:
        """By the layer's own step."""
        return layer_driven(self.module)


def _weights(path: str, layer: AbstractRecurrent) -> tuple[MemoryWeight, ...]:
    """A weight for each name that the layer calls recurrent; entries of single modes unless states mix or gates decide."""
    weights = []
    for name in layer.recurrent_names:
        part = getattr(layer, name, None)
        if part is None:
            continue
        mixing = isinstance(part, RecurrentWeight) and part.structure == "dense"
        diagonal = layer.boundary_name is not None and not mixing
        # phases and step sizes are perturbed and exempt from decay, too, but have no margin of their own
        decides = name == layer.boundary_name or layer.boundary_name is None
        form = layer.boundary_form if diagonal and decides else None
        modes = form if isinstance(form, AbstractParameterization) else None
        full = f"{path}.{name}" if path else name
        weights.append(MemoryWeight(full, layer, name, "own", diagonal, modes, decides))
    return tuple(weights)


def _reaches_boundary(f: nn.Module | None, time: str) -> bool:
    if not isinstance(f, AbstractParameterization):
        return False  # the matrix forms are stable wherever their weights go
    values = f.range
    high, low = values.high, values.low
    if time == "continuous":
        return high > 0 or (high == 0 and not values.high_open)
    return high > 1 or low < -1 or (high == 1 and not values.high_open) or (low == -1 and not values.low_open)


def gated_words(path: str, kind: str, longer: str) -> str:
    """Why `stabilize` leaves a gated unit alone, and what makes its memory longer."""
    return (
        f"{path} belongs to a gated {kind} and is left as it is: its gates bound the state already, and how fast it "
        f"forgets is theirs to learn. If it forgets too fast, {longer}; if training diverges, lower the learning rate or "
        "clip gradients. Name other weights, names=[...], to stabilize those"
    )
