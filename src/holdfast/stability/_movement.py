"""How far weights have to move for a longer memory, tried on a copy of one recurrence."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ArgumentError
from holdfast.nn import recurrences
from holdfast.nn._views.view import MemoryWeight, RecurrenceView

BISECTIONS = 40  # to the last digits of float64
MAX_SHIFT = 1e4  # of a free weight: farther away every parameterization has reached its limit
FIRST_SHIFT = 1e-3  # of a search that doubles it, and over which slopes are taken
PATH_GROWTH = 1.1  # of the movement, from a point of a matrix's path to the next
RATE_STEP = 1e-3  # of a free weight, to see to which side its mode gets slower


class Movement:
    """A copy of one recurrence in float64, whose weights are moved to where its memory lasts longer.

    Entries of single modes and the biases of step sizes move by the same amount each, as Adam moves them. The entries of a
    matrix follow the sign of the gradient of its slowest eigenvalue, which turns on the way; of torch.nn.RNN the matrix
    counts, as where no unit saturates. A gate obeys its law: the time constant now is that of sigmoid(b), and every bias
    that adds into the gate adds its movement to b.

    Args:
        view: the recurrence; its module stays as it is.
    """

    def __init__(self, view: RecurrenceView) -> None:
        self.path = view.path
        self._name = view.path or "the recurrence"
        self.view = _copied(view)
        self._parameters = [*self.view.module.parameters()]
        self._start = [parameter.detach().clone() for parameter in self._parameters]
        self._matrices = [] if view.gate is not None else _matrices(self.view)
        self._path = [(0.0, self._time_constant())]
        if view.gate is None and not self._matrices and not any(True for _ in _lengthening(self.view)):
            raise ArgumentError(
                f"{self._name}: holdfast does not know which of its weights lengthen its memory; pass recurrent_lr as "
                "a number (for an LSTM or GRU, build it with bias=True)"
            )
        if not math.isfinite(self.start):
            raise ArgumentError(
                f"{self._name} must forget at its start, got one on or beyond its stability boundary; call "
                "holdfast.stabilize(model) first, or choose a start that decays"
            )

    @property
    def start(self) -> float:
        """The time constant before any movement, in steps to 1/e."""
        return self._path[0][1]

    def time_constant(self, shift: float) -> float:
        """The longest one on the way to a movement by `shift`; inf past the boundary."""
        if shift <= 0:
            return self.start
        if self.view.gate is not None:
            return gated_time_constant(self.start, len(self.view.gate.biases) * shift, self.view.euler or 1.0)
        if self._matrices:
            return self._along_path(shift)
        self.put(shift)
        return max(self.start, self._time_constant())

    def slope(self, shift: float = 0.0) -> float:
        """d log tau / d shift: by how many times its size a unit of movement changes the slowest rate, from `shift` on."""
        here, later = self.time_constant(shift), self.time_constant(shift + FIRST_SHIFT)
        slope = math.log(later / here) / FIRST_SHIFT if math.isfinite(later) and 0 < here < math.inf else math.inf
        if not slope > 0:
            raise ArgumentError(
                f"{self._name}: no learning rate lengthens its memory, which does not depend on its recurrent weights; pass "
                "recurrent_lr as a number"
            )
        return slope

    def shift_to(self, memory: float) -> float:
        """The least movement that leads to the time constant `memory`, by bisection."""
        low, high = 0.0, FIRST_SHIFT
        while self.time_constant(high) < memory:
            low, high = high, 2 * high
            if high > MAX_SHIFT:
                raise ArgumentError(
                    f"memory: {self._name} can reach at most {self.time_constant(high):.4g} steps, got {memory:.4g}; "
                    f"choose another parameterization, or constants whose range holds the rate 1/{memory:.4g}"
                )
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.time_constant(middle) < memory else (low, middle)
        return high

    @torch.no_grad()
    def put(self, shift: float) -> None:
        """Moves the copy by `shift` from where it started; below 0 to where its memory is shorter."""
        for parameter, value in zip(self._parameters, self._start, strict=True):
            parameter.copy_(value)
        moves = [(tensor, shift * way) for tensor, way in _lengthening(self.view)]
        for tensor, move in moves:
            tensor.add_(move)

    def _time_constant(self) -> float:
        if self.view.elementwise:
            return _steps_of_factor(float(_spectrum(self._matrices[0]).detach().abs().max()))
        steps = time_constant(self.view)
        if self.view.gate is not None and not math.isfinite(steps):
            return _gate_alone(self.view)  # nothing rests, but the gate still forgets
        return steps

    def _along_path(self, shift: float) -> float:
        """Interpolated between points of the path, which is walked once and only as far as was asked for."""
        while self._path[-1][0] < shift and math.isfinite(self._path[-1][1]):
            here, longest = self._path[-1]
            there = max(FIRST_SHIFT, PATH_GROWTH * here)
            self._step_along_gradient(there - here)
            self._path.append((there, max(longest, self._time_constant())))
        for (a, low), (b, high) in pairwise(self._path):
            if shift <= b:
                share = (shift - a) / (b - a)
                rate = (1 - share) / low + share / high if low > 0 else 1 / high  # that of a direct matrix moves evenly
                return 1 / rate if rate > 0 else math.inf
        return self._path[-1][1]

    @torch.no_grad()
    def _step_along_gradient(self, shift: float) -> None:
        moves = [move for weight in self._matrices for move in _uphill(self.view, weight)]
        for parameter, way in [*moves, *_lengthening(self.view)]:
            parameter.add_(shift * way)


def gated_time_constant(start: float, shift: float, step: float = 1.0) -> float:
    """That of a gate with the time constant `start` after its pre-activation moved by `shift` towards keeping.

    Args:
        start: in steps to 1/e.
        shift: the sum of what all biases of the gate moved by.
        step: the size of the Euler step where the gate is a rate; else 1.
    """
    replaced = -math.expm1(-1 / start) / step if start > 0 else 1.0  # of the state in a step: sigmoid(-b)
    b = math.log(max((1 - replaced) / replaced, 1e-12))
    return _steps_of_factor(1 - step / (1 + math.exp(b + shift)))


def _gate_alone(view: RecurrenceView) -> float:
    """The time constant of the unit whose gate keeps most, by its biases."""
    gate = view.gate
    assert gate is not None
    total = sum(_attribute(view.module, name)[gate.first : gate.last].detach() for name in gate.biases)
    keeping = float((total if gate.keeps else -total).max())
    return _steps_of_factor(1 - (view.euler or 1.0) / (1 + math.exp(keeping)))


def _steps_of_factor(factor: float) -> float:
    if factor >= 1:
        return math.inf
    return -1 / math.log(factor) if factor > 0 else 0.0


def _copied(view: RecurrenceView) -> RecurrenceView:
    """The view of the same weights in a copy: 16 bits would lose small movements."""
    names = [weight.name for weight in view.weights]
    module = copy.deepcopy(view.module).cpu().double()
    twins = (other for other in recurrences(module) if [weight.name for weight in other.weights] == names)
    found = next(twins, None)
    if found is None:
        raise ArgumentError(
            f"{view.path or 'the recurrence'}: holdfast knows its step, but not which weights lengthen its memory; pass "
            "recurrent_lr as a number"
        )
    return found


def time_constant(view: RecurrenceView) -> float:
    """Steps to 1/e of the slowest mode; inf on the boundary, past it, and where nothing rests."""
    margin = view.margin()
    if math.isnan(margin) or margin <= 0:
        return math.inf
    return -1 / math.log1p(-margin) if margin < 1 else 0.0


def memory_parameters(view: RecurrenceView) -> list[nn.Parameter]:
    """What the rate of a recurrence is for: the biases of its gate where one decides, else its weights and step sizes."""
    if view.gate is not None:
        return [_attribute(view.module, name) for name in view.gate.biases]
    free = [parameter for weight in view.weights for parameter in weight.free.values()]
    return [*free, *(bias for bias in _step_biases(view) if isinstance(bias, nn.Parameter))]


def _matrices(view: RecurrenceView) -> list[MemoryWeight]:
    """Those whose eigenvalues are, or bound, the factors of a step: not the stacked matrices of gates."""
    if view.nonlinear and not view.elementwise:
        return []
    return [weight for weight in view.weights if weight.decides and not weight.diagonal]


def _lengthening(view: RecurrenceView) -> Iterator[tuple[Tensor, Tensor | float]]:
    """Every tensor whose entries each act on a mode of their own, and the way (+1 or -1) to a longer memory."""
    for weight in view.weights:
        if weight.diagonal and weight.decides:
            for parameter in weight.free.values():
                yield parameter, _slower(view, weight, parameter)
    for bias in _step_biases(view):
        yield bias, -1.0  # a shorter step forgets less


def _slower(view: RecurrenceView, weight: MemoryWeight, parameter: Tensor) -> Tensor:
    """+1 or -1 for each entry: where its mode gets slower. Maps are monotone on either side of their smallest rate."""
    ahead, behind = (_slowness(view, weight, parameter, step) for step in (RATE_STEP, -RATE_STEP))
    return torch.where(ahead >= behind, 1.0, -1.0).to(parameter)


@torch.no_grad()
def _slowness(view: RecurrenceView, weight: MemoryWeight, parameter: Tensor, step: float) -> Tensor:
    """A number for each entry that grows as its mode gets slower, after a step of the free weight."""
    before = parameter.clone()
    parameter.add_(step)
    value = weight.value.double().clone()  # apart from the parameter, which is put back
    parameter.copy_(before)
    if weight.storage in ("log_negative", "softplus_negative"):
        return -value
    # a plain parameter is the free weight itself; behind a module the value is the eigenvalue already
    plain = weight.modes is not None and not isinstance(getattr(weight.module, weight.name), nn.Module)
    lam = weight.modes(value) if plain and weight.modes is not None else value
    return lam if view.time == "continuous" else lam.abs()


def _step_biases(view: RecurrenceView) -> list[Tensor]:
    named = (None if view.steps is None else view.steps.bias, view.log_step)
    found = (None if name is None else _attribute(view.module, name) for name in named)
    return [tensor for tensor in found if tensor is not None]


def _attribute(module: nn.Module, name: str) -> Any:
    owner, _, last = name.rpartition(".")
    return getattr(module.get_submodule(owner), last, None)


def _uphill(view: RecurrenceView, weight: MemoryWeight) -> Iterator[tuple[Tensor, Tensor]]:
    """The signs of the gradient of the slowest eigenvalue."""
    free = list(weight.free.values())
    with torch.enable_grad():
        lam = _spectrum(weight)
        slowest = lam.real.max() if view.time == "continuous" else lam.abs().max()
        gradients = torch.autograd.grad(slowest, free, allow_unused=True)
    for parameter, gradient in zip(free, gradients, strict=True):
        if gradient is not None:
            yield parameter, gradient.sign()


def _spectrum(weight: MemoryWeight) -> Tensor:
    part = getattr(weight.module, weight.name)
    return torch.linalg.eigvals(part() if isinstance(part, nn.Module) else part)
