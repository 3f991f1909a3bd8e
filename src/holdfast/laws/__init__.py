"""Decay laws rho(t), t >= 0: the one definition that data, fits and constructions share.

Each law is a frozen value with `law(t)`, its exact integrals and its L1 norm. Times may be numbers, numpy arrays or
tensors, and the answer is of the same kind; numbers and numpy arrays are computed in float64.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, unknown_name
from holdfast.laws._base import AbstractLaw
from holdfast.laws._exponential import Exponential
from holdfast.laws._finite import Finite
from holdfast.laws._mixture import ExponentialMixture
from holdfast.laws._oscillating import OscillatingExponential
from holdfast.laws._power import PowerLaw
from holdfast.laws._reciprocal_sum import ReciprocalSum
from holdfast.laws._stretched_exponential import StretchedExponential

_CLASSES: tuple[type[AbstractLaw], ...] = (
    Exponential,
    PowerLaw,
    StretchedExponential,
    Finite,
    ExponentialMixture,
    ReciprocalSum,
    OscillatingExponential,
)
LAWS = {law.key: law for law in _CLASSES}


@checked
def get(name: str, *constants: Any, **named: Any) -> AbstractLaw:
    """Builds the law called `name` from its constants: `get("power", 1.5)`.

    Args:
        name: a key of LAWS, such as "exponential", "power" or "finite".
        constants: the law's own, by position.
        named: the same, by name.

    Returns:
        the law, a function of time.

    Raises:
        UnknownNameError: an unknown name.
        ArgumentError: a constant that the law cannot have, such as an exponent of 0, too few or too many of them.

    Example:
        >>> from holdfast import laws
        >>> law = laws.get("power", 1.5)  # (1 + t)^-1.5
        >>> law, round(law(3.0), 3)
        (PowerLaw(exponent=1.5), 0.125)
    """
    if name not in LAWS:
        raise unknown_name("decay law", name, LAWS)
    try:
        return LAWS[name](*constants, **named)
    except TypeError as error:
        if isinstance(error, ArgumentError):
            raise
        takes = ", ".join(field.name for field in fields(LAWS[name]))
        raise ArgumentError(f"constants do not fit the law {name!r}, which takes {takes}: {error}") from None


__all__ = [
    "LAWS",
    "AbstractLaw",
    "Exponential",
    "ExponentialMixture",
    "Finite",
    "OscillatingExponential",
    "PowerLaw",
    "ReciprocalSum",
    "StretchedExponential",
    "get",
]
