"""An unknown recurrence, by the Jacobian of its step: described by its user, or model(x, state)."""

from __future__ import annotations

import copy
import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from holdfast.errors import ArgumentError
from holdfast.nn._call_arguments import known_size
from holdfast.nn._views.rest import Driven, StepMap
from holdfast.nn._views.view import MemoryWeight, NonlinearView

RANDOM_STATES = 3  # random states at which a weight may show that the Jacobian depends on it
PROBED_STEPS = 2  # after which a model has to continue from its state
# what modules raise on arguments that they do not take, and torch.func on operators that it does not vectorize
MODEL_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError, AttributeError, KeyError)
Step = Callable[[Any, Any], Any]


class StepFunction(nn.Module):
    """A model together with the step of its recurrence, so that everything that reads recurrences can read this one.

    Called, it is the model itself. `certify`, `GradientMonitor`, `parameter_groups` and `scope="recurrent"` take it in the
    place of the model: eigenvalues are those of the Jacobian where the state rests on `x`, and the recurrent weights those
    on which that Jacobian depends, found by its gradient.

    Args:
        module: the model; its weights are those that the step uses.
        x: the input of one step on which the state rests, zeros mostly, as the step takes it.
        state: a state of one row, a tensor or a nest of them, as the step takes it.
        step: `step(x, state)` gives the next state; None is `module(x, state)[1]`, of a model that returns
            (outputs, state).

    Assumed unchecked: the step depends on its arguments and on the weights of the module only.

    Returns:
        called, what the model itself returns.

    Raises:
        ArgumentError: when it is read, a step whose next state has another size.

    Example:
        >>> import torch, holdfast
        >>> cell = torch.nn.GRUCell(2, 8)
        >>> own = holdfast.nn.StepFunction(cell, torch.zeros(1, 2), torch.zeros(1, 8), lambda x, state: cell(x, state))
        >>> holdfast.certify(own).status
        'stable'
    """

    def __init__(self, module: nn.Module, x: Any, state: Any, step: Step | None = None) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ArgumentError(f"module must be an nn.Module, got {module!r}")
        self.module = module
        self._described = (x, state, step)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own outputs."""
        return self.module(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> StepFunction:
        """A copy whose step runs the copied module: Python copies no function, so a closure would keep the original."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        x, state, step = self._described
        copied.__dict__ = copy.deepcopy({**self.__dict__, "_described": None}, memo)
        copied._described = (copy.deepcopy(x, memo), copy.deepcopy(state, memo), _rebound(step, memo))
        return copied

    def view(self, path: str) -> JacobianView:
        """The view of its recurrence, for a StepFunction at `path` of a model."""
        return JacobianView(path, self.module, *self._described, prefix=f"{path}.module." if path else "module.")


def _rebound(step: Any, memo: dict[int, Any]) -> Any:
    """The step on copies: a function that encloses or names objects copied in `memo` gets those copies."""
    if not isinstance(step, types.FunctionType):
        return copy.deepcopy(step, memo)

    def now(held: Any) -> Any:
        return memo.get(id(held), held)

    names = {name: step.__globals__[name] for name in step.__code__.co_names if name in step.__globals__}
    replaced = {name: now(held) for name, held in names.items() if now(held) is not held}
    cells = tuple(types.CellType(now(cell.cell_contents)) for cell in step.__closure__ or ())
    defaults = tuple(map(now, step.__defaults__ or ()))
    copied = types.FunctionType(step.__code__, {**step.__globals__, **replaced}, step.__name__, defaults, cells)
    copied.__kwdefaults__ = {name: now(held) for name, held in (step.__kwdefaults__ or {}).items()}
    return copied


class _Stepping(nn.Module):
    """One step as a module, so that its weights can be replaced by others."""

    def __init__(self, module: nn.Module, step: Step | None) -> None:
        super().__init__()
        self.module, self.step = module, step

    def forward(self, x: Any, state: Any) -> Any:
        return self.module(x, state)[1] if self.step is None else self.step(x, state)


