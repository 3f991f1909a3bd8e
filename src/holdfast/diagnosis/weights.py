"""What the weights say: how near each recurrence is to the edge, and how large a change of them the model survives."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.diagnosis.reading import Reading
from holdfast.errors import ArgumentError
from holdfast.memory._subject import first_output
from holdfast.nn import recurrences
from holdfast.nn.precision import HALF_DTYPES
from holdfast.stability import Ball, Certificate, PerturbationCurve, Search, certify, study_stability
from holdfast.stability.perturbation._balls import select_weights
from holdfast.stability.perturbation._curve import Censored

STARTS = 4  # states from which equilibria are looked for
SHARES = np.geomspace(1e-3, 1.0, 7)  # of the smallest recurrent weight: sizes of the changes that are tried
DRAWS = 8
NO_RECURRENCE = "no recurrent weight is known in this model; attention and convolutions have none"
MOVED = 0.1  # of the largest output: a model whose outputs move further is not the same


@dataclass(frozen=True, eq=False)
class Edge:
    """The recurrences of a model and the one that is nearest to instability.

    Args:
        parts: the certificate of each.
        worst: that of the worst.
        crosses: paths of those that a step of training can take across the boundary.
    """

    parts: tuple[Certificate, ...]
    worst: Certificate
    crosses: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        named = ("path", "status", "scope", "margin", "continuous_margin", "time_constant")
        rows = [{name: _plain(getattr(part, name)) for name in named} for part in self.parts]
        return {"worst": self.worst.path, "crosses": list(self.crosses), "recurrences": rows}


def lasting_of(edge: Edge | None) -> float:
    """Steps to 1/e of the slowest recurrence that is stable; 0 where none is known.

    Args:
        edge: the recurrences.
    """
    known = () if edge is None else (part.time_constant for part in edge.parts if part.status == "stable")
    return max((steps for steps in known if math.isfinite(steps)), default=0.0)


@dataclass(frozen=True, eq=False)
class Survival:
    """How large a change of all recurrent weights at once leaves the outputs as they are.

    Args:
        radius: largest size of a change (spectral norm, or largest entry of a diagonal one) up to which no output moved
            by more than a tenth of the largest.
        share: the same over the size of the smallest recurrent weight.
        censored: where that is only a bound, "at least" or "at most".
        curve: the errors at every size.
        rounded: by what share of the largest output outputs move where these weights are rounded to bfloat16.
        half: whether they have 16 bits as they are.
    """

    radius: float
    share: float
    censored: Censored
    curve: PerturbationCurve
    rounded: float = 0.0
    half: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        plain = {"radius": self.radius, "share": self.share, "censored": self.censored, "rounded": self.rounded}
        return plain | {"curve": self.curve.as_dict()}


def look_at_edge(reading: Reading, length: int, seed: int) -> Edge:
    """Certificates of every recurrence, paths as the model has them; ArgumentError where none is known.

    Args:
        reading: the model.
        length: steps of the random inputs that a selective recurrence is watched on.
        seed: of them.
    """
    views = recurrences(reading.model)
    if not views:
        raise ArgumentError(
            f"{NO_RECURRENCE}. Name one that you know: holdfast.certify(model, 'path', time='discrete')"
        )
    selective = any(view.selective for view in views)
    inputs = random_inputs(reading, 1, length, seed) if selective else None
    found = certify(reading.model, inputs=inputs, starts=STARTS, seed=seed)
    parts = found.parts or (found,)
    deciding = (weight for view in views if view.crosses for weight in view.weights if weight.decides)
    crosses = tuple(weight.path.removeprefix(reading.prefix) for weight in deciding)
    named = tuple(_renamed(part, reading.prefix) for part in parts)
    worst = min(
        named, key=lambda part: (part.status != "unstable", part.margin if math.isfinite(part.margin) else -1.0)
    )
    return Edge(named, worst, crosses)


def _renamed(part: Certificate, prefix: str) -> Certificate:
    return replace(part, path=part.path.removeprefix(prefix), parts=())


def random_inputs(reading: Reading, rows: int, steps: int, seed: int) -> Tensor:
    """Normal inputs, or random tokens of those that are tried, in the model's dtype."""
    generator = torch.Generator().manual_seed(seed)
    weight = next((p for p in reading.model.parameters() if p.is_floating_point()), torch.zeros(()))
    steps = steps if reading.longest is None else min(steps, reading.longest)
    if reading.candidates is not None:
        chosen = torch.randint(len(reading.candidates), (rows, steps), generator=generator)
        return reading.candidates[chosen].to(weight.device, weight.dtype)
    return torch.randn(rows, steps, reading.input_size, generator=generator).to(weight.device, weight.dtype)


def look_at_survival(reading: Reading, length: int, seed: int) -> Survival:
    """Random changes of all recurrent weights at once, of sizes up to the smallest of them.

    Args:
        reading: the model.
        length: steps of the inputs on which outputs are compared.
        seed: of inputs and changes.
    """
    if not recurrences(reading.model):
        raise ArgumentError(NO_RECURRENCE)
    smallest = _smallest(reading.model)
    study = study_stability(
        reading.model,
        SHARES * smallest,
        shape=(4, length if reading.longest is None else min(length, reading.longest), reading.input_size),
        level=MOVED,
        norm=Ball(scope="recurrent"),
        search=Search(draws=DRAWS, seed=seed),
    )
    assert study.radius is not None
    rounded, half = _as_bfloat16(reading, length, seed)
    return Survival(study.radius, study.radius / smallest, study.censored, study.curves[0], rounded, half)


@torch.no_grad()
def _as_bfloat16(reading: Reading, length: int, seed: int) -> tuple[float, bool]:
    """How far outputs move where recurrent weights are rounded, and whether they are that coarse already."""
    x = random_inputs(reading, 4, length, seed)
    model = copy.deepcopy(reading.model).eval()
    before = first_output(model(x)).double()
    weights = [getattr(model.get_submodule(at), name) for w in _recurrent(model) for at, _, name in [w.rpartition(".")]]
    for weight in weights:
        parts = torch.view_as_real(weight) if weight.is_complex() else weight
        parts.copy_(parts.bfloat16())
    moved = (first_output(model(x)).double() - before).abs().max() / before.abs().max().clamp(min=1e-300)
    return float(moved), all(weight.dtype in HALF_DTYPES for weight in weights)


def _recurrent(model: nn.Module) -> list[str]:
    return [w.name for w in select_weights(model, "recurrent", "spectral")]


def _smallest(model: nn.Module) -> float:
    sizes = [float(w.ball.norm(w.value.unsqueeze(0))[0]) for w in select_weights(model, "recurrent", "spectral")]
    # a free weight that begins at 0, as a form's skew part may, is no measure of the others
    return min((size for size in sizes if size > 1e-3 * max(sizes)), default=1.0)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
