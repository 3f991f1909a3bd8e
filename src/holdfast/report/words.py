"""Numbers and settings as the page writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def shown(value: Any) -> str:
    """A setting of any kind."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {shown(v)}" for k, v in value.items())
    return number(value) if isinstance(value, float) else str(value)


def is_on_data(note: str) -> bool:
    """Whether a note says that other data than the paper's were used, or none: it then stands above everything."""
    return any(words in note for words in ("stand in for", "stands in for", "not on this machine"))


def number(value: Any) -> str:
    """Four digits, as people write them."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        text = f"{mantissa} × 10{power}"
    return text.replace("-", "−") if isinstance(value, (int, float)) else text
