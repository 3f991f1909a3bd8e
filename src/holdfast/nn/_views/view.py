"""The one view of a recurrence, whoever wrote its module: what certify, the monitor, stabilize and the others read."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.nn._pace import assigned, checked_time_constants, from_margins
from holdfast.nn._views.rest import Driven, Equilibria, Equilibrium, StepMap, find_equilibria, find_rest
from holdfast.nn.system import Motion, RateNetwork, StateSpaceModel
from holdfast.parameterizations import AbstractParameterization

# how a weight stores what it stands for: by the layer's own parameterization, as the matrix of a nonlinear step, as the
# eigenvalue lam (or a matrix) itself, as log(-lam), or as the inverse of softplus at -lam; a frequency, or the logarithm of
# a step size or of a frequency
Storage = Literal["own", "step_matrix", "value", "log_negative", "softplus_negative", "frequency", "log_positive"]
MAX_LET_IN = 1 - 1e-6  # of an input by a gate: its bias stays finite


@dataclass(frozen=True, eq=False)
class MemoryWeight:
    """A weight that decides how a state decays: `module.name`, called `path` from the model's root.

    Args:
        path: its path.
        module: the module that holds it.
        name: its name there.
        storage: how it stores what it stands for.
        diagonal: whether each entry belongs to one mode, so that its ball is that of diag(w).
        modes: f of lam = f(w), where the entries are free weights of eigenvalues.
        decides: whether it decides how far the recurrence is from its boundary; phases and step sizes do not.
    """

    path: str
    module: nn.Module
    name: str
    storage: Storage = "value"
    diagonal: bool = False
    modes: AbstractParameterization | None = None
    decides: bool = True

    @property
    def value(self) -> Tensor:
        """The effective weight, what the module computes with."""
        part = getattr(self.module, self.name)
        return part().detach() if isinstance(part, nn.Module) else part.detach()

    @property
    def free(self) -> dict[str, nn.Parameter]:
        """The parameters that an optimizer moves, by their paths: of a parametrized weight those behind it."""
        dot = self.path.removesuffix(self.name)
        if isinstance(part := getattr(self.module, self.name, None), nn.Module):
            return {f"{self.path}.{name}": p for name, p in part.named_parameters()}
        if parametrize.is_parametrized(self.module, self.name):
            stack: nn.Module = self.module.parametrizations[self.name]  # type: ignore[index, assignment]
            return {f"{dot}parametrizations.{self.name}.{name}": p for name, p in stack.named_parameters()}
        return {self.path: part} if isinstance(part, nn.Parameter) else {}


@dataclass(frozen=True)
class Gate:
    """The gate that keeps the state, or replaces it: rows `first` to `last` of the bias called `bias` in the module.

    torch has two biases that add into a gate; `beside` is the name of the other one. `writes` is the first row of the gate
    that lets inputs into the state, where that is a gate of its own (an LSTM); else what is not kept is replaced.
    """

    name: str
    bias: str
    first: int
    last: int
    keeps: bool = True
    beside: str | None = None
    writes: int | None = None

    @property
    def biases(self) -> tuple[str, ...]:
        """Every bias that adds into the gate."""
        return (self.bias,) if self.beside is None else (self.bias, self.beside)


@dataclass(frozen=True)
class StepSource:
    """Where step sizes come from: names in the module of a bias, of the weight that lets inputs move them, of a limit."""

    bias: str | None = None
    weight: str | None = None
    limit: str | None = None


class RecurrenceView(ABC):
    """One recurrence of a model. Building it costs nothing; eigenvalues, rest and margins are computed when asked.

    Args:
        path: its name in the model, of the layer or of the weight that makes it.
        module: the module that computes it.
        weights: what decides its decay, what `scope="recurrent"` perturbs and what has a learning rate of its own.
    """

    kind: str
    time: Time = "discrete"
    # whether the state moves by a nonlinear step, so that it is linearized where it rests
    nonlinear: bool = False
    # whether the step is h+ = sigma(W h + drive), W the first weight and sigma tanh or ReLU of each unit
    elementwise: bool = False
    # whether a step of training can take it across the stability boundary
    crosses: bool = False
    # whether step sizes come from the input, and `certify(inputs=)` can watch them
    selective: bool = False
    # whether only the user says that this weight is a recurrence
    stated: bool = False
    # the step size where the module steps by Euler's rule
    euler: float | None = None
    gate: Gate | None = None
    steps: StepSource | None = None
    # name in the module of the logarithm of step sizes, where that is a weight of its own and `steps` does not say it
    log_step: str | None = None
    # what has to be said beside the numbers
    remarks: tuple[str, ...] = ()
    # why `stabilize` leaves it as it is
    left_alone: str | None = None
    # why it is stable whatever its weight is, before `stabilize` and after
    by_construction: str | None = None

    def __init__(self, path: str, module: nn.Module, weights: tuple[MemoryWeight, ...]) -> None:
        self.path, self.module = path, module
        self._weights = weights
        self._last: Tensor | None = None  # where it last rested: along training the next rest is near
        # what its module reads, and step sizes of a selective one, where the whole model rests; None is zeros of its own
        self.resting_input: Tensor | None = None
        self.resting_steps: Tensor | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {self.kind}, {self.time})"

    @property
    def weights(self) -> tuple[MemoryWeight, ...]:
        """The weights that decide its decay."""
        return self._weights

    @property
    def owner(self) -> str:
        """The path of its module."""
        return self.path

    @property
    def undecayed(self) -> dict[str, nn.Parameter]:
        """Parameters that weight decay would harm: the recurrent ones, every bias and every vector beside them."""
        dot = f"{self.owner}." if self.owner else ""
        beside = {f"{dot}{n}": p for n, p in self.module.named_parameters() if p.ndim < 2 or n.endswith("bias")}
        return beside | {path: p for weight in self.weights for path, p in weight.free.items()}

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """In the recurrence's own time; of a nonlinear one those of the Jacobian where it rests, empty without rest."""

    @abstractmethod
    def step_map(self) -> StepMap:
        """One step of the state on zero input of the model in float64, with the weights as they are now."""

    def driven(self) -> Driven | None:
        """Its step on inputs that change; None where inputs do not move its Jacobian, or that is not known."""
        return None

    def step_sizes(self, x: Tensor) -> Tensor | None:
        """Step sizes (rows, time, modes) on inputs of its module, where gates that are not a scan decide them; else None.

        Args:
            x: inputs of its module, (rows, time, features).
        """
        return None

    def matrix(self) -> Tensor | None:
        """W of a linear recurrence whose states mix; None for others."""
        return None

    @abstractmethod
    def margin(self) -> float:
        """Distance to the stability boundary of one step: 1 - the largest factor of a mode. NaN where nothing rests."""

    def rate(self) -> float | None:
        """Distance to the boundary per unit of time, -max Re lam; None in discrete time."""
        return None if self.time == "discrete" else -float(self.eigenvalues().real.max())

    def gate_biases(self) -> dict[str, Tensor]:
        """The biases that add into the gate, by their names in the module; empty where there is no gate."""
        return {} if self.gate is None else {self.gate.bias: getattr(self.module, self.gate.bias)}

    @torch.no_grad()
    def time_constants(self) -> Tensor:
        """Steps in which its modes fall to 1/e; of a gated unit those of each gate on zero input, in float64.

        Gates are read without what the state adds to them; `eigenvalues()` has that in it, where the state rests.
        """
        if self.gate is not None and self.gate_biases():
            rows = slice(self.gate.first, self.gate.last)
            open_ = torch.sigmoid(self._preactivation(rows))
            return from_margins(1 - open_ if self.gate.keeps else (self.euler or 1.0) * open_)
        lam = self.eigenvalues()
        return from_margins(1 - (lam.abs() if self.time == "discrete" else (1 + (self.euler or 1.0) * lam).abs()))

    @torch.no_grad()
    def set_time_constants(self, steps: Tensor) -> None:
        """Moves its weights, in place, so that its time constants follow these; refused where it has none of its own.

        Each mode keeps its rank. Of a gate the first bias that is trained takes the whole change. Where another gate lets
        inputs in (an LSTM), it follows: a unit that keeps f of its state and adds i of an input answers with i f^k, and i
        changes with 1 - f, so that the L1 norm i / (1 - f) of that kernel stays as it was.

        Args:
            steps: time constants (any,); as many as it needs are taken from their quantiles.
        """
        values = checked_time_constants(steps)
        trained = [bias for bias in self.gate_biases().values() if bias.requires_grad]
        if self.gate is None or not trained:
            raise ArgumentError(f"{self.path or 'the recurrence'}: {self.no_modes}")
        left = torch.exp(-1 / assigned(self.time_constants(), values))
        share = left if self.gate.keeps else ((1 - left) / (self.euler or 1.0)).clamp(max=1 - 1e-6)
        rows = slice(self.gate.first, self.gate.last)
        before = self._preactivation(rows)
        self._set_gate(trained[0], rows, torch.logit(share))
        if self.gate.writes is not None:
            written = slice(self.gate.writes, self.gate.writes + self.gate.last - self.gate.first)
            # 1 - sigmoid(b) = sigmoid(-b), which keeps its digits for gates that are nearly closed
            scale = torch.sigmoid(-self._preactivation(rows)) / torch.sigmoid(-before)
            let_in = (scale * torch.sigmoid(self._preactivation(written))).clamp(max=MAX_LET_IN)
            self._set_gate(trained[0], written, torch.logit(let_in))

    def _preactivation(self, rows: slice) -> Tensor:
        """What the biases of a gate add up to, in float64."""
        return torch.stack([bias[rows].double() for bias in self.gate_biases().values()]).sum(0)

    def _set_gate(self, trained: Tensor, rows: slice, wanted: Tensor) -> None:
        """Moves one bias so that all of the gate add up to `wanted`."""
        shift = wanted.to(trained.device) - self._preactivation(rows)
        trained[rows] = (trained[rows].double() + shift).to(trained.dtype)

    def time_weights(self) -> tuple[Tensor, ...]:
        """The parameters that `set_time_constants` moves; empty where it is refused."""
        return tuple(bias for bias in self.gate_biases().values() if isinstance(bias, nn.Parameter))

    @property
    def no_modes(self) -> str:
        """Why its time constants cannot be set."""
        return f"{self.kind} has neither modes of its own nor a gate with a bias that is trained"

    def network(self) -> RateNetwork | None:
        """The weights of dh/dt = sigma(W h + U x + b), where that is what it computes."""
        return None

    def state_space_model(self) -> StateSpaceModel | None:
        """The weights of StableSSM, eq. 2-3, where that is what it computes."""
        return None

    def equilibria(self, *, starts: int = 16, seed: int = 0) -> Equilibria:
        """All states of rest that a search finds, the one reached from 0 first.

        Args:
            starts: number of states from which they are searched.
            seed: of these states.
        """
        return find_equilibria(self.step_map(), starts=starts, seed=seed)

    def rest(self) -> Equilibrium | None:
        """Where the state rests on zero input, looked for where it last was; None where a search finds nothing."""
        point = find_rest(self.step_map(), self._last)
        self._last = None if point is None else torch.from_numpy(point.state)
        return point


