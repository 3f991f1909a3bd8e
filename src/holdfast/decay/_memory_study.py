"""Everything that `holdfast memory` tells of a model, as one object."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from holdfast._arguments import checked
from holdfast.decay._fit_decay import fit_decay
from holdfast.decay._result import REMAINING_SHARE, DecayFit, is_confirmed, reach_of
from holdfast.errors import ArgumentError, ShapeError, unknown_name
from holdfast.memory import InputSearch, MemoryCurve, Probe, Properties, Run, check_properties, memory_function
from holdfast.memory._checks import MIN_SETTLING_STEPS
from holdfast.memory._confirming import FURTHER, may_be_short
from holdfast.memory._options import PROBES, ProbeName, widest
from holdfast.memory._repeated import repeated_input_memory

# called with what runs, and how much of how much is done where that is known
Announce = Callable[[str, int | None, int | None], None]
MAX_FOLLOWED_STEPS = 4096  # a curve that may end at a zero of an oscillation is followed no further, unless asked to
MAX_CHECKED_STEPS = 200  # steps over which properties are checked: their answers do not change with more


@dataclass(frozen=True, eq=False)
class MemoryStudy:
    """How a model remembers: for each probe a curve and its decay law, and the properties of its functional.

    Args:
        curves: the memory curve of each probe.
        fits: its decay law.
        properties: of the functional; None where they were not checked.
        notes: remarks, in words.
    """

    curves: dict[str, MemoryCurve]
    fits: dict[str, DecayFit]
    properties: Properties | None = None
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether every curve could be measured."""
        return all(curve.status == "ok" for curve in self.curves.values())

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, for JSON."""
        return {
            "notes": list(self.notes),
            "probes": {name: self._probe(name) for name in self.fits},
            "properties": None if self.properties is None else self.properties.to_dict(),
        }

    def _probe(self, name: str) -> dict[str, Any]:
        fit = self.fits[name]
        reach = reach_of(fit)
        left = reach.time if reach.time is not None and math.isfinite(reach.time) else None
        return {f"horizon_{REMAINING_SHARE}": left, "fit": fit.to_dict(), "curve": self.curves[name].to_dict()}


def study_memory(
    model: Callable[..., Any],
    input_size: int = 1,
    horizon: int = 1000,
    *,
    probes: Sequence[ProbeName | Probe] = ("heaviside",),
    properties: bool = True,
    double: bool | None = None,
    progress: Announce | None = None,
    **options: Any,
) -> MemoryStudy:
    """Measures the memory with every probe, names each decay law and checks the functional's properties.

    What `holdfast memory` prints.

    Args:
        model: as `memory_function` takes it.
        input_size: number of input features.
        horizon: steps to follow the memory for; a model that takes fewer (its `longest_input`) is followed for as many
            as it takes, and a note says so. Where the last values may be a zero of an oscillation, it is followed further, up
            to 4,096 steps.
        probes: one or more of "heaviside", "impulse" and "reversed", or a `Probe` of each.
        properties: whether to check them.
        double: whether to measure a float64 copy. None: where there can be one, and a note says why where there cannot.
        progress: called as `progress(text, done, total)` along the way.
        options: `search` and `run`, as of `memory_function`.

    Returns:
        a MemoryStudy: by name of the probe the `curves`, in output per input over time, and their decay laws `fits`; the
        `properties` of the functional, and `notes`.

    Raises:
        UnknownNameError: a probe that is not known.
        ArgumentError: no probes, or options that memory_function refuses.
        ModelError: a model that is not causal, not repeatable, or mixes rows of a batch.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.DiagonalSSM(1, 1, eigenvalues=torch.tensor([-0.1]))
        >>> fit = holdfast.decay.study_memory(layer, horizon=100).fits["heaviside"]
        >>> fit.law, round(fit.rate, 3)
        ('exponential', 0.1)
    """
    sent = {probe.name: probe for probe in map(_as_probe, probes)}
    if not sent:
        raise ArgumentError(f"probes must name at least one of {', '.join(PROBES)}, got none")
    announce = progress or _quiet
    longest = getattr(model, "longest_input", None)
    able = math.inf if longest is None else longest - MIN_SETTLING_STEPS - 1
    steps, furthest = (int(min(most, able)) for most in (horizon, max(horizon, MAX_FOLLOWED_STEPS)))
    why = None
    if double is None:
        double, why = widest(model, input_size, options.get("run", Run()).layout)
    options["double"] = double
    curves: dict[str, MemoryCurve] = {}
    for name, probe in sent.items():
        text = f"{name} probe"
        announce(text, None, None)
        tick = partial(announce, text)
        run = partial(memory_function, model, input_size=input_size, probe=probe, progress=tick, **options)
        # a reversed probe costs the square of its steps: it is followed no further than asked
        curves[name] = _past_zeros(run, steps, steps if name == "reversed" else furthest)
    checked = None
    if properties:
        announce("properties", None, None)
        shared: dict[str, Any] = {key: options[key] for key in ("run", "double") if key in options}
        search = options.get("search")
        if isinstance(search, InputSearch):
            shared["seed"] = search.seed
        most = MAX_CHECKED_STEPS if longest is None else min(MAX_CHECKED_STEPS, longest // 3)
        checked = check_properties(model, input_size, max(min(horizon, most), 16), **shared)
    short = f"the model takes {longest} steps: followed for {steps} of the {horizon} asked for"
    notes = (*((short,) if steps < horizon else ()), *(() if why is None else (why,)))
    return _study(curves, checked, notes)


def _past_zeros(run: Callable[..., MemoryCurve], steps: int, most: int) -> MemoryCurve:
    """The curve over so many steps, over more where its last values may be a zero of an oscillation, with a note."""
    asked = steps
    while True:
        curve = run(horizon=steps)
        fit = fit_decay(curve)
        reach = reach_of(fit)
        open_ = curve.status == "ok" and reach.measured and not is_confirmed(fit)
        if not open_ or steps >= most:
            break
        steps = min(FURTHER * steps, most)
    notes = []
    if steps > asked:
        notes.append(f"followed for {steps:,} steps instead of {asked:,}, where it might have been at a zero")
    if open_ and reach.time is not None:
        notes.append(may_be_short(reach.time / curve.dt, steps))
    return replace(curve, notes=(*curve.notes, *notes)) if notes else curve


def _as_probe(probe: ProbeName | Probe) -> Probe:
    if isinstance(probe, str) and probe not in PROBES:
        raise unknown_name("probe", probe, PROBES)
    return Probe(probe) if isinstance(probe, str) else probe


def study_repeated(
    score: Callable[..., Any], item: Any, copies: int, *, progress: Announce | None = None
) -> MemoryStudy:
    """The memory of an item that is repeated, with its decay law; for models that read tokens.

    The curve is that of `repeated_input_memory`.

    Args:
        score: gives a number for a text or a list of token ids.
        item: what is repeated.
        copies: largest number of copies.
        progress: called as `progress(text, done, total)` along the way.

    Returns:
        a MemoryStudy whose one curve and fit, "repeated", are over the number of copies; properties are not checked.

    Raises:
        ArgumentError: fewer than 2 copies, or a score that does not take the item or gives no numbers.
        ModelError: scores that differ for the same input.

    Example:
        >>> from holdfast.decay import study_repeated
        >>> study = study_repeated(lambda ids: 1 - 0.5 ** len(ids), 7, 30)  # a token id, up to 30 times
        >>> study.fits["repeated"].law, round(study.fits["repeated"].rate, 3)  # log 2
        ('exponential', 0.693)
    """
    text = f"repeating {item!r}"
    announce = progress or _quiet
    announce(text, None, None)
    curve = repeated_input_memory(score, item, copies, progress=partial(announce, text))
    return _study({"repeated": curve}, None, ())


def with_notes(study: MemoryStudy, *notes: str) -> MemoryStudy:
    """The study with these notes before its own."""
    return replace(study, notes=(*notes, *study.notes))


def _study(curves: dict[str, MemoryCurve], properties: Properties | None, notes: tuple[str, ...]) -> MemoryStudy:
    return MemoryStudy(curves, {name: fit_decay(curve) for name, curve in curves.items()}, properties, notes)


def _quiet(text: str, done: int | None, total: int | None) -> None:
    """Shows nothing."""


@checked
def uniform_memory(curves: Sequence[MemoryCurve]) -> MemoryCurve:
    """sup over m of M(H_m)(t), whose decay is the uniform decay of the family (iat, Def. 3.2, eq. 8).

    Each member may decay while the family does not: e^{-t/m} does for every m, and the sup over all m is 1. `fit_decay`
    of the result says what the finite family at hand does.

    Args:
        curves: one for each model, at the same times.

    Returns:
        a MemoryCurve at these times, in the units of the curves; its rounding floor is the largest of theirs.

    Raises:
        ArgumentError: no curves.
        ShapeError: curves that were measured at different times.

    Example:
        >>> import numpy as np
        >>> from holdfast.decay import uniform_memory
        >>> from holdfast.memory import MemoryCurve
        >>> family = [MemoryCurve(time=np.arange(2.0), values=np.array(values)) for values in ([2.0, 0.5], [1.0, 0.75])]
        >>> uniform_memory(family).values.tolist()
        [2.0, 0.75]
    """
    if not curves:
        raise ArgumentError("curves must hold at least one memory curve, got none")
    first = curves[0]
    for curve in curves:
        if curve.time.shape != first.time.shape or not np.array_equal(curve.time, first.time):
            raise ShapeError(
                f"curves: all must be measured at the same times, got {len(first.time)} up to {first.time[-1]:g} and "
                f"{len(curve.time)} up to {curve.time[-1]:g}"
            )
    floors = [curve.floor for curve in curves if curve.floor is not None]
    return MemoryCurve(
        time=first.time,
        values=np.max([curve.values for curve in curves], axis=0),
        dt=first.dt,
        floor=np.max(floors, axis=0) if floors else None,
        notes=(f"the largest of {len(curves)} models at each time",),
    )
