"""Numbers and settings as the page writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_EXPLANATION = 350  # characters that are read at once
MAX_WHOLE = 1_000_000  # below it a whole number is written with all its digits, of whatever type


def shown(value: Any) -> str:
    """A setting of any kind."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {shown(v)}" for k, v in value.items())
    return number(value) if isinstance(value, float) else str(value)


def sentences(text: str) -> tuple[str, str]:
    """A text as what is read at once and what is read if wanted: all of a short one, a short first sentence of a long one."""
    first, _, rest = text.partition(". ")
    if len(text) <= MAX_EXPLANATION:
        return text, ""
    return (first + ".", rest) if len(first) <= MAX_EXPLANATION else ("", text)


def number(value: Any) -> str:
    """Four digits, as people write them."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < MAX_WHOLE)
    text = f"{int(value):,}" if whole else f"{value:.4g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        text = f"{mantissa} × 10{power}"
    return text.replace("-", "−") if isinstance(value, (int, float)) else text
