"""The figure of `holdfast fit-kernel`: the kernel with a sum over it, and errors against the number of modes."""

from __future__ import annotations

import numpy as np

from holdfast.decay import KernelFit
from holdfast.figures import Axis, Figure, Line, Panel, Points, Rule


def kernel_figure(name: str, fit: KernelFit) -> Figure:
    """|rho| and the chosen sum over time; L1 and sup errors over the number of modes, with the tolerance."""
    orders = sorted(fit.sums)
    kernel = [
        Points("|rho|", fit.time, np.abs(fit.values)),
        Line(f"{fit.chosen} modes, {fit.best.method}", fit.time, np.abs(fit.best(fit.time))),
    ]
    errors = [
        Line("L1 error", orders, [fit.sums[m].l1_error for m in orders], markers=True),
        Line("sup error", orders, [fit.sums[m].sup_error for m in orders], markers=True),
        Rule("tolerance (L1)", y=fit.tolerance * fit.size),
    ]
    panels = [
        Panel(name, Axis("t"), Axis("|rho|", log=True), kernel),
        Panel("Errors", Axis("modes", log=True), Axis("error", log=True), errors),
    ]
    return Figure("kernel", f"{name} with the sum of {fit.chosen} modes, and errors by the number of modes.", panels)
