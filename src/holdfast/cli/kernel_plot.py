"""The figure of `holdfast fit-kernel`: the kernel with a sum over it, and errors against the number of modes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from holdfast.cli.plot import new_figure, save
from holdfast.decay import KernelFit

SIZE = (10, 4)


def draw(path: Path, name: str, fit: KernelFit) -> None:
    """Writes the figure; the format follows the file's ending."""
    figure = new_figure(path, SIZE)
    left, right = figure.subplots(1, 2)
    left.plot(fit.time, np.abs(fit.values), ".", markersize=3, label="|rho|")
    left.plot(fit.time, np.abs(fit.best(fit.time)), linewidth=1, label=f"{fit.chosen} modes, {fit.best.method}")
    left.set(xlabel="t", yscale="log")
    left.legend()
    orders = sorted(fit.sums)
    right.loglog(orders, [fit.sums[m].l1_error for m in orders], "o-", label="L1 error")
    right.loglog(orders, [fit.sums[m].sup_error for m in orders], "s-", label="sup error")
    right.axhline(fit.tolerance * fit.size, color="grey", linestyle="--", label="tolerance (L1)")
    right.set(xlabel="modes")
    right.legend()
    figure.suptitle(name, parse_math=False)  # a name may hold a dollar sign
    save(figure, path)
