"""Colours that colour-blind readers can tell apart, and which layer of a figure has which, in all panels alike."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.figures import Bars, Layer, Line, Points

LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b0559a", "#b8860b", "#3b9bd6", "#5f6b76", "#8c2d5a")
DARK = ("#5ab4f0", "#ff9a5c", "#3fd0a2", "#e79bd0", "#efc04a", "#9ad6ff", "#aab6c2", "#f0809f")

# values of one quantity, the smallest first: ordered in brightness and hue
LIGHT_SCALE = ("#46327e", "#2f6aa8", "#1f968b", "#5aa832", "#c99700")
DARK_SCALE = ("#a995f2", "#6fb0f0", "#3fcfba", "#9adf62", "#f7d046")
SCALE = 4  # values of one quantity from which on they are colours of a scale


def slots(colours: list[int | None], start: int = 0) -> list[int]:
    """A slot for each layer: its own, or the next from `start` on that is free in the panel."""
    taken = {c for c in colours if c is not None}
    free = (k for k in range(start, start + 10_000) if k not in taken)
    return [c if c is not None else next(free) for c in colours]


class Colours:
    """The colour of each layer of a figure: a slot of the palette, or a place from 0 to 1 on a scale.

    Layers called by values of one quantity ("m = 4", "m = 8", ...) lie on the scale, in the order of the values; so do
    layers of which there are more than the palette has colours, in the order of their slots.

    Args:
        layers: all layers of the figure.
        start: first slot of layers that ask for none, where others have been drawn into the same axes before.

    Attributes:
        by_value: whether names are values of one quantity; each of them then has a line of its own in the legend, since a
            panel may have other values than the one whose legend is shown.
    """

    def __init__(self, layers: Sequence[Layer], start: int = 0) -> None:
        drawn = [layer for layer in layers if isinstance(layer, (Line, Points, Bars))]
        names = list(dict.fromkeys(layer.label for layer in drawn))
        free = list(dict.fromkeys(layer.label for layer in drawn if layer.colour is None))
        taken = [*(layer.colour for layer in drawn if layer.colour is not None), *[None] * len(free)]
        self._slots = dict(zip(free, slots(taken, start)[len(taken) - len(free) :], strict=True))
        used = sorted({self._slot(layer) for layer in drawn})
        ordered = _by_value(names)
        self.by_value = ordered is not None
        self._scale: dict[str | int, float] = {}
        if ordered is not None:
            self._scale = {name: k / (len(ordered) - 1) for k, name in enumerate(ordered)}
        elif len(used) > len(LIGHT):
            self._scale = {slot: k / (len(used) - 1) for k, slot in enumerate(used)}

    def _slot(self, layer: Line | Points | Bars) -> int:
        return self._slots[layer.label] if layer.colour is None else layer.colour

    def place(self, layer: Layer) -> tuple[int, float | None]:
        """The slot of the `layer`, and its place on the scale if it lies there."""
        if not isinstance(layer, (Line, Points, Bars)):
            return 0, None
        slot = self._slot(layer)
        return slot, self._scale.get(layer.label, self._scale.get(slot))

    def light(self, layer: Layer) -> str:
        """The colour on a light ground, like "#0072b2"."""
        slot, place = self.place(layer)
        return LIGHT[slot % len(LIGHT)] if place is None else _between(LIGHT_SCALE, place)


def _by_value(names: Sequence[str]) -> list[str] | None:
    """The names of values of one quantity, the smallest first; None where they are other names, or few."""
    values = [re.fullmatch(r"(\S+) = (-?\d+(?:\.\d+)?(?:e-?\d+)?)", name) for name in names]
    known = [match for match in values if match]
    if len(known) < len(names) or len(names) < SCALE or len({match.group(1) for match in known}) > 1:
        return None
    return sorted(names, key=lambda name: float(name.split(" = ")[1]))


def _between(stops: Sequence[str], place: float) -> str:
    """The colour at a place from 0 to 1 between the first and the last of some."""
    k = min(int(place * (len(stops) - 1)), len(stops) - 2)
    share = place * (len(stops) - 1) - k
    pairs = zip(bytes.fromhex(stops[k][1:]), bytes.fromhex(stops[k + 1][1:]), strict=True)
    return "#" + bytes(round(a + share * (b - a)) for a, b in pairs).hex()
