"""ssm-appa: memory of two-layer linear RNNs, in closed form (eq. 38, corrected) and measured.

rho(t) = sum_ij C_i U1_ij U2_j (e^{l2_j t} - e^{l1_i t}) / (l2_j - l1_i), t e^{lt} where rates meet. The paper prints
U1_ij C U2 for the weights of a pair; i belongs to C and j to U2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.memory import closed_form, memory_function
from holdfast.nn import LinearRNN
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim


class TwoLayers(nn.Module):
    """A diagonal linear RNN that reads another one."""

    def __init__(self, lam1: Tensor, lam2: Tensor, C: Tensor, U1: Tensor, U2: Tensor) -> None:
        super().__init__()
        n = len(lam2)
        kind: dict[str, Any] = {"structure": "diagonal", "parameterization": "direct"}
        self.lower = LinearRNN(1, n, out_features=n, **kind).double()
        self.upper = LinearRNN(n, len(lam1), out_features=1, **kind).double()
        with torch.no_grad():
            # set in float64: a layer is built in torch's default dtype
            self.lower.recurrence.set_(lam2)
            self.upper.recurrence.set_(lam1)
            self.lower.U.copy_(U2.unsqueeze(-1))
            self.lower.C.copy_(torch.eye(n))
            self.upper.U.copy_(U1)
            self.upper.C.copy_(C.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, 1) to (batch, time, 1)."""
        return self.upper(self.lower(x)[0])[0]


def run(config: Config, work: Work) -> Arrays:
    """The memory three ways: closed form, measured by probes (discrete time), by matrix exponentials (continuous)."""
    rng = torch.Generator().manual_seed(config["seed"])
    n = config["width"]
    rate1 = 0.02 + 0.5 * torch.rand(n, generator=rng, dtype=torch.float64)
    # rates of the second layer this close to those of the first: from apart to meeting
    rate2 = rate1 + config["gap"] * (0.5 + torch.rand(n, generator=rng, dtype=torch.float64))
    C, U2 = torch.randn(2, n, generator=rng, dtype=torch.float64)
    U1 = torch.randn(n, n, generator=rng, dtype=torch.float64)
    steps = torch.arange(config["horizon"] + 1)
    lam1, lam2 = torch.exp(-rate1), torch.exp(-rate2)
    exact = closed_form.two_layer(lam1, lam2, C, U1, U2, steps, time="discrete").memory()
    network = TwoLayers(lam1, lam2, C, U1, U2)
    arrays = {"step": steps.numpy(), "discrete": exact.numpy()}
    for probe in ("impulse", "heaviside"):
        arrays[probe] = memory_function(network, horizon=config["horizon"], probe=probe).values
    work.progress(0.5, "matrix exponentials")
    t = torch.linspace(0, config["horizon"], 201, dtype=torch.float64)
    rho = closed_form.two_layer(-rate1, -rate2, C, U1, U2, t).rho.flatten()
    block = torch.cat(
        [torch.cat([torch.diag(-rate1), U1], 1), torch.cat([torch.zeros(n, n).double(), torch.diag(-rate2)], 1)]
    )
    zeros = torch.zeros(n, dtype=torch.float64)
    dense = closed_form.dense(block, torch.cat([zeros, U2]), torch.cat([C, zeros]), t).rho.flatten()
    return {**arrays, "time": t.numpy(), "continuous": rho.numpy(), "exponentials": dense.numpy()}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Measured equals closed form to rounding, also where rates meet."""
    rows = []
    for gap in config["gaps"]:
        chosen = [u.arrays for u in units if u.config["gap"] == gap]
        errors = [
            max(_error(a[measured], a[exact]) for a in chosen)
            for measured, exact in (("impulse", "discrete"), ("heaviside", "discrete"), ("exponentials", "continuous"))
        ]
        rows.append((gap, *errors))
    worst = max(max(row[1:]) for row in rows)
    claims = [
        Claim.decide(
            "closed form",
            "The memory of a two-layer linear RNN equals its closed form to rounding",
            # sums of n^2 terms of both signs: their rounding is some hundred units against the largest value
            worst < 1e-12,
            {"largest error against the largest value": worst, "networks": float(len(units))},
            otherwise="The measured memory differs from the closed form by more than rounding.",
            essential=True,
        )
    ]
    heads = ("gap between the rates", "impulse, discrete", "Heaviside, discrete", "matrix exponential, continuous")
    table = Table("errors", "Largest difference from the closed form, against the largest value of rho.", heads, rows)
    notes = ["Eq. 38 prints U1_ij C U2 for the weight of a pair of rates; with vectors C and U2 it is C_i U1_ij U2_j."]
    return Conclusion(claims, [_figure(config, units)], [table], notes)


def _error(measured: np.ndarray, exact: np.ndarray) -> float:
    return float(np.abs(measured - exact).max() / np.abs(exact).max())


def _figure(config: Config, units: Sequence[Unit]) -> Figure:
    panels = []
    for gap in (config["gaps"][0], config["gaps"][-1]):
        a = next(u.arrays for u in units if u.config["gap"] == gap)
        lines = [
            Line("closed form", a["step"], np.maximum(a["discrete"], 1e-18), colour=0),
            Line("measured, impulse", a["step"], np.maximum(a["impulse"], 1e-18), colour=1, dash="dash"),
        ]
        panels.append(Panel(f"Rates {gap:g} apart", Axis("step"), Axis("memory", log=True), lines))
    return Figure("memory", "Memory of two two-layer linear RNNs: the measured curve lies on the closed form.", panels)


EXPERIMENT = Experiment(
    id="ssm-appa",
    where="Appendix A, eq. 38",
    title="Memory of two-layer linear RNNs",
    summary="The closed form of the memory of random two-layer linear RNNs against the memory measured from their outputs "
    "and against matrix exponentials, from rates apart to rates that meet.",
    presets=presets(
        {"repeats": 10, "width": 16, "horizon": 200, "gaps": [0.3, 1e-3, 1e-8, 0.0]}, quick={"repeats": 2, "width": 8}
    ),
    units=lambda config: split(drop(config, "repeats", "gaps"), gap=config["gaps"], seed=range(config["repeats"])),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.3,
)
