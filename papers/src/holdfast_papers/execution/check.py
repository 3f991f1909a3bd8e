"""Compares results with reference results and says what moved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from holdfast.errors import DamagedResultError
from holdfast_papers.pages import pack
from holdfast_papers.papers import PRESETS
from holdfast_papers.results import MANIFEST, Claim, Result

TOLERANCE = 0.02  # of a number; rounding differs between machines and grows through fits and searches


@dataclass(frozen=True)
class Move:
    """A difference. `serious` where a claim changed its status or one of its numbers left the tolerance."""

    experiment: str
    text: str
    serious: bool


def compare(result: Result, references: Path, tolerance: float = TOLERANCE) -> list[Move]:
    """What differs between a conclusion and the reference of the same preset, or of the nearest one there is.

    Numbers are compared only where the configs are equal; a claim's status always, but it is serious only there.
    """
    assert result.page is not None
    folder = _reference(result.experiment, result.page.preset, references)
    if folder is None:
        return [Move(result.experiment, f"has no reference in {references}", False)]
    try:
        reference = Result.load(folder)
    except DamagedResultError as error:
        return [Move(result.experiment, f"its reference cannot be read: {error}", True)]
    same = dict(reference.config) == dict(result.config)
    moves = [*_claims(result, reference, tolerance if same else math.inf)]
    if same:
        moves += _figures(result, reference, tolerance)
    else:
        assert reference.page is not None
        moves = [replace(move, serious=False) for move in moves]  # a smaller run may decide otherwise
        other = "with another config" if reference.page.preset == result.page.preset else f"at {reference.page.preset}"
        moves.append(Move(result.experiment, f"the reference was run {other}: only verdicts compared", False))
    return moves


def _reference(experiment: str, preset: str, references: Path) -> Path | None:
    for name in (preset, *reversed(PRESETS)):
        folder = references / experiment / f"conclusion-{name}"
        if (folder / MANIFEST).exists():
            return folder
    return None


def _claims(result: Result, reference: Result, tolerance: float) -> Iterator[Move]:
    before = {claim.name: claim for claim in reference.claims}
    after = {claim.name: claim for claim in result.claims}
    for name in before.keys() - after.keys():
        yield Move(result.experiment, f"claim {name!r} is gone", True)
    for name in after.keys() - before.keys():
        yield Move(result.experiment, f"claim {name!r} is new", True)
    for name in [n for n in before if n in after]:
        old, new = before[name], after[name]
        if old.status != new.status:
            # a weaker preset may leave open what the reference decided
            serious = math.isfinite(tolerance) or "undecided" not in (old.status, new.status)
            yield Move(result.experiment, f"claim {name!r} was {old.status}, is {new.status}", serious)
        yield from _numbers(result.experiment, old, new, tolerance)


def _numbers(experiment: str, old: Claim, new: Claim, tolerance: float) -> Iterator[Move]:
    for key in [k for k in old.numbers if k in new.numbers]:
        a, b = float(old.numbers[key]), float(new.numbers[key])
        if _distance(np.array(a), np.array(b)) > tolerance:
            yield Move(experiment, f"claim {old.name!r}: {key} was {a:.6g}, is {b:.6g}", True)


def _figures(result: Result, reference: Result, tolerance: float) -> Iterator[Move]:
    assert result.page is not None and reference.page is not None
    before, after = pack(reference.page)[1], pack(result.page)[1]
    if before.keys() != after.keys():
        yield Move(result.experiment, "its figures show other curves", False)
    for name in [n for n in before if n in after]:
        if before[name].shape != after[name].shape:
            yield Move(result.experiment, f"{name} has another shape", False)
        elif (distance := _distance(before[name], after[name])) > tolerance:
            yield Move(result.experiment, f"{name} moved by {distance:.1%}", False)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Norm of the difference against the norm; inf where one is finite and the other is not. 1e-9 counts as 0."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    x, y = a[~same].astype(np.float64), b[~same].astype(np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return math.inf
    size = max(float(np.linalg.norm(a[np.isfinite(a)])), float(np.linalg.norm(b[np.isfinite(b)])), 1e-9)
    distance = float(np.linalg.norm(x - y))
    return 0.0 if distance < 1e-9 else distance / size
