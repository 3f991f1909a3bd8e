"""Subject: one face for every model that can be measured, and whether it continues from a state."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from holdfast._arguments import positive
from holdfast.errors import ArgumentError
from holdfast.memory._curve import ModelError
from holdfast.memory.huggingface import token_table
from holdfast.memory.preserve import modules_of

Layout = Literal["batch_first", "time_first"]
# what models raise on an input that they do not take
INPUT_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)
# what models call their outputs in a dict, where that also holds losses and states
OUTPUT_NAMES = ("logits", "outputs", "output", "last_hidden_state", "y")
MAX_WORK = 6e10  # weights times steps of the runs of one measurement: about a minute of a core
MAX_BATCH_NUMBERS = 1 << 26  # numbers in one batch of inputs or outputs: 256 MB in float32


class Subject:
    """A model with its layout, dtype and device; a call runs it and returns the output as (batch, time, outputs).

    Of a tuple, list or transformers output the first element counts. A model with one output may return (batch, time).
    """

    def __init__(
        self,
        model: Callable[..., Any],
        input_size: int,
        *,
        layout: Layout = "batch_first",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        double: bool = False,
    ) -> None:
        positive(input_size=input_size)
        if isinstance(model, nn.Module) and token_table(model) is not None:
            raise ModelError(
                f"expected a model that reads numbers, got {type(model).__name__} of transformers, which reads tokens; measure "
                "holdfast.memory.huggingface.FromEmbeddings(model), which reads embeddings of size .input_size"
            )
        if double and not isinstance(model, nn.Module):
            raise ArgumentError("double=True needs an nn.Module, got a function; pass dtype=torch.float64 instead")
        self.model = widened_copy(model) if double and isinstance(model, nn.Module) else model
        self.input_size = input_size
        self.time_first = layout == "time_first"
        weight = first_float(self.model)
        self.dtype = dtype or (weight.dtype if weight is not None else torch.get_default_dtype())
        self.device = torch.device(device or (weight.device if weight is not None else "cpu"))
        if not self.dtype.is_floating_point:
            raise ArgumentError(f"dtype must be a floating type, got {self.dtype}")
        # a model may say how many steps it can take, as the transformers adapter does for position embeddings
        self.longest: int | None = getattr(self.model, "longest_input", None)
        self.eps = torch.finfo(self.dtype).eps  # relative rounding; `prepare` raises it where the model rounds inside
        self.outputs = 0
        self.flat = False
        self.row_axes: Any = None  # where rows stand in the state, if the model continues from one; see `learn_state`
        refuse_time_first(self.model, self.time_first)

    def zeros(self, rows: int, steps: int) -> Float[Tensor, "rows steps inputs"]:
        return torch.zeros(rows, steps, self.input_size, dtype=self.dtype, device=self.device)

    def normal(self, rows: int, steps: int, generator: torch.Generator) -> Float[Tensor, "rows steps inputs"]:
        """Standard normal inputs, drawn on the CPU so that they are the same on every device."""
        # in float64, so that a float32 and a float64 run of one model see the same inputs up to rounding
        drawn = torch.randn(rows, steps, self.input_size, generator=generator, dtype=torch.float64)
        return drawn.to(self.device, self.dtype)

    def raw(self, x: Float[Tensor, "rows steps inputs"], state: Any = None) -> tuple[Tensor, Any]:
        """The model's first output, batch first, of whatever shape it is, and its second, if it gives two."""
        given = x.transpose(0, 1).contiguous() if self.time_first else x
        try:
            out = self.model(given) if state is None else self.model(given, state)
        except INPUT_ERRORS as error:
            raise ModelError(
                f"the model failed on an input of shape {tuple(given.shape)} "
                f"({'time, batch' if self.time_first else 'batch, time'}, features): {type(error).__name__}: {error}. "
                "Check input_size, dtype, layout, and that the model takes sequences of this length."
            ) from error
        # a state is the second of exactly two: transformers outputs and longer tuples hold other things there
        y = first_real(out)
        after = out[1] if isinstance(out, tuple) and len(out) == 2 else None
        return y.transpose(0, 1) if self.time_first and y.ndim >= 2 else y, after

    def advance(
        self, x: Float[Tensor, "rows steps inputs"], state: Any = None
    ) -> tuple[Float[Tensor, "rows steps outputs"], Any]:
        """The output from `state` on (None: from the model's own start), and the state after it."""
        y, after = self.raw(x, state)
        y = y.unsqueeze(-1) if self.flat else y
        if y.shape != (x.shape[0], x.shape[1], self.outputs):
            raise ModelError(
                f"expected outputs of shape ({x.shape[0]}, {x.shape[1]}, {self.outputs}) for an input of {x.shape[1]} "
                f"steps, got {tuple(y.shape)}; the model must return one output per step at every length"
            )
        return y, after

    def __call__(self, x: Float[Tensor, "rows steps inputs"], state: Any = None) -> Float[Tensor, "rows steps outputs"]:
        return self.advance(x, state)[0]

    def rows_at_once(self, steps: int) -> int:
        """How many rows of `steps` steps fit one batch."""
        return max(1, MAX_BATCH_NUMBERS // (steps * max(self.input_size, self.outputs, 1)))

    def affordable_rows(self, steps: int) -> int:
        """How many rows of `steps` steps take no more than about a minute; at least 2."""
        weights = sum(p.numel() for module in modules_of(self.model) for p in module.parameters())
        return max(2, int(MAX_WORK / max(weights * steps, 1)))

    def tolerance(self, y: Tensor) -> float:
        """What rounding may change in outputs like `y`: different batch shapes take different summation orders."""
        return tolerance_of(y, self._eps(y))

    def rounding(self, y: Float[Tensor, "*times outputs"]) -> Float64[Tensor, "*times"]:
        """What rounding leaves in a difference of outputs like these: 4 eps of the largest at that time."""
        return 4 * self._eps(y) * y.abs().amax(-1).double()

    def _eps(self, y: Tensor) -> float:
        return max(self.eps, torch.finfo(y.dtype).eps)


def tolerance_of(y: Tensor, eps: float) -> float:
    """2000 eps of the largest output: 2e-4 in float32, 4e-13 in float64; real dependence is of the order of y itself."""
    # a run that diverged late has a scale before that
    finite = y[torch.isfinite(y)]
    return 2000 * eps * max(float(finite.abs().max()) if finite.numel() else 0.0, torch.finfo(y.dtype).tiny)


def widened_copy(model: nn.Module) -> nn.Module:
    """A float64 copy; Module.double() leaves complex weights as they are."""
    wide = copy.deepcopy(model).double()
    for tensor in (*wide.parameters(), *wide.buffers()):
        if tensor.is_complex():
            tensor.data = tensor.data.to(torch.complex128)
    return wide


def first_float(model: Any) -> Tensor | None:
    for module in modules_of(model):
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                return tensor
    return None


def first_output(out: Any) -> Tensor:
    """The output itself, or the first tensor of a tuple, list, dict, dataclass or transformers output."""
    found = _first_tensor(out)
    if found is not None:
        return found
    raise ModelError(
        "expected the model to return a tensor (batch, time, outputs), or a tuple that begins with one, got "
        f"{type(out).__name__}; wrap the model in a function or module that selects it"
    )


def _first_tensor(out: Any) -> Tensor | None:
    if isinstance(out, Tensor):
        return out
    if hasattr(out, "to_tuple"):
        return _first_tensor(out.to_tuple()[:1])
    if isinstance(out, Mapping):
        named = [out[name] for name in OUTPUT_NAMES if name in out] or list(out.values())
        return next((found for part in named if (found := _first_tensor(part)) is not None), None)
    if isinstance(out, (tuple, list)):
        return _first_tensor(out[0]) if out else None
    if dataclasses.is_dataclass(out) and not isinstance(out, type):
        return _first_tensor({field.name: getattr(out, field.name) for field in dataclasses.fields(out)})
    return None


def first_real(out: Any) -> Tensor:
    y = first_output(out)
    if y.is_complex():
        raise ModelError(
            "expected real outputs, got complex ones; wrap the model in a function that returns real numbers"
        )
    return y if y.is_floating_point() else y.to(torch.get_default_dtype())


def refuse_time_first(model: Any, time_first: bool) -> None:
    batch_first = getattr(model, "batch_first", None)
    if isinstance(model, nn.RNNBase) and batch_first is time_first:
        wanted = "batch_first" if batch_first else "time_first"
        raise ModelError(
            f"this torch.nn.{type(model).__name__} has {batch_first=}: pass layout={wanted!r} (or build it with "
            f"batch_first={not batch_first}). Measured as it is, batch and time would be swapped."
        )


class _NoStateError(Exception):
    """What a model returned cannot be read as the state of its rows."""


def learn_state(
    subject: Subject, x: Float[Tensor, "rows steps inputs"], y: Float[Tensor, "rows steps outputs"]
) -> None:
    """Sets `subject.row_axes` if `model(rest, state)` continues from `_, state = model(first)` to the outputs y of x.

    holdfast's layers and stacks do, and torch's RNN, GRU and LSTM. Tried with the state of one row given to two, as the
    probes will; whatever fails means that the model has no such state.
    """
    half = x.shape[1] // 2
    first, rest = x[:, :half].contiguous(), x[:1, half:].expand(2, -1, -1).contiguous()
    try:
        _, one = subject.advance(first[:1])
        _, several = subject.advance(first)
        # where one row and three differ in shape is the axis of rows, which torch's LSTM has second
        axes = _map(_row_axis, one, several)
        continued = subject(rest, spread(one, axes, 2))
    except (ModelError, _NoStateError):
        return
    if bool(((continued - y[:1, half:]).abs() <= subject.tolerance(y)).all()):
        subject.row_axes = axes


def spread(state: Any, axes: Any, rows: int) -> Any:
    """The state of one row as that of `rows` equal ones."""
    return _map(lambda one, axis: torch.repeat_interleave(one, rows, dim=axis), state, axes)


def are_alike(state: Any, other: Any) -> bool:
    """Whether two states have the same tensors: shapes, dtypes and devices."""

    def compare(one: Tensor, two: Any) -> None:
        kinds = [(part.shape, part.dtype, part.device) for part in (one, two) if isinstance(part, Tensor)]
        if len(kinds) < 2 or kinds[0] != kinds[1] or one.layout != torch.strided:
            raise _NoStateError

    try:
        _map(compare, state, other)
    except (_NoStateError, TypeError):
        return False
    return True


def as_numbers(state: Any, axes: Any) -> Float[Tensor, "rows numbers"]:
    """The state of each row as a list of real numbers; a complex one counts as two."""
    parts: list[Tensor] = []
    _map(lambda part, axis: parts.append(_real(part.movedim(axis, 0)).flatten(1)), state, axes)
    return torch.cat(parts, 1)


def from_numbers(numbers: Float[Tensor, "rows numbers"], like: Any, axes: Any) -> Any:
    """The state whose rows `as_numbers` turned into these; `like` is a state of any number of rows."""
    left = numbers

    def take(part: Tensor, axis: int) -> Tensor:
        nonlocal left
        shape = _real(part.movedim(axis, 0)).shape[1:]
        own, left = left[:, : shape.numel()], left[:, shape.numel() :]
        own = own.reshape(-1, *shape).to(part.real.dtype)
        return (torch.view_as_complex(own.contiguous()) if part.is_complex() else own).movedim(0, axis).contiguous()

    return _map(take, like, axes)


def _real(part: Tensor) -> Tensor:
    return torch.view_as_real(part) if part.is_complex() else part


def _row_axis(one: Tensor, several: Tensor) -> int:
    apart = [axis for axis, (a, b) in enumerate(zip(one.shape, several.shape, strict=False)) if a != b]
    if one.ndim != several.ndim or len(apart) != 1 or one.shape[apart[0]] != 1:
        raise _NoStateError
    return apart[0]


def _map(function: Callable[[Any, Any], Any], state: Any, other: Any) -> Any:
    """`function` over the tensors of two nests of tuples and lists of one shape."""
    if isinstance(state, Tensor):
        return function(state, other)
    if isinstance(state, (tuple, list)) and len(state) == len(other) and state:
        return type(state)([_map(function, a, b) for a, b in zip(state, other, strict=True)])
    raise _NoStateError