class NonlinearView(RecurrenceView):
    """A recurrence that is linearized where it rests."""

    nonlinear = True

    def eigenvalues(self) -> Tensor:
        """Of the Jacobian where it rests; empty where it rests nowhere."""
        point = self.rest()
        return torch.from_numpy(np.empty(0, complex) if point is None else point.eigenvalues)

    def margin(self) -> float:
        """1 - the largest factor of a step near rest."""
        lam = self.eigenvalues()
        return math.nan if lam.numel() == 0 else self.margin_at(lam)

    def margin_at(self, eigenvalues: Tensor) -> float:
        """That of one step whose Jacobian, or generator, has these eigenvalues."""
        if self.time == "discrete":
            return 1 - float(eigenvalues.abs().max())
        return 1 - float((1 + (self.euler or 1.0) * eigenvalues).abs().max())

    def rate(self) -> float | None:
        """-max Re lam near rest; NaN where it rests nowhere, None in discrete time."""
        if self.time == "discrete":
            return None
        lam = self.eigenvalues()
        return -float(lam.real.max()) if lam.numel() else math.nan


def matrix_map(W: Tensor, time: Time, dt: float = 1.0) -> StepMap:
    """h+ = W h, or dh/dt = W h."""
    W = W.detach().cpu().double()
    return _linear(lambda h: h @ W.mT, len(W), time, dt)


def modes_map(factors: Tensor, time: Time, dt: float = 1.0) -> StepMap:
    """The same of independent modes; the state of complex ones is their real parts, then their imaginary parts."""
    lam = factors.detach().cpu().flatten()
    if not lam.is_complex():
        lam = lam.double()
        return _linear(lambda h: lam * h, len(lam), time, dt)
    lam = lam.to(torch.complex128)

    def motion(h: Tensor) -> Tensor:
        moved = lam * torch.complex(*h.chunk(2, -1))
        return torch.cat([moved.real, moved.imag], -1)

    return _linear(motion, 2 * len(lam), time, dt)


def _linear(motion: Motion, size: int, time: Time, dt: float) -> StepMap:
    return StepMap(motion, motion if time == "continuous" else lambda h: motion(h) - h, size, time, dt)


def belongs(path: str, prefix: str) -> bool:
    """Whether the weight at `path` is `prefix`, lies below it, or stands behind its parametrization."""
    plain = re.sub(r"(^|\.)parametrizations\.(\w+)\.original\d*$", r"\1\2", path)
    return plain == prefix or plain.startswith(prefix + ".") or path.startswith(prefix + ".")
