"""Figures of the theory page, drawn while the site is built: a block `{drawn} NAME` with its caption.

Each function draws one definition with the functions that compute it; nothing drawn is kept in the repository.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from docutils import nodes
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import holdfast

HARMLESS = 0.25  # of the target's norm: the level at which `assess_stability` takes a radius


def memory() -> Figure:
    """Measured memory of three layers, with their laws: straight on one pair of axes or the other."""
    power = holdfast.fit_exponential_sum(holdfast.laws.PowerLaw(1.5), order=16).to_layer("best")
    single = holdfast.nn.DiagonalSSM(1, 1, activation="identity", eigenvalues=torch.tensor([-0.05]))
    layers = {"one mode: e^(-t/20)": single, "built: (1 + t)^-1.5": power, "sum of all inputs": lambda x: x.cumsum(1)}
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
    for name, layer in layers.items():
        curve = holdfast.memory_function(layer, input_size=1, horizon=300, run=holdfast.memory.Run(dtype=torch.float32))
        for ax, shift in zip(axes, (0, 1), strict=True):
            ax.plot(curve.time + shift, curve.values / curve.values[0], label=name)
    axes[0].set(
        yscale="log", ylim=(1e-5, 2), xlabel="steps t", ylabel="memory M(t) / M(0)", title="exponential: a line here"
    )
    axes[1].set(xscale="log", xlabel="1 + t", title="a power of t: a line here")
    axes[1].legend(frameon=False)
    return figure


def radius() -> Figure:
    """E_m(beta) of a power law with direct weights and through exp, for three widths."""
    rho, betas = holdfast.laws.PowerLaw(1.5), np.geomspace(1e-4, 0.5, 40)
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
    for m in (8, 16, 24):
        fit = holdfast.fit_exponential_sum(rho, rates=np.geomspace(1 / m**2, 4, m))
        for ax, name in zip(axes, ("direct", "exp"), strict=True):
            curve = holdfast.kernel_perturbation_error(fit, rho, betas, parameterization=name)
            share = np.minimum(curve.errors / curve.target_norm, 20)  # a mode that grows: beyond the upper edge
            ax.loglog(betas, share, label=f"m = {m}")
            ax.set(xlabel="every weight moves by up to beta", title=f"{name} weights", ylim=(0.01, 10))
    for ax in axes:
        ax.axhline(HARMLESS, color="gray", ls=":", label="harmless up to here")
    axes[0].set(ylabel="error E(beta), share of the target")
    axes[1].legend(frameon=False)
    return figure


def gradient() -> Figure:
    """Gradient scale over weight, by how long a mode remembers."""
    steps = torch.logspace(0.5, 4, 100, dtype=torch.float64)
    figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for name in ("direct", "exp", "softplus", "best"):
        f = holdfast.parameterizations.get(name)
        w = f.inverse(-1 / steps)
        dashes = {"ls": "--"} if name == "softplus" else {}  # it lies on exp
        ax.loglog(steps, f.gradient_scale(w) / w.abs(), label=name, **dashes)
    ax.set(xlabel="steps that a mode remembers, 1 / |f(w)|", ylabel="gradient scale / |w|", ylim=(0.1, 1e12))
    ax.legend(frameon=False)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {"memory": memory, "radius": radius, "gradient": gradient}


class Drawn(SphinxDirective):
    """A figure of FIGURES, its caption being the content."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Draws it beside the pages, once a build."""
        name, caption = self.arguments[0], " ".join(self.content)
        file = Path(self.env.srcdir, "_figures", f"{name}.svg")
        file.parent.mkdir(exist_ok=True)
        figure = FIGURES[name]()
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)
        image = nodes.image(uri=f"/_figures/{name}.svg", alt=caption)
        return [nodes.figure("", image, nodes.caption("", caption))]


def setup(app: Sphinx) -> dict[str, bool]:
    """Offers the block."""
    app.add_directive("drawn", Drawn)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
