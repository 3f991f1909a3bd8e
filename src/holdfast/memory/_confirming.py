"""When a memory that was seen below its level is gone for good, and not at a zero of an oscillation."""

from __future__ import annotations

CONFIRMING = (
    2  # times as long as a memory, without its return, if no law was decided: an oscillation is small at each zero
)
FURTHER = 4  # times longer that a memory is followed for while it is not known to be gone


def is_gone(steps: int | float, followed: int | float, *, decided: bool = False) -> bool:
    """Whether a memory that ended after `steps` is gone: by a law that was decided, or by as many steps again.

    Args:
        steps: from which on it lay below its level.
        followed: last time that was looked at, in the same unit.
        decided: whether a decay law was decided on it.
    """
    return decided or CONFIRMING * steps <= followed


def may_be_short(steps: int | float, followed: int | float) -> str:
    """The note beside a memory that is not known to be gone.

    Args:
        steps: from which on it lay below its level.
        followed: steps that were looked at.
    """
    return f"{steps:,.0f} steps may be too few: the memory was followed for {followed:,.0f}"
