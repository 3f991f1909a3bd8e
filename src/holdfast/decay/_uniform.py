"""The memory of a whole family of models: the largest at each time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, ShapeError
from holdfast.memory import MemoryCurve


@checked
def uniform_memory(curves: Sequence[MemoryCurve]) -> MemoryCurve:
    """sup over m of M(H_m)(t), whose decay is the uniform decay of the family (iat, Def. 3.2, eq. 8).

    Each member may decay while the family does not: e^{-t/m} does for every m, and the sup over all m is 1. `fit_decay`
    of the result says what the finite family at hand does.

    Args:
        curves: one for each model, at the same times.
    """
    if not curves:
        raise ArgumentError("curves: needs at least one memory curve, came none")
    first = curves[0]
    for curve in curves:
        if curve.time.shape != first.time.shape or not np.array_equal(curve.time, first.time):
            raise ShapeError(
                f"curves: all must be measured at the same times, came {len(first.time)} up to {first.time[-1]:g} and "
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
