"""The memory of a family is the largest of its members' (iat, eq. 8)."""

import numpy as np
import pytest

import holdfast
from holdfast.decay import uniform_memory
from holdfast.errors import ArgumentError, ShapeError

TIME = np.arange(300.0)


def curve(m, **how):
    return holdfast.MemoryCurve(time=TIME, values=np.exp(-TIME / m), **how)


def test_a_family_of_decaying_memories_need_not_decay_uniformly():
    each = [curve(m) for m in (1, 10, 100, 10_000)]
    found = uniform_memory(each)
    assert (found.values == each[-1].values).all() and found.values[-1] > 0.97
    assert holdfast.fit_decay(uniform_memory(each[:2])).rate == pytest.approx(0.1, rel=0.01)


def test_the_largest_rounding_floor_is_kept():
    rough = curve(2, floor=np.full(len(TIME), 1e-9))
    assert (uniform_memory([curve(1), rough]).floor == 1e-9).all()


def test_curves_at_other_times_and_no_curves_are_refused(user_mistakes):
    other = holdfast.MemoryCurve(time=2 * TIME, values=np.exp(-TIME))
    with pytest.raises(ShapeError, match="same times"):
        uniform_memory([curve(1), other])
    with pytest.raises(ArgumentError, match="at least one"):
        uniform_memory([])
