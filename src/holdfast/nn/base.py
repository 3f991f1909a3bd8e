"""The contract of every recurrent layer: states in and out, steps, padding, irregular time, both directions.

`y, state = layer(x, state=None, *, lengths=None, dt=None)` with x (batch, time, features);
`y_t, state = layer.step(x_t, state)` is the same recurrence one step at a time.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from holdfast._types import Time
from holdfast.errors import ArgumentError, DtypeError, ShapeError
from holdfast.kernels import checks, memory
from holdfast.nn.system import LinearSystem, RateNetwork

Kept = TypeVar("Kept")
_AS_IT_IS = nullcontext()
StepSize = float | Float[Tensor, " time"] | Float[Tensor, "batch time"]


class AbstractRecurrent(nn.Module, ABC):
    """A recurrent layer. A final class gives `state_shape`, `_run`, `_step` and names its recurrent weights.

    Inputs in bfloat16 or float16 are computed with a float32 state and come out in their own dtype. With
    `bidirectional=True` a second set of weights reads the sequence from its end, the two outputs are added, and the
    state has a first dimension of 2 (forward, backward).
    """

    # the weights that decide the eigenvalues: they get their own learning rate and no weight decay
    recurrent_names: ClassVar[tuple[str, ...]]
    # whether forward runs a kernel of its own, which torch.func.vmap cannot vectorise
    fused: ClassVar[bool] = True
    time: Time

    def __init__(self, features: int, state_size: int, *, bidirectional: bool, **choices: Any) -> None:
        super().__init__()
        for name, size in (("features", features), ("state_size", state_size)):
            if not isinstance(size, int) or size < 1:
                raise ArgumentError(f"{name} must be a whole number above 0, came {size!r}")
        self.features = features
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

    @abstractmethod
    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        """One step, arguments checked and in the dtype of the state."""

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """The eigenvalues of the recurrence: of the generator in continuous time, of one step in discrete time."""

    def linear_system(self) -> LinearSystem | None:
        """One step as matrices, where the state moves linearly and by the same step each time; else None."""
        return None

    def rate_network(self) -> RateNetwork | None:
        """The weights of dh/dt = sigma(W h + U x + b), where that is what the layer computes; else None."""
        return None

    def initial_state(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Tensor:
        """Zeros of the state's shape, in the dtype of the weights unless said otherwise."""
        weight = self._weight()
        kind = dtype or _state_dtype(weight.dtype)
        directions = (2,) if self.backward_layer is not None else ()
        return torch.zeros(*directions, batch, *self.state_shape, dtype=kind, device=device or weight.device)

    def forward(
        self,
        x: Float[Tensor, "batch time features"],
        state: Tensor | None = None,
        *,
        lengths: Int[Tensor, " batch"] | None = None,
        dt: StepSize | None = None,
    ) -> tuple[Float[Tensor, "batch time out"], Tensor]:
        """Outputs and the state after each sequence's last step; past its length a sequence's outputs are 0."""
        self._check_input(x, ("batch", "time", "features"))
        if state is not None:
            state = self._ready_state(x, state)
        dt = self._ready_dt(x, dt)
        if lengths is not None:
            checks.lengths(type(self).__name__, lengths, x.shape[:1], x.shape[1], x.device)
        inner = _widened(x)
        with _exact(x):
            if self.backward_layer is None:
                y, state = self._run(inner, state, lengths, dt, False)
            else:
                starts = (None, None) if state is None else (state[0], state[1])
                y, ahead = self._run(inner, starts[0], lengths, dt, False)
                z, behind = self.backward_layer._run(inner, starts[1], lengths, dt, True)
                y, state = y + z, torch.stack([ahead, behind])
        return y.to(x.dtype), state

    def step(
        self,
        x: Float[Tensor, "batch features"],
        state: Tensor | None = None,
        *,
        dt: float | Float[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch out"], Tensor]:
        """One step of the recurrence: equal to `forward` on a sequence of length 1."""
        if self.backward_layer is not None:
            name = type(self).__name__
            raise ArgumentError(f"a bidirectional {name} needs the whole sequence; use bidirectional=False")
        self._check_input(x, ("batch", "features"))
        state = self._ready_state(x, state)
        dt = self._ready_dt(x, dt)
        with _exact(x):
            y, state = self._step(_widened(x), state, dt)
        return y if y.dtype is x.dtype else y.to(x.dtype), state

    def stepper(self) -> Stepper:
        """`step` as a module of its own, to be exported: its coefficients are constants, discretised already."""
        return Stepper(self)

    def _weight(self) -> Tensor:
        """One of the layer's own weights; `parameters()` walks all submodules, 10 us at every step of a stream."""
        for weight in self._parameters.values():
            if weight is not None:
                return weight
        raise AttributeError(f"{type(self).__name__} has no weight of its own")

    def _check_input(self, x: Tensor, dims: tuple[str, ...]) -> None:
        name = type(self).__name__
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise DtypeError(f"{name}: expected x to be a real floating-point tensor, came {checks.describe(x)}")
        if x.ndim != len(dims):
            raise ShapeError(f"{name}: expected x of shape ({', '.join(dims)}), came {tuple(x.shape)}")
        if x.shape[-1] != self.features:
            raise ShapeError(f"{name}: expected {self.features} features (last dimension of x), came {tuple(x.shape)}")
        weight = self._weight()
        if x.dtype is not weight.dtype and _state_dtype(x.dtype) != _state_dtype(weight.dtype):
            raise DtypeError(
                f"{name}: x is {x.dtype} and the weights are {weight.dtype}; convert one: x.to(...) or layer.to(...)"
            )

    def _ready_state(self, x: Tensor, state: Tensor | None) -> Tensor:
        if state is None:
            return self.initial_state(x.shape[0], dtype=_state_dtype(x.dtype), device=x.device)
        directions = (2,) if self.backward_layer is not None else ()
        expected = (*directions, x.shape[0], *self.state_shape)
        name = type(self).__name__
        if not isinstance(state, Tensor) or tuple(state.shape) != expected:
            came = tuple(state.shape) if isinstance(state, Tensor) else type(state).__name__
            raise ShapeError(f"{name}: expected a state of shape {expected} for x of {tuple(x.shape)}, came {came}")
        if state.dtype != _state_dtype(x.dtype):
            wanted = _state_dtype(x.dtype)
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
            return dt.to(_state_dtype(x.dtype)).expand(x.shape[:-1])
        if not dt >= 0:
            raise ArgumentError(f"{name}: expected a step size dt >= 0, came {dt!r}")
        return float(dt)

    def _keep(self, name: str, sources: tuple[Tensor, ...], make: Callable[[], Kept]) -> Kept:
        """`make()`, kept between calls while gradients are off and the `sources` hold the same numbers.

        Streaming spends most of its time on discretisation otherwise. Contents are compared, not version counters:
        those miss a change through `.data`.
        """
        kept = self.__dict__.setdefault("_kept", {})
        if torch.compiler.is_exporting() and name in kept:
            return kept[name][1]
        watched = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if torch.is_grad_enabled() or watched:
            return make()
        if name in kept:
            before, value = kept[name]
            if before.equal(sources):
                return value
        value = make()
        kept[name] = (memory.Copies(sources), value)
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_kept"}

    def extra_repr(self) -> str:
        return f"{self.features}, {self.state_size}, time={self.time}"


class Stepper(nn.Module):
    """`forward(x, state)` is the layer's `step`, with the weights as they are now."""

    def __init__(self, layer: AbstractRecurrent) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer).eval().requires_grad_(False)
        weight = next(layer.parameters())
        with torch.no_grad():
            self.layer.step(weight.new_zeros(1, layer.features))

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        return self.layer.step(x, state)


def _state_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _widened(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _exact(x: Tensor) -> AbstractContextManager[Any]:
    # under autocast a recurrence would run on rounded coefficients: 1 - 2^-9 is the nearest bfloat16 below 1
    kind = x.device.type
    return torch.autocast(device_type=kind, enabled=False) if torch.is_autocast_enabled(kind) else _AS_IT_IS


def zero_after(y: Float[Tensor, "batch time *any"], lengths: Int[Tensor, " batch"] | None) -> Tensor:
    """`y` with zeros after the end of each sequence."""
    if lengths is None:
        return y
    inside = torch.arange(y.shape[1], device=y.device) < lengths.unsqueeze(-1)
    return torch.where(inside.unsqueeze(-1), y, y.new_zeros(()))


def uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """A weight drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), torch's rule for linear layers."""
    return nn.Parameter(torch.empty(*shape).uniform_(-(fan_in**-0.5), fan_in**-0.5))


def as_eigenvalues(given: Tensor, shape: tuple[int, ...], *, real: bool, layer: str) -> Tensor:
    """Checks eigenvalues that a user gave: shape, and real where the layer's are."""
    if tuple(given.shape) != shape:
        raise ShapeError(f"{layer}: expected eigenvalues of shape {shape}, came {tuple(given.shape)}")
    if real and given.is_complex():
        if bool((given.imag != 0).any()):
            raise ArgumentError(f"{layer} has real eigenvalues; came some with an imaginary part")
        given = given.real
    return given.detach()
