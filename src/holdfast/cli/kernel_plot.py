"""The figure of `holdfast fit-kernel`: the kernel with a sum over it, and errors against the number of modes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from holdfast.approximate import ExponentialSum
from holdfast.cli.plot import new_figure, save

SIZE = (10, 4)


def draw(
    path: Path,
    name: str,
    time: np.ndarray,
    values: np.ndarray,
    chosen: ExponentialSum,
    sums: dict[int, ExponentialSum],
    tolerance: float,
) -> None:
    """Writes the figure; the format follows the file's ending."""
    figure = new_figure(path, SIZE)
    left, right = figure.subplots(1, 2)
    left.plot(time, np.abs(values), ".", markersize=3, label="|rho|")
    left.plot(time, np.abs(chosen(time)), linewidth=1, label=f"{chosen.order} modes, {chosen.method}")
    left.set(xlabel="t", yscale="log")
    left.legend()
    orders = sorted(sums)
    right.loglog(orders, [sums[m].l1_error for m in orders], "o-", label="L1 error")
    right.loglog(orders, [sums[m].sup_error for m in orders], "s-", label="sup error")
    right.axhline(tolerance, color="grey", linestyle="--", label="tolerance (L1)")
    right.set(xlabel="modes")
    right.legend()
    figure.suptitle(name, parse_math=False)  # a name may hold a dollar sign
    save(figure, path)