class JacobianView(NonlinearView):
    """A recurrence of which only one step is known; its weights are found when they are asked for."""

    def __init__(
        self, path: str, module: nn.Module, x: Any, state: Any, step: Step | None = None, *, prefix: str = ""
    ) -> None:
        super().__init__(path, module, ())
        self.kind = f"{type(module).__name__}, by the Jacobian of its step"
        self.crosses = True  # nothing is known that would hold it
        self.remarks = (
            "local: the numbers hold for small deviations from the equilibrium; only one step of this recurrence is known",
        )
        self._prefix, self._x = prefix, x
        self._stepping = _Stepping(module, step)
        parts, self._nest = tree_flatten(state)
        if not parts or not all(isinstance(part, Tensor) for part in parts):
            raise ArgumentError(f"state must be a tensor or a nest of tensors, got {state!r}")
        self._parts: list[Tensor] = parts

    @property
    def weights(self) -> tuple[MemoryWeight, ...]:
        """Those on which the Jacobian of the step depends."""
        return self._dependents

    @property
    def owner(self) -> str:
        return self._prefix.removesuffix(".")

    def step_map(self) -> StepMap:
        tensors = self._tensors()
        size = len(_flat(self._parts))

        def one(h: Tensor) -> Tensor:
            return self._step(tensors, h)

        def rows(h: Tensor) -> Tensor:
            flat = h.reshape(-1, size)
            moved = vmap(one)(flat) if vectorised else torch.stack([one(row) for row in flat])
            return moved.reshape(h.shape)

        def moved(h: Tensor) -> Tensor:
            return rows(h) - h

        zero = torch.zeros(size, dtype=torch.float64, device="cpu")
        with torch.no_grad():
            self._check(tensors, zero)
            several = zero.expand(2, -1)
            # asked once: some operators have no batching rule, or run row by row under vmap
            vectorised = _works(lambda: (vmap(one)(several), vmap(jacrev(one))(several)))
        return StepMap(rows, moved, size, "discrete", vectorised=vectorised)

    def driven(self) -> Driven | None:
        """Of a step on inputs (1, 1, features), one time of what the model reads; None for other descriptions."""
        x = self._x
        if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[:2] != (1, 1):
            return None
        tensors = self._tensors()

        def step(h: Tensor, u: Tensor) -> Tensor:
            rows = zip(h, u, strict=True)
            return torch.stack([self._step(tensors, row, drive.reshape(1, 1, -1)) for row, drive in rows])

        return Driven(_double, step, len(_flat(self._parts)))

    def _tensors(self) -> dict[str, Tensor]:
        """The weights and buffers in float64, as they are now."""
        every = dict(self._stepping.named_parameters()) | dict(self._stepping.named_buffers())
        return {name: _double(tensor.detach()).clone() for name, tensor in every.items()}

    def _step(self, tensors: dict[str, Tensor], h: Tensor, x: Tensor | None = None) -> Tensor:
        state = _nested(h, self._parts, self._nest)
        x = torch.utils._pytree.tree_map_only(Tensor, _double, self._x if x is None else x)
        # a module may write into its buffers: into copies of them
        tensors = tensors | {name: tensors[name].clone() for name, _ in self._stepping.named_buffers()}
        with _evaluating(self._stepping):
            after = functional_call(self._stepping, tensors, (x, state))
        return _flat(tree_flatten(after)[0])

    def _check(self, tensors: dict[str, Tensor], zero: Tensor) -> None:
        try:
            size = len(self._step(tensors, zero))
        except MODEL_ERRORS as error:
            raise ArgumentError(
                f"{self.kind}: the step failed in float64 on the x and state that describe it: {error}"
            ) from error
        if size != len(zero):
            raise ArgumentError(f"{self.kind}: expected a next state of {len(zero)} numbers, got {size}")

    @cached_property
    def _dependents(self) -> tuple[MemoryWeight, ...]:
        """d(u' J v)/dw of random u, v and states: zero for every w that the Jacobian J does not depend on."""
        names = dict(self._stepping.named_parameters())
        tensors = self._tensors()
        leaves = {name: tensors[name].requires_grad_() for name in names}
        generator = torch.Generator().manual_seed(0)
        size = len(_flat(self._parts))
        self._check(tensors, torch.zeros(size, dtype=torch.float64, device="cpu"))
        seen: set[str] = set()
        for _ in range(RANDOM_STATES):
            # random ones: a slope that is 0 for all of these is 0 everywhere, but for chance
            h, u, v = 2 * torch.rand(3, size, generator=generator, dtype=torch.float64, device="cpu") - 1
            with torch.enable_grad():
                h.requires_grad_()
                (row,) = torch.autograd.grad(self._step(tensors, h), h, u, create_graph=True, materialize_grads=True)
                # J is constant here: no weight decides it at this state
                if not row.requires_grad:
                    continue
                slopes = torch.autograd.grad((row * v).sum(), [*leaves.values()], allow_unused=True)
            seen |= {name for name, slope in zip(leaves, slopes, strict=True) if slope is not None and slope.any()}
        return tuple(self._weight(name.removeprefix("module.")) for name in names if name in seen)

    def _weight(self, name: str) -> MemoryWeight:
        parent, _, own = name.rpartition(".")
        return MemoryWeight(self._prefix + name, self.module.get_submodule(parent), own, "step_matrix")


