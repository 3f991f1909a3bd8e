"""The recurrences inside a model, each as eigenvalues, a matrix, or a motion whose equilibria are to be found."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast._types import Time
from holdfast.errors import ArgumentError, ShapeError, listed
from holdfast.nn import AbstractRecurrent
from holdfast.nn.recurrence import Structure
from holdfast.nn.recurrent import RecurrentWeight, find_recurrent
from holdfast.nn.system import Motion
from holdfast.stability.cells import Cell, cell_of, gru_candidate, gru_cell, state_size, weights_of
from holdfast.stability.certificates.contracting import Contracting, contraction_of
from holdfast.stability.certificates.equilibria import Equilibria, find_equilibria
from holdfast.stability.certificates.scope import GATED, Scope, layer_scope, torch_scope

UNKNOWN_STEP = "no step size is known: a unit of time counts as one step"


@dataclass(frozen=True, eq=False)
class FoundRecurrence:
    """One recurrence: `eigenvalues` of a diagonal one, `matrix` of a dense one, or `motion` of a nonlinear one.

    `euler` is the step size where the layer steps by Euler's rule, `step_size` that of each eigenvalue of a foreign weight
    where it is known. `equilibria` are those of the motion. `scope` says
    whether stability holds from every state or only near the equilibrium, `contracting` by what a nonlinear one is.
    """

    path: str
    kind: str
    time: Time
    eigenvalues: Tensor | None = None
    matrix: Tensor | None = None
    equilibria: Equilibria | None = None
    euler: float | None = None
    layer: nn.Module | None = None
    notes: tuple[str, ...] = ()
    scope: Scope = "global"
    contracting: Contracting | None = None
    step_size: Tensor | None = None

    def step_margin(self, eigenvalues: np.ndarray, margin: float) -> float:
        """1 - the largest factor of one step, dt included; `eigenvalues` and `margin` are those in its kind of time."""
        # a diagonal layer knows its margin by its free weights; 1 - |lam| of rounded eigenvalues has lost digits
        own = self.equilibria is None and isinstance(self.layer, AbstractRecurrent)
        if own and (self.time == "continuous" or self.matrix is None):
            return self.layer.step_margin()  # type: ignore[union-attr, operator]
        if self.time == "discrete":
            return margin
        if self.euler is not None:
            return 1 - float(np.abs(1 + self.euler * eigenvalues).max())
        if self.step_size is not None and self.eigenvalues is not None:
            return -float(torch.expm1(self.eigenvalues * self.step_size).max())
        return -math.expm1(-margin)


@dataclass(frozen=True)
class Options:
    """How equilibria are looked for, and the largest state that is analysed."""

    starts: int
    limit: int
    seed: int


def find_recurrences(model: nn.Module, options: Options) -> list[FoundRecurrence]:
    """Every recurrence of holdfast's layers, of torch's modules, and of state-space weights known by name."""
    found: list[FoundRecurrence] = []
    for path, module in model.named_modules():
        if isinstance(module, AbstractRecurrent):
            found.append(_layer(path, module, options))
        elif isinstance(module, nn.RNNBase):
            found.extend(_torch(path, module, options))
    found.extend(_known(weight) for weight in find_recurrent(model) if weight.kind == "named")
    return found


def named_recurrence(model: nn.Module, path: str, time: Time | None, structure: Structure | None) -> FoundRecurrence:
    """A weight called by its path: a square matrix, or eigenvalues (a vector, complex numbers, or where said so)."""
    for weight in find_recurrent(model):
        if weight.path == path and weight.kind == "named":
            return _known(weight)
    prefix, _, name = path.rpartition(".")
    try:
        value = getattr(model.get_submodule(prefix), name)
    except AttributeError:
        known = listed(n for n, _ in model.named_parameters())
        raise ArgumentError(f"the model has no weight or layer called {path!r}; its weights: {known}") from None
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        raise ArgumentError(f"{path} is not a weight but {type(value).__name__}; name a parameter")
    if time is None:
        raise ArgumentError(f"say in which time {path} acts: time='continuous' (dh/dt = W h) or 'discrete' (h+ = W h)")
    if structure is None:
        structure = "diagonal" if value.ndim == 1 or value.is_complex() else "dense"
    if structure == "diagonal":
        return FoundRecurrence(path, "named eigenvalues", time, eigenvalues=value.detach())
    if value.ndim != 2 or value.shape[0] != value.shape[1] or value.is_complex():
        raise ShapeError(
            f"{path} has shape {tuple(value.shape)}, {value.dtype}; expected a real square matrix. For a table of "
            "eigenvalues pass structure='diagonal'"
        )
    return FoundRecurrence(path, "named matrix", time, matrix=value.detach())


def _layer(path: str, layer: AbstractRecurrent, options: Options) -> FoundRecurrence:
    kind, euler = type(layer).__name__, layer.euler_step
    moving = layer.motion_at_rest()
    if moving is not None:
        _check_finite(path or kind, layer)
        equilibria = _search(path or kind, *moving, layer.state_size, layer.time, euler or 1.0, options)
        return FoundRecurrence(
            path, kind, layer.time, equilibria=equilibria, euler=euler, layer=layer, notes=(GATED,), scope="local"
        )
    scope, notes = layer_scope(layer)
    W = layer.recurrent_matrix()
    if W is not None:
        return FoundRecurrence(
            path, kind, layer.time, matrix=W.detach(), euler=euler, layer=layer, notes=notes, scope=scope
        )
    lam = layer.eigenvalues().detach()
    return FoundRecurrence(path, kind, layer.time, eigenvalues=lam, euler=euler, layer=layer, notes=notes)


def _torch(path: str, module: nn.RNNBase, options: Options) -> Iterator[FoundRecurrence]:
    """One recurrence a layer and direction; upper layers rest on the state that the lower ones reach from 0."""
    cell = cell_of(module)
    kind = f"torch.nn.{type(module).__name__}"
    if cell is None:
        raise ArgumentError(f"{path or kind}: an LSTM with projections is not known; name its weight_hh instead")
    _check_finite(path or kind, module)
    below = torch.zeros(module.input_size, dtype=torch.float64)
    for index in range(module.num_layers):
        outputs = []
        for reverse in (False, True) if module.bidirectional else (False,):
            name = f"weight_hh_l{index}" + ("_reverse" if reverse else "")
            full = f"{path}.{name}" if path else name
            w_ih, b_ih, w_hh, b_hh = (
                None if w is None else w.detach().cpu().double() for w in weights_of(module, index, reverse)
            )
            assert w_ih is not None and w_hh is not None
            drive = functional.linear(below, w_ih, b_ih)

            motion, residual = _torch_motion(cell, drive, w_hh, b_hh)
            equilibria = _search(full, motion, residual, state_size(module), "discrete", 1.0, options)
            rest = torch.from_numpy(equilibria.points[0].state) if equilibria.points else drive.new_zeros(0)
            rest = rest if len(rest) else drive.new_zeros(state_size(module))
            outputs.append(rest[: module.hidden_size])
            contracting = contraction_of(module, name) if isinstance(module, nn.RNN) else None
            scope, notes = torch_scope(module, contracting)
            yield FoundRecurrence(
                full, kind, "discrete", equilibria=equilibria, layer=module, notes=notes, scope=scope,
                contracting=contracting,
            )  # fmt: skip
        below = torch.cat(outputs)


def _torch_motion(cell: Cell, drive: Tensor, w: Tensor, b: Tensor | None) -> tuple[Motion, Motion]:
    def motion(h: Tensor) -> Tensor:
        return cell(drive, h, w, b)

    def moved(h: Tensor) -> Tensor:
        return motion(h) - h

    def candidate(h: Tensor) -> Tensor:
        return gru_candidate(drive, h, w, b) - h

    return motion, candidate if cell is gru_cell else moved


def _search(
    name: str, motion: Motion, residual: Motion, size: int, time: Time, dt: float, options: Options
) -> Equilibria:
    if size > options.limit:
        raise ArgumentError(
            f"{name} has a state of {size} numbers; Jacobians take minutes above {options.limit}. Pass limit= to do it "
            "all the same."
        )
    return find_equilibria(motion, residual, size, time, dt=dt, starts=options.starts, seed=options.seed)


def _check_finite(name: str, module: nn.Module) -> None:
    """A search for equilibria would only say that it found none."""
    bad = {n: int((~torch.isfinite(p)).sum()) for n, p in module.named_parameters()}
    for weight, count in bad.items():
        if count:
            raise ArgumentError(f"{name}: {weight} has entries that are not finite, {count} of them")


def _known(weight: RecurrentWeight) -> FoundRecurrence:
    if weight.storage != "value":
        dt = weight.step_size()
        notes = () if dt is not None else (UNKNOWN_STEP,)
        kind = "eigenvalues -exp(weight)" if weight.storage == "log_negative" else "eigenvalues -softplus(weight)"
        lam = weight.eigenvalues()
        return FoundRecurrence(weight.path, kind, "continuous", eigenvalues=lam, notes=notes, step_size=dt)
    value = weight.eigenvalues()
    partner = weight.name.replace("_re", "_im")
    imaginary = getattr(weight.module, partner, None) if partner != weight.name else None
    lam = torch.complex(value, imaginary.detach()) if isinstance(imaginary, Tensor) else value
    return FoundRecurrence(weight.path, "eigenvalues", "continuous", eigenvalues=lam, notes=(UNKNOWN_STEP,))
