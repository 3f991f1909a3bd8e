"""What the weights say: how near each recurrence is to the edge, and how large a change of them the model survives."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.diagnosis._reading import Reading, count_weights
from holdfast.errors import ArgumentError
from holdfast.memory._subject import first_output
from holdfast.memory.preserve import undisturbed
from holdfast.nn import RecurrenceView, recurrences
from holdfast.nn._precision import HALF_DTYPES
from holdfast.stability import (
    Ball,
    Certificate,
    PerturbationCurve,
    Search,
    bit_budget,
    perturbation_error,
    study_stability,
)
from holdfast.stability.certificates._certificate import Options, at_least_float32, certificates
from holdfast.stability.perturbation._balls import select_weights
from holdfast.stability.perturbation._curve import Censored, stability_radius
from holdfast.stability.perturbation._evaluate import run_once

STARTS = 4  # states from which equilibria are looked for; more where none is found
MORE_STARTS, MAX_STARTED_SIZE = 16, 256  # of them, of a state of at most so many numbers
SHARES = np.geomspace(1e-3, 1.0, 7)  # of the smallest recurrent weight: sizes of the changes that are tried
DRAWS, FEW_DRAWS = 8, 2  # random changes of each size, and those of a large model
ROWS = 4  # random sequences on which outputs are compared; one of a large model
ASCENT_RESTARTS, ASCENT_STEPS = 0, 8  # of the search for the worst change, beside its fixed starting points
MAX_ASCENT_WEIGHTS = 300_000  # of a model; of larger ones random changes have to do
MIN_RUN_STEPS, MAX_RUN_STEPS = 200, 10_000  # of the run that shows whether outputs grow
RUN_WORK = 2e10  # weights times steps of it
MAX_GROWTH = 10.0  # times the outputs of the run's first tenth: larger ones have grown
MAX_ASCENT_WORK = 2e7  # weights times steps of a sequence; the worst change is searched for on shorter ones beyond
BITS = (3, 4, 5, 6, 7, 8, 10, 12, 16)  # that weights are rounded to
LOGARITHMS = ("log_negative", "log_positive", "softplus_negative")  # storages whose changes are relative by themselves
LOGARITHMIC_FORMS = ("exp", "softplus")
NO_RECURRENCE = "no recurrent weight is known in this model; attention and convolutions have none"
MOVED = 0.1  # of the largest output: a model whose outputs move further is not the same


@dataclass(frozen=True)
class LongRun:
    """The size of outputs along a long run of random inputs.

    Args:
        steps: its length.
        early: the largest output in its first tenth.
        late: the largest in its last half; inf where one is not finite.
    """

    steps: int
    early: float
    late: float

    @property
    def grew(self) -> bool:
        """Whether outputs became many times larger."""
        return not self.late <= MAX_GROWTH * self.early

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {"steps": self.steps, "early": plain(self.early), "late": plain(self.late), "grew": self.grew}


@dataclass(frozen=True, eq=False)
class Edge:
    """The recurrences of a model and the one that is nearest to instability.

    Args:
        parts: the certificate of each.
        worst: that of the worst.
        crosses: paths of those that a step of training can take across the boundary.
        run: outputs along a long run, where a recurrence is not stable.
        linear: whether an unstable one moves linearly, so that it grows without bound.
    """

    parts: tuple[Certificate, ...]
    worst: Certificate
    crosses: tuple[str, ...] = ()
    run: LongRun | None = None
    linear: bool = False

    @property
    def explodes(self) -> bool:
        """Whether a recurrence is unstable and outputs grow by it: gates and tanh bound those of an LSTM."""
        unstable = any(part.status == "unstable" for part in self.parts)
        return unstable and (self.linear or self.run is None or self.run.grew)

    @property
    def fastest_growing(self) -> Certificate | None:
        """The part whose deviations fade slowest, or grow fastest, along the data; None without data."""
        known = [part for part in self.parts if part.along is not None]
        return max(known, key=lambda part: part.along.exponent if part.along is not None else -math.inf, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        named = ("path", "status", "scope", "margin", "continuous_margin", "time_constant")
        rows = [{name: plain(getattr(part, name)) for name in named} for part in self.parts]
        for row, part in zip(rows, self.parts, strict=True):
            row["along_data"] = None if part.along is None else part.to_dict()["along"]
            row["without_rest"] = None if part.restless is None else part.to_dict()["restless"]
        run = None if self.run is None else self.run.to_dict()
        return {
            "worst": self.worst.path,
            "crosses": list(self.crosses),
            "explodes": self.explodes,
            "long_run": run,
            "recurrences": rows,
        }


def lasting_of(edge: Edge | None) -> float:
    """Steps to 1/e of the slowest recurrence that is stable; 0 where none is known.

    Args:
        edge: the recurrences.
    """
    known = () if edge is None else (part.time_constant for part in edge.parts if part.status == "stable")
    return max((steps for steps in known if math.isfinite(steps)), default=0.0)


@dataclass(frozen=True, eq=False)
class Tolerance:
    """How large a change of all recurrent weights at once leaves the outputs as they are, by one kind of search.

    Args:
        radius: largest size of a change (spectral norm, or largest entry of a diagonal one) up to which no output moved
            by more than a tenth of the largest.
        share: the same over the size of the smallest recurrent weight; of rates that are stored as logarithms, whose size
            says nothing, the change of the logarithm itself.
        censored: where that is only a bound, "at least" or "at most".
        curve: the errors at every size.
        logarithmic: whether all recurrent weights are rates stored as logarithms: a change by 0.1 changes them by 10%.
    """

    radius: float
    share: float
    censored: Censored
    curve: PerturbationCurve
    logarithmic: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        plain = {"radius": self.radius, "share": self.share, "censored": self.censored}
        return plain | {"logarithmic": self.logarithmic, "curve": self.curve.to_dict()}


@dataclass(frozen=True, eq=False)
class Survival:
    """What changes of the recurrent weights do to the outputs.

    Args:
        random: by random changes.
        worst: by gradient ascent to the worst change; None for a model that is too large for it.
        rounded: by what share of the largest output outputs move where these weights are rounded to bfloat16.
        half: whether they have 16 bits as they are.
        on_data: whether outputs were compared on the user's data; else on normal inputs.
        bits: fewest bits from which on weights rounded to a grid move no output by a tenth of the largest; None where it was
            not looked for, or more than 16 are needed.
    """

    random: Tolerance
    worst: Tolerance | None = None
    rounded: float = 0.0
    half: bool = False
    on_data: bool = False
    bits: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        worst = None if self.worst is None else self.worst.to_dict()
        shown = {"random": self.random.to_dict(), "worst": worst, "rounded": self.rounded}
        return shown | {"on_data": self.on_data, "bits": self.bits}


def look_at_edge(reading: Reading, length: int, seed: int, *, run: bool = True, data: Tensor | None = None) -> Edge:
    """Certificates of every recurrence where the model rests, paths as the model has them; ArgumentError where none is known.

    Args:
        reading: the model.
        length: steps of the random inputs that a selective recurrence is watched on without data.
        seed: of them.
        run: whether outputs are followed along a long run where a recurrence is not stable.
        data: inputs as the reading takes them, along which recurrences are followed; None for none.
    """
    views = recurrences(reading.model)
    if not views:
        raise ArgumentError(
            f"{NO_RECURRENCE}. If you wrote one, let forward(x, state=None) return (y, state) and set self.input_size"
        )
    parts = _certified(reading, views, length, seed, data)
    deciding = (weight for view in views if view.crosses for weight in view.weights if weight.decides)
    crosses = tuple(weight.path.removeprefix(reading.prefix) for weight in deciding)
    named = tuple(_renamed(part, reading.prefix) for part in parts)
    worst = min(
        named, key=lambda part: (part.status != "unstable", part.margin if math.isfinite(part.margin) else -1.0)
    )
    bad = {part.path for part in parts if part.status != "stable"}
    moving = {view.path for view in views if view.nonlinear}
    linear = any(part.status == "unstable" and part.path not in moving for part in parts)
    return Edge(named, worst, crosses, _long_run(reading, seed) if bad and run else None, linear)


def _certified(
    reading: Reading, views: tuple[RecurrenceView, ...], length: int, seed: int, data: Tensor | None
) -> tuple[Certificate, ...]:
    selective = any(view.selective for view in views)
    inputs = random_inputs(reading, 1, length, seed) if selective and data is None else data
    model, inputs = at_least_float32(reading.model, inputs)
    views = recurrences(model) if model is not reading.model else views

    def looked(starts: int) -> tuple[Certificate, ...]:
        with undisturbed(model), torch.no_grad():
            return certificates(model, views, inputs, Options(starts=starts, seed=seed), zeros=reading.zeros)

    parts = looked(STARTS)
    small = all(view.step_map().size <= MAX_STARTED_SIZE for view in views if view.nonlinear)
    if small and any(part.status == "undecided" for part in parts):
        parts = looked(MORE_STARTS)
    return parts if data is not None else tuple(replace(part, along=None) for part in parts)


@torch.no_grad()
def _long_run(reading: Reading, seed: int) -> LongRun:
    """10,000 steps of normal inputs, fewer of a large model."""
    weights = max(count_weights(reading.model), 1)
    steps = max(MIN_RUN_STEPS, min(MAX_RUN_STEPS, int(RUN_WORK / weights)))
    x = random_inputs(reading, 1, steps, seed)
    with undisturbed(reading.model, evaluate=True):
        y = first_output(reading.model(x)).abs().double().flatten(2).amax((0, 2))
    early, late = float(y[: max(1, len(y) // 10)].max()), float(y[len(y) // 2 :].max())
    return LongRun(len(y), early, late if math.isfinite(late) else math.inf)


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


def look_at_survival(
    reading: Reading, length: int, seed: int, data: Tensor | None = None, *, search_worst: bool = True
) -> Survival:
    """Random changes of all recurrent weights at once, of sizes up to the smallest of them, and the worst that is found.

    Args:
        reading: the model.
        length: steps of the random inputs on which outputs are compared without data.
        seed: of inputs and changes.
        data: inputs as the reading takes them, on which they are compared instead; None for none.
        search_worst: whether the worst change is searched for too, which costs most.
    """
    if not recurrences(reading.model):
        raise ArgumentError(NO_RECURRENCE)
    random = Search(draws=FEW_DRAWS if reading.large else DRAWS, seed=seed)
    weights = count_weights(reading.model)
    worst = None
    if search_worst and weights <= MAX_ASCENT_WEIGHTS:
        ascent = Search("adversarial", draws=DRAWS, restarts=ASCENT_RESTARTS, steps=ASCENT_STEPS, seed=seed)
        long = data is not None and weights * data.shape[1] > MAX_ASCENT_WORK
        worst = _tolerance(reading, length, ascent, data[:, :length] if data is not None and long else data)
    rounded = _as_bfloat16(reading, random_inputs(reading, _rows(reading), length, seed) if data is None else data)
    bits = None if data is None else _bits(reading, data, seed)
    return Survival(_tolerance(reading, length, random, data), worst, *rounded, data is not None, bits)


def _tolerance(reading: Reading, length: int, search: Search, data: Tensor | None) -> Tolerance:
    smallest, logarithmic = _smallest(reading.model)
    radii, ball = SHARES * smallest, Ball(scope="recurrent")
    if data is None:
        study = study_stability(
            reading.model,
            radii,
            shape=(
                _rows(reading),
                length if reading.longest is None else min(length, reading.longest),
                reading.input_size,
            ),
            level=MOVED,
            norm=ball,
            search=search,
        )
        assert study.radius is not None
        return Tolerance(study.radius, study.radius / smallest, study.censored, study.curves[0], logarithmic)
    with torch.no_grad():
        y = first_output(copy.deepcopy(reading.model).eval()(data))
    curve = perturbation_error(reading.model, data, y, radii, norm=ball, search=search)
    assert curve.target_norm is not None
    found = stability_radius(curve, MOVED * curve.target_norm)
    return Tolerance(found.value, found.value / smallest, found.censored, curve, logarithmic)


def _rows(reading: Reading) -> int:
    return 1 if reading.large else ROWS


def _bits(reading: Reading, data: Tensor, seed: int) -> int | None:
    """By rounding to the nearest, of the outputs on data; random changes within half a step are the cheapest bound."""
    budget = bit_budget(reading.model, data, level=MOVED, bits=BITS, search=Search(draws=1, seed=seed))
    return budget.enough


@torch.no_grad()
def _as_bfloat16(reading: Reading, x: Tensor) -> tuple[float, bool]:
    """How far outputs move where recurrent weights are rounded, and whether they are that coarse already."""
    model, recurrent = reading.model, _recurrent(reading.model)
    weights = {
        path: weight for path, weight in (*model.named_parameters(), *model.named_buffers()) if path in recurrent
    }
    with undisturbed(model, evaluate=True):
        before = first_output(model(x)).double()
        after = run_once(model, {path: _rounded(weight) for path, weight in weights.items()}, x).double()
    moved = (after - before).abs().max() / before.abs().max().clamp(min=1e-300)
    return float(moved), reading.half or all(weight.dtype in HALF_DTYPES for weight in weights.values())


def _rounded(weight: Tensor) -> Tensor:
    parts = torch.view_as_real(weight) if weight.is_complex() else weight
    rounded = parts.bfloat16().to(parts.dtype)
    return torch.view_as_complex(rounded) if weight.is_complex() else rounded


def _recurrent(model: nn.Module) -> list[str]:
    return [w.name for w in select_weights(model, "recurrent", "spectral")]


def _smallest(model: nn.Module) -> tuple[float, bool]:
    """The size of the smallest recurrent weight; 1 and True where all of them are rates stored as logarithms."""
    logarithms = {
        path
        for view in recurrences(model)
        for weight in view.weights
        if weight.storage in LOGARITHMS or (weight.modes is not None and weight.modes.key in LOGARITHMIC_FORMS)
        for path in weight.free
    }
    weights = [w for w in select_weights(model, "recurrent", "spectral") if w.name not in logarithms]
    if not weights:
        return 1.0, True
    sizes = [float(w.ball.norm(w.value.unsqueeze(0))[0]) for w in weights]
    # a free weight that begins at 0, as a form's skew part may, is no measure of the others
    return min((size for size in sizes if size > 1e-3 * max(sizes)), default=1.0), False


def plain(value: Any) -> Any:
    """A number for JSON: None where it is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
