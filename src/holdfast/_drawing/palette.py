"""Colours that colour-blind readers can tell apart (Okabe and Ito's set, brightened for a dark ground)."""

from __future__ import annotations

LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b0559a", "#b8860b", "#3b9bd6", "#5f6b76", "#8c2d5a")
DARK = ("#5ab4f0", "#ff9a5c", "#3fd0a2", "#e79bd0", "#efc04a", "#9ad6ff", "#aab6c2", "#f0809f")

# values of one quantity, the smallest first: ordered in brightness and hue
LIGHT_SCALE = ("#46327e", "#2f6aa8", "#1f968b", "#5aa832", "#c99700")
DARK_SCALE = ("#a995f2", "#6fb0f0", "#3fcfba", "#9adf62", "#f7d046")


def slots(colours: list[int | None], start: int = 0) -> list[int]:
    """A slot for each layer: its own, or the next from `start` on that nobody in the panel has."""
    taken = {c for c in colours if c is not None}
    free = (k for k in range(start, start + 10_000) if k not in taken)
    return [c if c is not None else next(free) for c in colours]
