"""The contract of every recurrent layer: states in and out, steps, padding, irregular time, both directions.

`y, state = layer(x, state=None, *, lengths=None, dt=None, resets=None, cu_seqlens=None, return_state=True)` with x
(batch, time, features);
`y_t, state = layer.step(x_t, state)` is the same recurrence one step at a time.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast.errors import ArgumentError
from holdfast.kernels._common import checks
from holdfast.kernels._common.backends import takes_resets
from holdfast.kernels._common.segments import Cuts, cleared, in_pieces, packed_bounds, turned
from holdfast.nn._call_arguments import Lengths, StepSize, as_lengths, as_step_size, check_input, check_state
from holdfast.nn._described import Described
from holdfast.nn._export_loop import by_steps
from holdfast.nn._kept_coefficients import Keeping
from holdfast.nn._precision import HALF_DTYPES, entering, state_dtype, widened, widened_twin, without_autocast
from holdfast.parameterizations import AbstractParameterization
from holdfast.parameterizations._saved import held_by, other_form


class _How(NamedTuple):
    """How `forward` runs over its inputs, in both directions alike; its arguments, checked."""

    lengths: Tensor | None
    dt: Tensor | float | None
    resets: Tensor | None
    cu_seqlens: Tensor | None
    return_state: bool


class AbstractRecurrent(Keeping, Described):
    """A recurrent layer. A final class gives `state_shape`, `_run`, `_step` and names its recurrent weights.

    The state is float32 where inputs or weights are bfloat16 or float16, or autocast is on; outputs have the dtype of the
    input. On a CPU all is computed in float32 then, on a GPU the projections of a layer that `takes_half` run in half
    precision.

    Args:
        features: number of input features.
        state_size: number of states, as the layer counts them.
        bidirectional: a second set of weights reads the sequence from its end, the two outputs are added, and the state
            has a first dimension of 2 (forward, backward).
        device: of the weights; None is the default one. Final classes take it, and `dtype`, and are `placeable`.
        dtype: of the weights, a floating one; None is the default one.
        choices: the layer's other keyword arguments, to build that second set; `out_features` among them is the number
            of outputs, None is `features`.
    """

    takes_half: ClassVar[bool] = False  # whether `_run` takes sequences in half precision, which it is given on a GPU

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
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The whole sequence, arguments checked; x in the dtype of the state, or lower if the class `takes_half`.

        No state starts from zeros, at no cost. The state is zero before each step that `resets` marks, which are given only
        where `_masks_resets`: nothing is cut, and no value is read back from a GPU.
        """

    def _outputs(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool
    ) -> Tensor:
        """The outputs of `_run`; a layer whose kernel can spare the final state does so here."""
        return self._run(x, state, lengths, dt, reverse)[0]

    def _masks_resets(self) -> bool:
        """Whether `_run` takes resets, by a kernel that has them as a mask; otherwise sequences are cut at the marks."""
        return False

    def _run_exported(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        """`_run` in operators that exporters know; what does not change in time is computed once, before the loop."""
        start = x.new_zeros(x.shape[0], *self.state_shape) if state is None else state
        self._forget()  # numbers that a stream left behind would be constants, which a traced loop does not take
        try:
            with torch.no_grad():
                some = x.new_ones(x.shape[0]) if isinstance(dt, Tensor) else dt
                self._step(x.new_zeros(x.shape[0], self.features), start, some)
            return by_steps(type(self).__name__, self._step, x, start, lengths, dt, reverse)
        finally:
            self._forget()

    @abstractmethod
    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        """One step, arguments checked and in the dtype of the state."""

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
            raise ArgumentError(f"batch must not be negative, got {batch}")
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
            lengths: number of steps of each sequence (batch,), a tensor, an array or a list. Past its length a sequence's
                outputs are 0, and its state is the one at its end.
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
        name = type(self).__name__
        # before directions and pieces part, so that a mistake is named as the caller made it
        check_input(name, x, ("batch", "time", "features"), self.features, self._weight())
        if state is not None:
            packed = None if cu_seqlens is None else len(packed_bounds(name, cu_seqlens, x)) - 1
            state = self._ready_state(x, state, packed)
        dt = as_step_size(name, x, dt, self.time)
        lengths = as_lengths(lengths, x)
        if lengths is not None:
            checks.lengths(name, lengths, x.shape[:1], x.shape[1], x.device)
        checks.flags(name, return_state=return_state)
        inner = entering(x) if self.takes_half else widened(x)
        how = _How(lengths, dt, resets, cu_seqlens, return_state)
        with without_autocast(x):
            # a float32 twin of half-precision weights: factors near 1 have no digits in bfloat16
            layer = self._in_state_dtype()
            if layer.backward_layer is None:
                y, state = layer._in_one_direction(inner, state, how, reverse=False)
            else:
                starts = (None, None) if state is None else (state[0], state[1])
                y, ahead = layer._in_one_direction(inner, starts[0], how, reverse=False)
                z, behind = layer.backward_layer._in_one_direction(inner, starts[1], how, reverse=True)
                y, state = y + z, None if ahead is None or behind is None else torch.stack([ahead, behind])
        return y.to(x.dtype), state

    def _in_one_direction(
        self, x: Tensor, state: Tensor | None, how: _How, *, reverse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs and final state, None where it is not wanted; rows with resets, and packed ones, piece by piece."""

        def run(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor | None]:
            *own, state, lengths = rest
            arguments = (x, state, lengths, own[0] if own else how.dt, reverse)
            if torch.compiler.is_exporting():
                return self._run_exported(*arguments)
            return self._run(*arguments) if how.return_state else (self._outputs(*arguments), None)

        if how.resets is None and how.cu_seqlens is None:
            return run(x, state, how.lengths)
        # a step size for every step is cut like the inputs; a number goes to all pieces as it is
        steps = {"dt": how.dt} if isinstance(how.dt, Tensor) else {}
        name = type(self).__name__
        # marks say where a piece begins; read from the end it begins where the next one was marked
        marks = turned(name, how.resets, x, how.lengths) if reverse else how.resets
        masked = self._masks_resets() and takes_resets(x, "auto", "scan") and not torch.compiler.is_exporting()
        if marks is not None and how.cu_seqlens is None and masked:
            checks.resets(name, marks, x.shape[:2], x.device)
            y, last = self._run(x, state, how.lengths, how.dt, reverse, marks)
            return y, last if how.return_state else None
        return in_pieces(name, run, {"x": x, **steps}, state, Cuts(how.lengths, marks, how.cu_seqlens, reverse))

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
        name = type(self).__name__
        if self.backward_layer is not None:
            raise ArgumentError(
                f"a bidirectional {name} has no step, it needs the whole sequence; use bidirectional=False"
            )
        check_input(name, x, ("batch", "features"), self.features, self._weight())
        state = self._ready_state(x, state)
        if resets is not None:
            state = cleared(name, state, resets)
        dt = as_step_size(name, x, dt, self.time)
        with without_autocast(x):
            y, state = self._in_state_dtype()._step(widened(x), state, dt)
        # `to` takes 0.9 us also where there is nothing to convert: a fortieth of a step
        return y if y.dtype is x.dtype else y.to(x.dtype), state

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Free weights w of another parameterization become those of this one, for the same eigenvalues."""
        f, key = getattr(self, "parameterization", None), f"{prefix}w"
        if isinstance(f, AbstractParameterization) and key in state_dict:
            saved = other_form(state_dict, f"{prefix}parameterization.", f)
            if saved is not None:
                fitted, (state_dict[key],) = held_by(f, saved(state_dict[key]), key)
                state_dict[f"{prefix}parameterization._extra_state"] = fitted.get_extra_state()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def stepper(self) -> Stepper:
        """`step` as a module of its own, to be exported: its coefficients are constants, discretized already."""
        return Stepper(self, self._weight().new_zeros(1, self.features))

    def _settle_(self) -> None:
        """Materializes what is computed from free weights by operators that ONNX lacks; for `exportable`."""

    def _ready_state(self, x: Tensor, state: Tensor | None, sequences: int | None = None) -> Tensor:
        """The state before the first step: the given one, checked, or zeros."""
        if state is None:
            return self.initial_state(x.shape[0], dtype=state_dtype(x.dtype), device=x.device)
        directions = (2,) if self.backward_layer is not None else ()
        expected = (*directions, x.shape[0] if sequences is None else sequences, *self.state_shape)
        check_state(type(self).__name__, x, state, expected)
        return state

    def _weight(self) -> Tensor:
        """One of the layer's own weights; `parameters()` walks all submodules, 10 us at every step of a stream."""
        for weight in self._parameters.values():
            if weight is not None:
                return weight
        raise AttributeError(f"{type(self).__name__} has no weight of its own")

    def _in_state_dtype(self) -> Self:
        """The layer itself, or its float32 twin where the weights are in half precision."""
        weight = self._weight()
        checks.local(type(self).__name__, "the weights", weight)
        if weight.dtype not in HALF_DTYPES:
            return self
        return self._keep("twin", (*self.parameters(), *self.buffers()), lambda: widened_twin(self))

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
        # self.layer would ask nn.Module.__getattr__, 0.7 us of the 6 that a small step takes
        return self._modules["layer"].step(x, state)  # type: ignore[union-attr, operator]


def zero_after(y: Float[Tensor, "batch time *any"], lengths: Int[Tensor, " batch"] | None) -> Tensor:
    """`y` with zeros after the end of each sequence."""
    if lengths is None:
        return y
    inside = torch.arange(y.shape[1], device=y.device) < lengths.unsqueeze(-1)
    return torch.where(inside.unsqueeze(-1), y, y.new_zeros(()))
