"""The contract of every recurrent layer: states in and out, steps, padding, irregular time, both directions.

`y, state = layer(x, state=None, *, lengths=None, dt=None, resets=None, cu_seqlens=None, return_state=True)` with x
(batch, time, features);
`y_t, state = layer.step(x_t, state)` is the same recurrence one step at a time.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from numbers import Real
from typing import Any, ClassVar, Self, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast._types import Time
from holdfast.errors import ArgumentError, DtypeError, ShapeError
from holdfast.kernels import checks
from holdfast.kernels.segments import cleared, in_pieces, packed_bounds, turned
from holdfast.nn.exporting import by_steps
from holdfast.nn.kept import MOST, Witness
from holdfast.nn.precision import HALF, state_dtype, widened, widened_twin, without_autocast
from holdfast.nn.recurrence import Recurrence
from holdfast.nn.system import LinearSystem, Motion, RateNetwork, StateSpaceModel
from holdfast.parameterizations import AbstractMatrixParameterization, AbstractParameterization, spectral_margin

Kept = TypeVar("Kept")
Lengths = Int[Tensor, " batch"] | list[int] | tuple[int, ...]
StepSize = float | Float[Tensor, " time"] | Float[Tensor, "batch time"]


class AbstractRecurrent(nn.Module, ABC):
    """A recurrent layer. A final class gives `state_shape`, `_run`, `_step` and names its recurrent weights.

    Inputs and weights in bfloat16 or float16 are computed in float32, with a float32 state; outputs have the dtype of
    the input.

    Args:
        features: number of input features.
        state_size: number of states, as the layer counts them.
        bidirectional: a second set of weights reads the sequence from its end, the two outputs are added, and the state
            has a first dimension of 2 (forward, backward).
        choices: the layer's other keyword arguments, to build that second set; `out_features` among them is the number
            of outputs, None is `features`.
    """

    # the weights that decide the eigenvalues: they get their own learning rate and no weight decay
    recurrent_names: ClassVar[tuple[str, ...]]
    # the one among them that decides how far the recurrence is from its boundary; None where gates decide
    boundary_name: ClassVar[str | None] = "w"
    # whether the step size of the recurrence depends on the input
    selective: ClassVar[bool] = False
    # whether forward runs a kernel of its own, which torch.func.vmap cannot vectorise
    fused: ClassVar[bool] = True
    time: Time

    def __init__(self, features: int, state_size: int, *, bidirectional: bool, **choices: Any) -> None:
        super().__init__()
        out_features = choices.get("out_features")
        positive(features=features, state_size=state_size, out_features=out_features)
        self.features = features
        self.out_features: int = out_features or features
        self.state_size = state_size
        self.backward_layer = type(self)(features, state_size, **choices) if bidirectional else None

    @property
    @abstractmethod
    def state_shape(self) -> tuple[int, ...]:
        """Shape of the state of one sequence."""

    @abstractmethod
    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        """The whole sequence, arguments checked and in the dtype of the state; None starts from zeros, at no cost."""

    def _outputs(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool
    ) -> Tensor:
        """The outputs of `_run`; a layer whose kernel can spare the final state does so here."""
        return self._run(x, state, lengths, dt, reverse)[0]

    def _run_exported(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        """`_run` in operators that exporters know."""
        start = x.new_zeros(x.shape[0], *self.state_shape) if state is None else state
        return by_steps(type(self).__name__, self._step, x, start, lengths, dt, reverse)

    @abstractmethod
    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        """One step, arguments checked and in the dtype of the state."""

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """The eigenvalues of the recurrence: of the generator in continuous time, of one step in discrete time."""

    @property
    def boundary_form(self) -> AbstractParameterization | AbstractMatrixParameterization | None:
        """The parameterization of the weight `boundary_name`."""
        if self.boundary_name is None:
            return None
        part = getattr(self, self.boundary_name)
        return part.parameterization if isinstance(part, Recurrence) else self.parameterization  # type: ignore[return-value]

    def choices(self) -> dict[str, Any]:
        """The keyword arguments, plain values all, that build a layer of this shape and these settings."""
        raise ArgumentError(f"{type(self).__name__} does not say how it is built; save its state_dict() instead")

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
        if dt is not None:
            lam = self.eigenvalues()
            return float(torch.minimum(-lam.real, (1 - (1 + dt * lam).abs()) / dt).min())
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
        if self.time == "discrete":
            return self.margin()
        if euler is not None:
            return 1 - float((1 + euler * self.eigenvalues()).abs().max())
        if dt is None:
            system = self.linear_system()
            return math.nan if system is None else 1 - float(system.eigenvalues().abs().max())
        return -float(torch.expm1(-self._margins() * dt).max())

    def _margins(self) -> Tensor:
        """That of each mode in the layer's kind of time, from its free weight; of a matrix the smallest."""
        W, form = self.recurrent_matrix(), self.boundary_form
        if W is not None:
            return torch.tensor(spectral_margin(W, self.time), dtype=torch.float64)
        part = getattr(self, str(self.boundary_name))
        return form.margin(part.free[0] if isinstance(part, Recurrence) else part)  # type: ignore[union-attr, operator]

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

    @checked
    def initial_state(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Tensor:
        """Zeros of the state's shape.

        Args:
            batch: number of sequences.
            dtype: dtype of the state; None is that of the weights, float32 where they are in half precision.
            device: device of the state; None is that of the weights.
        """
        if batch < 0:
            raise ArgumentError(f"batch must not be negative, came {batch}")
        weight = self._weight()
        kind = dtype or state_dtype(weight.dtype)
        directions = (2,) if self.backward_layer is not None else ()
        return torch.zeros(*directions, batch, *self.state_shape, dtype=kind, device=device or weight.device)

    def forward(
        self,
        x: Float[Tensor, "batch time features"],
        state: Tensor | None = None,
        *,
        lengths: Lengths | None = None,
        dt: StepSize | None = None,
        resets: Bool[Tensor, "batch time"] | None = None,
        cu_seqlens: Int[Tensor, " bounds"] | None = None,
        return_state: bool = True,
    ) -> tuple[Float[Tensor, "batch time out"], Tensor | None]:
        """Outputs at all steps, and the state after each sequence's last one.

        Args:
            x: inputs (batch, time, features).
            state: state before the first step, as an earlier call returned it; None is zeros.
            lengths: number of steps of each sequence (batch,), a tensor or a list. Past its length a sequence's outputs
                are 0, and its state is the one at its end.
            dt: step size, in continuous-time layers only: a number, (time,) or (batch, time). None is the layer's own.
            resets: bool (batch, time): the state before a marked step is zero, as if a new sequence began there; a
                bidirectional layer reads each such piece from its end. Marks past a sequence's length are not read.
            cu_seqlens: int64 or int32 (sequences + 1,): several sequences in a batch of one row, sequence i from step
                cu_seqlens[i] to cu_seqlens[i + 1]; `state` then has one entry for each. Instead of lengths.
            return_state: whether the final state is wanted; otherwise None comes in its place, and S4D does not compute
                it.

        Returns outputs (batch, time, out) and the state (batch, *state_shape), with a first dimension of 2 where the
        layer is bidirectional.
        """
        self._check_input(x, ("batch", "time", "features"))
        name = type(self).__name__
        if state is not None:
            packed = None if cu_seqlens is None else len(packed_bounds(name, cu_seqlens, x)) - 1
            state = self._ready_state(x, state, packed)
        dt = self._ready_dt(x, dt)
        lengths = as_lengths(lengths, x)
        if lengths is not None:
            checks.lengths(name, lengths, x.shape[:1], x.shape[1], x.device)
        checks.flags(name, return_state=return_state)
        inner = widened(x)
        how = (lengths, dt, resets, cu_seqlens, return_state)
        with without_autocast(x):
            layer = self._in_state_dtype()
            if layer.backward_layer is None:
                y, state = layer._in_one_direction(inner, state, *how, reverse=False)
            else:
                starts = (None, None) if state is None else (state[0], state[1])
                y, ahead = layer._in_one_direction(inner, starts[0], *how, reverse=False)
                z, behind = layer.backward_layer._in_one_direction(inner, starts[1], *how, reverse=True)
                y, state = y + z, None if ahead is None or behind is None else torch.stack([ahead, behind])
        return y.to(x.dtype), state

    def _in_one_direction(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None,
        resets: Tensor | None, cu_seqlens: Tensor | None, return_state: bool, *, reverse: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Outputs and final state, None where it is not wanted; rows with resets, and packed ones, piece by piece."""
        steps = {"dt": dt} if isinstance(dt, Tensor) else {}

        def run(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor | None]:
            *own, state, lengths = rest
            arguments = (x, state, lengths, own[0] if own else dt, reverse)
            if torch.compiler.is_exporting():
                return self._run_exported(*arguments)
            return self._run(*arguments) if return_state else (self._outputs(*arguments), None)

        if resets is None and cu_seqlens is None:
            return run(x, *steps.values(), state, lengths)
        return in_pieces(
            type(self).__name__, run, {"x": x, **steps}, state, lengths=lengths, cu_seqlens=cu_seqlens,
            resets=turned(type(self).__name__, resets, x, lengths) if reverse else resets, reverse=reverse,
        )  # fmt: skip

    def step(
        self,
        x: Float[Tensor, "batch features"],
        state: Tensor | None = None,
        *,
        dt: float | Float[Tensor, " batch"] | None = None,
        resets: Bool[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch out"], Tensor]:
        """One step of the recurrence: equal to `forward` on a sequence of length 1.

        Args:
            x: inputs of this step (batch, features).
            state: state before the step; None is zeros.
            dt: step size, in continuous-time layers only: a number or (batch,). None is the layer's own.
            resets: bool (batch,): the state of a marked row is zero before the step; None marks none.

        Returns outputs (batch, out) and the state after the step.
        """
        if self.backward_layer is not None:
            name = type(self).__name__
            raise ArgumentError(f"a bidirectional {name} needs the whole sequence; use bidirectional=False")
        self._check_input(x, ("batch", "features"))
        state = self._ready_state(x, state)
        if resets is not None:
            state = cleared(type(self).__name__, state, resets)
        dt = self._ready_dt(x, dt)
        with without_autocast(x):
            y, state = self._in_state_dtype()._step(widened(x), state, dt)
        return y if y.dtype is x.dtype else y.to(x.dtype), state

    def stepper(self) -> Stepper:
        """`step` as a module of its own, to be exported: its coefficients are constants, discretised already."""
        return Stepper(self, self._weight().new_zeros(1, self.features))

    def _weight(self) -> Tensor:
        """One of the layer's own weights; `parameters()` walks all submodules, 10 us at every step of a stream."""
        for weight in self._parameters.values():
            if weight is not None:
                return weight
        raise AttributeError(f"{type(self).__name__} has no weight of its own")

    def _in_state_dtype(self) -> Self:
        """The layer itself, or its float32 twin where the weights are in half precision."""
        if self._weight().dtype not in HALF:
            return self
        return self._keep("twin", (*self.parameters(), *self.buffers()), lambda: widened_twin(self))

    def _check_input(self, x: Tensor, dims: tuple[str, ...]) -> None:
        name = type(self).__name__
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.layout is not torch.strided:
            raise DtypeError(f"{name}: expected x to be a dense real floating-point tensor, came {checks.describe(x)}")
        if x.ndim != len(dims):
            raise ShapeError(f"{name}: expected x of shape ({', '.join(dims)}), came {tuple(x.shape)}")
        if x.shape[-1] != self.features:
            raise ShapeError(f"{name}: expected {self.features} features (last dimension of x), came {tuple(x.shape)}")
        weight = self._weight()
        if x.dtype is not weight.dtype and state_dtype(x.dtype) != state_dtype(weight.dtype):
            raise DtypeError(
                f"{name}: x is {x.dtype} and the weights are {weight.dtype}; convert one: x.to(...) or layer.to(...)"
            )
        if x.device != weight.device:
            raise ArgumentError(
                f"{name}: x is on {x.device} and the weights are on {weight.device}; move x or the layer"
            )

    def _ready_state(self, x: Tensor, state: Tensor | None, sequences: int | None = None) -> Tensor:
        if state is None:
            return self.initial_state(x.shape[0], dtype=state_dtype(x.dtype), device=x.device)
        directions = (2,) if self.backward_layer is not None else ()
        expected = (*directions, x.shape[0] if sequences is None else sequences, *self.state_shape)
        name = type(self).__name__
        if not isinstance(state, Tensor) or tuple(state.shape) != expected:
            came = tuple(state.shape) if isinstance(state, Tensor) else type(state).__name__
            raise ShapeError(f"{name}: expected a state of shape {expected} for x of {tuple(x.shape)}, came {came}")
        if state.dtype != state_dtype(x.dtype):
            wanted = state_dtype(x.dtype)
            raise DtypeError(f"{name}: expected a state in {wanted} for x in {x.dtype}, came {state.dtype}")
        return state

    def _ready_dt(self, x: Tensor, dt: StepSize | None) -> Tensor | float | None:
        """A float, or a tensor of one step size for each element of x without its features."""
        if dt is None:
            return None
        name = type(self).__name__
        if self.time != "continuous":
            raise ArgumentError(f"{name} runs in discrete time and has no step size; leave dt out")
        if isinstance(dt, Tensor):
            if tuple(dt.shape) not in (tuple(x.shape[:-1]), tuple(x.shape[1:-1])) or not dt.is_floating_point():
                raise ShapeError(
                    f"{name}: expected dt as a number or a real tensor of shape {tuple(x.shape[:-1])}, "
                    f"came {checks.describe(dt)}"
                )
            if checks.readable(dt) and bool((~(dt >= 0)).any()):
                raise ArgumentError(f"{name}: expected step sizes dt >= 0, came a smallest of {float(dt.min())}")
            return dt.to(state_dtype(x.dtype)).expand(x.shape[:-1])
        if not isinstance(dt, Real) or isinstance(dt, bool) or not 0 <= dt < math.inf:
            raise ArgumentError(f"{name}: expected dt as a finite number >= 0 or a tensor, came {checks.describe(dt)}")
        return float(dt)

    def _keep(self, key: Hashable, sources: tuple[Tensor, ...], make: Callable[[], Kept]) -> Kept:
        """`make()`, kept between calls while gradients are off and nothing that it is made of has changed.

        Streaming spends most of its time on discretisation otherwise. `sources` are the layer's weights that `make`
        reads; settings, and the constants of a parameterization, are watched without being named.
        """
        kept = self.__dict__.get("_kept")
        if kept is None:
            kept = self.__dict__.setdefault("_kept", {})
        if torch.compiler.is_exporting() and key in kept:
            return kept[key][1]
        watched = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if torch.is_grad_enabled() or watched:
            return make()
        found = kept.get(key)
        if found is not None and found[0].holds(sources):
            return found[1]
        # copied before make() and compared after it: another thread may change the weights meanwhile
        witness = Witness(self, sources)
        value = make()
        if witness.holds(sources):
            if len(kept) >= MOST:
                kept.clear()
            kept[key] = (witness, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; coefficients that were made of the old one are dropped.

        In this order, and by a new dict: what a thread is making now of the old value goes into the old dict.
        """
        super().__setattr__(name, value)
        self.__dict__["_kept"] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_kept"}

    def extra_repr(self) -> str:
        return f"{self.features}, {self.state_size}, time={self.time}"


class Stepper(nn.Module):
    """`forward(x, state)` is the `step` of a layer or a stack, with the weights as they are now.

    Args:
        layer: what has the `step`.
        x: some input of one step.
    """

    def __init__(self, layer: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer).eval().requires_grad_(False)
        with torch.no_grad():
            self.layer.step(x)  # type: ignore[operator]

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One step."""
        return self.layer.step(x, state)  # type: ignore[operator]


def as_lengths(lengths: Lengths | None, like: Tensor) -> Tensor | None:
    """Lengths as a tensor where they came as a list or tuple of whole numbers; anything else is left to the checks."""
    if not isinstance(lengths, (list, tuple)):
        return lengths
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in lengths):
        raise ArgumentError(f"lengths must be whole numbers, one for each sequence, came {checks.describe(lengths)}")
    return torch.tensor(lengths, dtype=torch.int64, device=like.device)


def zero_after(y: Float[Tensor, "batch time *any"], lengths: Int[Tensor, " batch"] | None) -> Tensor:
    """`y` with zeros after the end of each sequence."""
    if lengths is None:
        return y
    inside = torch.arange(y.shape[1], device=y.device) < lengths.unsqueeze(-1)
    return torch.where(inside.unsqueeze(-1), y, y.new_zeros(()))
