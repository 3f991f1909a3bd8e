"""The figure of a certificate: eigenvalues beside the boundary that they must not cross."""

from __future__ import annotations

import numpy as np

from holdfast._types import Time
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Points, Rule


def spectrum(eigenvalues: np.ndarray, time: Time, words: str) -> Figure:
    """Eigenvalues in the plane: stable inside of the unit circle (discrete time) or left of 0 (continuous time)."""
    layers: list[Layer] = [Points("eigenvalues", eigenvalues.real, eigenvalues.imag)]
    if time == "discrete":
        angle = np.linspace(0, 2 * np.pi, 201)
        layers.append(Line("boundary", np.cos(angle), np.sin(angle), dash="dot", colour=6))
    else:
        layers.append(Rule("boundary", x=0.0))
    panel = Panel("Eigenvalues", Axis("real part"), Axis("imaginary part"), layers, equal=time == "discrete")
    return Figure("spectrum", f"Eigenvalues in the complex plane: {words}.", [panel])
