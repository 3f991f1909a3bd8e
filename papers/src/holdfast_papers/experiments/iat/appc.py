"""iat-appc: a rescaled linear RNN, e^{w_k t / k} instead of e^{w_k t}, is stable on one target and not on the next.

Both targets of the paper, sum_k k^-2 e^{-t/k} and sum_k k^-2 e^{-t/k^2}, have infinite L1 norm (they fall like 1/t and
t^-1/2), so that the functional norm of their error is infinite for every m. The error is therefore the largest
|rho(t) - s(t)| over all t, the norm of the functional on inputs with an integral of |x| of at most 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import laws
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.stability import perturbation_error
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

MODELS = {"rescaled": "e^{w_k t / k}", "plain": "e^{w_k t}"}
TARGETS = {1: "sum k^-2 e^{-t/k}", 2: "sum k^-2 e^{-t/k^2}"}
EXPECTED = {("rescaled", 1): "stable", ("plain", 1): "unstable", ("rescaled", 2): "unstable", ("plain", 2): "unstable"}


class Rescaled(nn.Module):
    """The first m terms of the target: s(t) = sum_k c_k exp(w_k t / scale_k), c_k = k^-2, at given times."""

    def __init__(self, m: int, power: int, rescaled: bool) -> None:
        super().__init__()
        k = torch.arange(1, m + 1, dtype=torch.float64)
        self.scale = k if rescaled else torch.ones_like(k)
        self.c = k**-2.0
        self.w = nn.Parameter(-self.scale / k**power)

    def forward(self, t: Tensor) -> Tensor:
        """(batch, time, 1) to (batch, time, 1)."""
        return (torch.exp(t * self.w / self.scale) * self.c).sum(-1, keepdim=True)


def run(config: Config, work: Work) -> Arrays:
    """E_m(beta): the worst case over |w~ - w| <= beta for each w."""
    rho = laws.ReciprocalSum(config["power"])
    # the slowest mode of the widest model is gone at 1e6; a growing one is infinite there
    times = np.concatenate([[0.0], np.geomspace(1e-2, config["last"], config["times"] - 1)])
    t = torch.from_numpy(times).reshape(1, -1, 1)
    model = Rescaled(config["m"], config["power"], config["model"] == "rescaled")
    curve = perturbation_error(
        model, t, rho(t), _sums.radii(config), norm="max-abs", search="adversarial", draws=config["draws"]
    )
    return {
        **_sums.curve_arrays(curve),
        "rates": (-model.w / model.scale).detach().numpy(),
        "weights": -model.w.detach().numpy(),
    }


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The rescaled network is stable on the first target and on the first alone; the plain one on neither."""
    curves = _sums.families(units, "model", "power")
    verdicts = _sums.verdicts(curves)
    claims = [
        _claim("first target, rescaled", "The rescaled RNN approximates sum k^-2 e^{-t/k} stably", verdicts, "rescaled", 1),
        _claim(
            "second target, rescaled", "The rescaled RNN does not approximate sum k^-2 e^{-t/k^2} stably", verdicts,
            "rescaled", 2,
        ),
        _claim(
            "first target, plain", "The plain linear RNN does not approximate sum k^-2 e^{-t/k} stably", verdicts, "plain", 1
        ),
        _claim(
            "second target, plain", "The plain linear RNN does not approximate sum k^-2 e^{-t/k^2} stably", verdicts, "plain", 2
        ),
    ]  # fmt: skip
    named: _sums.Verdicts = {(MODELS[model], TARGETS[power]): v for (model, power), v in verdicts.items()}
    tables = [Table("radii", "Radii by model and target.", ("model", "target", *_sums.HEADS), _sums.rows(named))]
    notes = [
        "The paper picks w_k = 1 for the first target; the sign is a slip, w_k = -1. Its weights lie at distance 1 from the "
        "boundary for every k. For the second target w_k = -1/k, at distance 1/k: the radius shrinks like 1/m. Any fixed "
        "rescaling has such a target.",
        "The approximants are the first m terms. The recurrent weights move; the paper does not say whether the "
        "coefficients do, and moved in a ball of fixed size they would add an error that grows with m.",
    ]
    return Conclusion(claims, [_figure(curves), _targets(config)], tables, notes)


def _claim(name: str, statement: str, verdicts: _sums.Verdicts, model: str, power: int) -> Claim:
    verdict = verdicts[model, power]
    return Claim.decide(
        name,
        statement,
        _sums.decided((verdict, EXPECTED[model, power])),
        _sums.numbers(verdict),
        otherwise=f"The verdict is {verdict.verdict}: {verdict.explanation}.",
        essential=model == "rescaled",
    )


def _figure(curves: _sums.Families) -> Figure:
    panels = [
        _sums.panel(f"{MODELS[model]}, {TARGETS[power]}", family, (1e-2, 1e2), legend=k == 0)
        for k, ((model, power), family) in enumerate(curves.items())
    ]
    caption = (
        "Worst-case error against the size of the perturbation. The rescaled network on its own target: every width turns up "
        "at the same beta. On the second target, and for the plain network on both: wider models break earlier "
        "(triangles: infinite)."
    )
    return Figure("errors", caption, panels)


def _targets(config: Config) -> Figure:
    t = np.geomspace(1, config["last"], 200)
    lines = [Line(name, t, np.asarray(laws.ReciprocalSum(p)(t)), colour=p) for p, name in TARGETS.items()]
    panel = Panel("", Axis("time t", log=True), Axis("memory rho(t)", log=True), lines)
    caption = "The two targets: straight lines in log-log axes, 1/t and t^-1/2. Neither has a finite integral."
    return Figure("targets", caption, [panel])


EXPERIMENT = Experiment(
    id="iat-appc",
    where="Appendix C",
    title="Rescaling is not a solution that works for every target",
    summary="Plain and rescaled linear RNNs that hold the first m terms of the paper's two sums of exponentials, and the worst "
    "case of their error under perturbation.",
    presets=presets(
        {
            "widths": [4, 8, 16, 32, 64], "smallest": 1e-4, "doublings": 14, "per_doubling": 2, "draws": 10, "times": 400,
            "last": 1e6,
        },
        quick={"widths": [8, 12, 16, 24], "per_doubling": 4, "times": 200},
    ),
    units=lambda config: split(
        {k: config[k] for k in ("smallest", "doublings", "per_doubling", "draws", "times", "last")},
        model=MODELS, power=TARGETS, m=config["widths"],
    ),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.1 * config["m"],
    version=2,
)  # fmt: skip
