"""
Why long memory needs a stable parameterization
===============================================

You learn: how to build a layer for a decay law, and why direct weights break it.
Run time: about 4 s of CPU time, one thread.

A power law is approximated by sums of exponentials, and the weights are perturbed.

rho(t) = (1 + t)^-1.5 is approximated by m decaying modes with non-negative weights and geometric rates on [1/m^2, 4]. Then
the weight of the slowest mode is moved by beta. With a direct weight the mode becomes unstable at beta = 1/m^2, so a
better approximation tolerates a smaller perturbation. With exp or best
no mode becomes unstable. ("StableSSM", Sec. 3; "Inverse Approximation Theory", Fig. 1 and 4.)
"""

import math

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls

from holdfast import laws, parameterizations

RHO = laws.PowerLaw(1.5)
BETAS = (0.0, 0.0016, 0.006, 0.02, 0.1)


def fit(m):
    """Rates, weights and a quadrature rule in time, finer than the fastest rate near 0 and wide enough for the tail."""
    rates = np.geomspace(1 / m**2, 4.0, m)
    edges = np.concatenate([[0.0], np.geomspace(1e-3, 1e6, 4000)])
    t, step = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    modes = np.exp(-np.outer(t, rates))
    weights, _ = nnls(modes * np.sqrt(step)[:, None], RHO(t) * np.sqrt(step))
    return rates, weights, t, step


def error(name, rates, weights, t, step, beta):
    """L1 distance between rho and the sum after every free weight moved by beta toward slower decay."""
    f = parameterizations.get(name, **({"b": 0.2} if name == "best" else {}))
    w = f.inverse(torch.from_numpy(-rates))
    outward = torch.sign(f.derivative(w))
    lam = f(w + beta * outward).numpy()
    if (lam[weights > 0] >= 0).any():
        return math.inf
    approximation = np.exp(np.outer(t, lam)) @ weights
    tail = RHO.tail(float(t[-1]))
    return float(np.abs(approximation - RHO(t)) @ step) + tail


def main():
    table = Table(title="L1 error of an m-mode approximation of (1+t)^-1.5 after a perturbation beta")
    for column in ("m", "weight", *(f"beta={beta:g}" for beta in BETAS)):
        table.add_column(column, justify="right")
    for m in (4, 8, 16, 32):
        fitted = fit(m)
        for name in ("direct", "exp", "best"):
            errors = [error(name, *fitted, beta) for beta in BETAS]
            table.add_row(str(m), name, *("diverges" if math.isinf(e) else f"{e:.3f}" for e in errors))
        table.add_section()
    console = Console()
    console.print(table)
    console.print("The direct weight diverges at beta = 1/m^2; exp and best stay finite and improve with m.")


if __name__ == "__main__":
    main()
