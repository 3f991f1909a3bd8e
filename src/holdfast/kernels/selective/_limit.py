"""One exponential and one multiply-add for each state and step: the roofline of the selective scan."""

from __future__ import annotations

import ctypes

from holdfast.kernels._common import library


def exponential_limit(states: int, steps: int) -> float:
    """Runs `states` states through `steps` steps of h = exp(dt a) h + dt in registers, in float32; gives a sum of them.

    Args:
        states: number of states, batch and channels included.
        steps: number of steps.
    """
    run = library.function("holdfast_selective_limit", [ctypes.c_int64, ctypes.c_int64, ctypes.c_int], ctypes.c_float)
    return float(run(states, steps, library.threads()))