def stateful_view(model: nn.Module) -> JacobianView | None:
    """The view of a model that obeys `model(x, state) -> (y, state)` on (batch, time, features); None for others."""
    size = known_size(model)
    weight = next(model.parameters(), None)
    if size is None or weight is None or weight.is_meta or len(inspect.signature(model.forward).parameters) < 2:
        return None
    try:
        # only a run shows that a second argument is a state: it has to continue where the first half ended
        with torch.no_grad(), _evaluating(model), torch.random.fork_rng(devices=[]):
            state = _carried_state(model, torch.randn(1, 2 * PROBED_STEPS, size, device="cpu").to(weight))
    except MODEL_ERRORS:
        return None
    if state is None:
        return None
    return JacobianView("", model, weight.new_zeros(1, 1, size), state)


def _carried_state(model: nn.Module, x: Tensor) -> Any:
    """Zeros like the state with which the second half of x goes on as in one run; None where none is carried."""

    def run(*arguments: Any) -> tuple[Tensor, Any]:
        y, state = functional_call(model, {name: buffer.clone() for name, buffer in model.named_buffers()}, arguments)
        return y, state

    first, second = x.chunk(2, 1)
    whole, (_, state), (alone, _) = run(x)[0][:, PROBED_STEPS:], run(first), run(second)
    (continued, after), scale = run(second, state), float(whole.abs().max())
    (parts, nest), (later, same) = tree_flatten(state), tree_flatten(after)
    if nest != same or not parts or not all(isinstance(part, Tensor) for part in (*parts, *later)):
        return None
    if [part.shape for part in parts] != [part.shape for part in later]:
        return None  # it grows from step to step: a cache and not a state
    # a state is one that the outputs continue from, and not the same without; 1e-4 is a hundred roundings of float32
    goes_on = float((continued - whole).abs().max()) <= 1e-4 * scale < float((alone - whole).abs().max())
    return tree_unflatten([torch.zeros_like(part) for part in parts], nest) if goes_on else None


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout, and back."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _works(run: Callable[[], Any]) -> bool:
    """Whether it runs without an error, and without the warning that a fused operator is run row by row."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run()
    except (*MODEL_ERRORS, UserWarning):
        return False
    return True


def _double(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _flat(parts: list[Tensor]) -> Tensor:
    """The numbers of a state in a row, on the CPU; a complex one counts as two."""
    real = [torch.view_as_real(part) if part.is_complex() else part for part in parts]
    return torch.cat([part.reshape(-1) for part in real]).double().cpu()


def _nested(h: Tensor, like: list[Tensor], nest: TreeSpec) -> Any:
    """The state of these numbers."""
    parts = []
    for part in like:
        count = part.numel() * (2 if part.is_complex() else 1)
        own, h = h[:count].to(part.device), h[count:]
        own = torch.view_as_complex(own.reshape(*part.shape, 2)) if part.is_complex() else own.reshape(part.shape)
        parts.append(own)
    return tree_unflatten(parts, nest)
