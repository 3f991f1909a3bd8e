"""Swap the parameterization of a model's recurrent weights without changing what the model computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError, listed, unknown_name
from holdfast.nn import RecurrenceView, recurrences
from holdfast.nn._views.stated import stated_weight
from holdfast.nn._views.view import MemoryWeight
from holdfast.parameterizations import AbstractParameterization
from holdfast.parameterizations import names as known_names
from holdfast.parameterizations._saved import relative_distance
from holdfast.stability._checkpoints import is_stabilized, save_as_before, save_plainly
from holdfast.stability._plans import Plan, Wanted, plan_weight

Chosen = tuple[MemoryWeight, RecurrenceView | None]


@dataclass(frozen=True)
class Stabilized:
    """What `stabilize` did; `undo()` takes it back.

    Args:
        changed: path of each changed weight and its new parameterization.
        changes: how far its matrix (or its eigenvalues) moved, relative to its spectral norm: a rounding, unless
            `allow_change=True` had to move it.
        notes: what was left as it is, and what the change does not help against.
        _undo: the steps that `undo` takes.
    """

    changed: dict[str, nn.Module]
    changes: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _undo: tuple[Callable[[], None], ...] = ()

    def undo(self) -> None:
        """Puts plain weights back that hold the present values."""
        for step in reversed(self._undo):
            step()


@checked
def stabilize(
    model: nn.Module,
    parameterization: str | AbstractParameterization = "best",
    names: Sequence[str] | None = None,
    *,
    time: Time | None = None,
    allow_change: bool = False,
) -> Stabilized:
    """Gives the recurrent weights of `model` a stable parameterization, in place; its outputs stay the same.

    Known: holdfast's layers, `torch.nn.RNN` (weight_hh), and Mamba, RWKV, S4D and S5 of other libraries, as
    `holdfast.recurrences` finds them. Afterwards, for every finite value of the free weights, in their own dtype:

    - eigenvalues (`parameterization`, constants fitted to the present ones with room) are stable;
    - a dense W of a linear recurrence (the complete form) has stable eigenvalues;
    - step sizes and frequencies stay where products are finite: dt in [1e-12, 1e6], rates and frequencies below 1e12;
    - a torch.nn.RNN or RNNCell, tanh or ReLU (the contraction form), brings any two states that see the same input nearer at
      each step, and its state is bounded by its inputs;
    - a layer that steps by Euler's rule (dense W) comes to rest on a constant input, at steps up to its dt.

    The other weights of the model are not bounded: a readout may still grow without bound. Gates of LSTM and GRU are
    left alone, see `notes` of the result.

    All or nothing: where one weight is refused (not stable, computed from other weights, on the meta device, sharded,
    shared with something else, stabilized already) none is changed. Recurrences that share a weight continue sharing it, and
    what is frozen stays frozen. State dicts with plain names load into the stabilized model, `save_pretrained` of a
    transformers model writes plain weights, and `holdfast.stability.plain_state_dict` gives them.

    Args:
        model: the model, changed in place.
        parameterization: of eigenvalues, by name or as an object.
        names: paths of the weights to change instead, of any module: a square matrix is taken as a dense W of a linear
            recurrence, anything else as eigenvalues.
        time: "continuous" or "discrete", where the values of a named weight do not say which.
        allow_change: a W that its form cannot hold is scaled or shifted until it does, and `changes` of the result says
            by how much. Otherwise it is refused, and nothing is changed.

    Returns:
        a Stabilized: what `changed`, by how much (`changes`), `notes`, and `undo()`.

    Raises:
        ArgumentError: nothing can be stabilized (an LSTM or GRU alone).
        RangeError: a weight is not stable. Nothing is changed then.

    Example:
        >>> import torch, holdfast
        >>> model, x = torch.nn.RNN(1, 8, batch_first=True), torch.randn(2, 20, 1)
        >>> before = model(x)[0]
        >>> done = holdfast.stabilize(model)
        >>> torch.allclose(model(x)[0], before, atol=1e-5), holdfast.certify(model).status
        (True, 'stable')
    """
    _check(model, parameterization, names, time)
    chosen = _chosen(model, names)
    if not chosen:
        raise ArgumentError(
            "expected a model with recurrent weights that holdfast recognizes, got none; pass their names, as "
            "stabilize(model, names=['layer.weight']). The model's weights: "
            f"{listed(n for n, _ in model.named_parameters())}"
        )
    left = [view.left_alone for _, view in chosen if view is not None and view.left_alone is not None]
    # gates among other recurrences are left with a note; asked for by name, or alone, that is a refusal
    if left and (names is not None or len(left) == len(chosen)):
        raise ArgumentError(left[0])
    open_ = [(weight, view) for weight, view in chosen if view is None or view.left_alone is None]
    # everything that can be refused is, before the first weight is touched
    check_weights(weight for weight, _ in open_)
    wanted = Wanted(parameterization, time, allow_change)
    plans = [
        plan for weights, view in tied_weights(model, open_) if (plan := plan_weight(weights, view, wanted)) is not None
    ]
    return _carry_out(model, plans, left)


def _chosen(model: nn.Module, names: Sequence[str] | None) -> list[tuple[MemoryWeight, RecurrenceView | None]]:
    """Every recurrent weight with its view, or those that the caller names; None beside one that only the caller calls so."""
    known = {weight.path: (weight, view) for view in recurrences(model) for weight in view.weights}
    if names is None:
        return [*known.values()]
    return [known[path] if path in known else (_named(model, path), None) for path in names]


def _named(model: nn.Module, path: str) -> MemoryWeight:
    weight = stated_weight(model, path)
    if weight.value.is_complex():
        raise ArgumentError(f"{path} must be real, got {weight.value.dtype}; name real weights only")
    return weight


def _carry_out(model: nn.Module, plans: list[Plan], notes: list[str]) -> Stabilized:
    changes = {}
    begun: list[Plan] = []
    try:
        for plan in plans:
            before = plan.value()
            # before it is applied: one that fails halfway is reverted, too
            begun.append(plan)
            plan.apply()
            changes[plan.path] = relative_distance(plan.value(), before)
            notes += plan.notes
    # an interrupt must not leave half of the model changed either
    except BaseException:
        for plan in reversed(begun):
            plan.revert()
        raise
    parts = save_plainly(model)
    undo = (*(plan.undo for plan in plans), lambda: save_as_before(parts))
    return Stabilized({plan.path: plan.form for plan in plans}, changes, tuple(dict.fromkeys(notes)), undo)


def _check(model: object, parameterization: object, names: object, time: object) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an nn.Module, got {model!r}; build one first, as nn.RNN(1, 8)")
    if not isinstance(parameterization, AbstractParameterization):
        known = tuple(dict.fromkeys((*known_names("continuous"), *known_names("discrete"))))
        if parameterization not in known:
            raise unknown_name("parameterization", parameterization, known)
    if names is not None and (isinstance(names, str) or not all(isinstance(n, str) for n in names)):  # type: ignore[attr-defined]
        raise ArgumentError(f"names must be a list of paths such as ['layer.weight'], got {names!r}")
    if time not in (None, "continuous", "discrete"):
        raise unknown_name("kind of time", time, ("continuous", "discrete"))


def check_weights(weights: Iterable[MemoryWeight]) -> None:
    """Refuses weights without numbers of their own: on the meta device, sharded, computed from others, done already."""
    done = []
    for weight in weights:
        if is_stabilized(weight.module, weight.name):
            done.append(weight.path)
            continue
        part = getattr(weight.module, weight.name)
        if not isinstance(part, nn.Module) and weight.name not in {
            **weight.module._parameters,
            **weight.module._buffers,
        }:
            raise ArgumentError(
                f"{weight.path} must be a parameter, got one that is computed from other weights (weight_norm, "
                "spectral_norm or another parametrization); remove that first "
                "(torch.nn.utils.parametrize.remove_parametrizations), or list other weights: names=[...]. Nothing "
                "was changed"
            )
        for tensor in part.parameters() if isinstance(part, nn.Module) else (part,):
            _check_numbers(weight.path, tensor)
    if done:
        raise ArgumentError(
            f"expected weights that are not stabilized, got {listed(done)}; call undo() of the earlier result first, or list "
            "other weights: names=[...]. Nothing was changed"
        )


def _check_numbers(path: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise ArgumentError(f"{path} is on the meta device and holds no values; load the weights, then stabilize")
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
        raise ArgumentError(
            f"{path} must be a plain parameter, got a {type(tensor).__name__}; stabilize before the model is sharded "
            "(fully_shard), quantized or otherwise wrapped"
        )


def tied_weights(model: nn.Module, chosen: list[Chosen]) -> list[tuple[list[MemoryWeight], RecurrenceView | None]]:
    """The weights, those that share their parameters together; refused where something else shares them too."""
    groups: dict[tuple[int, ...], tuple[list[MemoryWeight], RecurrenceView | None]] = {}
    for weight, view in chosen:
        # tied weights are one tensor under several names; a buffer has no free weights and is its own
        key = tuple(id(p) for p in weight.free.values()) or (id(getattr(weight.module, weight.name)),)
        groups.setdefault(key, ([], view))[0].append(weight)
    for parameters, (weights, _) in groups.items():
        if weights[0].storage == "own" and not weights[0].decides:
            continue  # a layer bounds its phases and step sizes itself: nothing is done to them
        # by the module that holds it, since a module that is used twice has two paths
        places = {_place(model, path) for weight in weights for path in weight.free}
        for path, p in model.named_parameters(remove_duplicate=False):
            if id(p) in parameters and _place(model, path) not in places:
                raise ArgumentError(
                    f"{weights[0].path} is shared with {path}, which is not among the weights to stabilize; untie the "
                    "two, or list both: names=[...]. Nothing was changed"
                )
        if len({_reading(weight) for weight in weights}) > 1:
            raise ArgumentError(
                f"{listed(w.path for w in weights)} share a parameter and use it in different ways; untie them. "
                "Nothing was changed"
            )
    return [*groups.values()]


def _place(model: nn.Module, path: str) -> tuple[int, str]:
    """The module that holds a parameter, which may have several paths itself, and the name there."""
    prefix, _, name = path.rpartition(".")
    return id(model.get_submodule(prefix)), name


def _reading(weight: MemoryWeight) -> tuple[str, str]:
    """How a module reads the numbers of the weight."""
    if weight.storage != "own":
        return weight.storage, ""
    part = getattr(weight.module, weight.name)
    form = part if isinstance(part, nn.Module) else weight.module
    return weight.name, f"{form.parameterization!r} {getattr(weight.module, 'euler_step', None)}"
