"""iat-appj: a GRU remembers locally exactly as its linearization says: memory decays where it is Hurwitz.

dh/dt = z o (tanh(U_h (r o h)) - h) near h = 0 has the Jacobian Diag(sig(b_z)) (U_h Diag(sig(b_r)) - I) (eq. 142). 0 need
not be the only equilibrium: where it is unstable the state goes to others, whose Jacobians are looked at too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from holdfast.figures import Axis, Figure, Line, Panel, Points, Rule
from holdfast.nn import ContinuousGRU
from holdfast.stability import certify
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

INPUT_SIZE = 1e-7  # size of the input: the state stays where the linearization holds
LOCAL, FLOOR = 1e-4, 1e-14  # outputs above the first are no longer local, below the second rounding


def run(config: Config, work: Work) -> Arrays:
    """The response to a small impulse, its rate, the rate of the linearization, and the equilibria."""
    gru = _network(config)
    lam = gru.eigenvalues().detach().numpy()
    predicted = float(np.log(np.abs(1 + config["dt"] * lam)).max() / config["dt"])  # of Euler's steps
    steps = round(config["horizon"] / config["dt"])
    x = torch.zeros(1, steps, 1, dtype=torch.float64)
    x[:, 0] = INPUT_SIZE
    with torch.no_grad():
        y = gru(x)[0].flatten().abs().numpy()
    work.progress(0.5, "equilibria")
    time = np.arange(steps) * config["dt"]
    found = certify(gru, seed=config["seed"]).equilibria
    every = max(1, steps // 400)
    return {
        "time": time[::every],
        "memory": y[::every] / INPUT_SIZE,
        "abscissa": np.array(lam.real.max()),
        "predicted": np.array(predicted),
        "measured": np.array(_rate(time, y)),
        "margins": np.array([e.margin for e in found]),
    }


def _network(config: Config) -> ContinuousGRU:
    rng = torch.Generator().manual_seed(config["seed"])
    n = config["width"]
    gru = ContinuousGRU(1, n, dt=config["dt"]).double()
    with torch.no_grad():
        for weight, scale in ((gru.W, 1.0), (gru.U, 1 / math.sqrt(n)), (gru.C, 1 / math.sqrt(n))):
            weight.copy_(scale * torch.randn(weight.shape, generator=rng, dtype=torch.float64))
        gru.U[2 * n :] *= config["gain"]
        assert gru.b is not None
        gru.b[: 2 * n] = torch.randn(2 * n, generator=rng, dtype=torch.float64)
        gru.b[2 * n :] = 0.0  # so that h = 0 is an equilibrium
    return gru


def _rate(time: np.ndarray, y: np.ndarray) -> float:
    """Slope of the envelope of log |y| over the second half of the time in which the response is local and clear."""
    outside = np.flatnonzero((y > LOCAL) | (np.maximum.accumulate(y[::-1])[::-1] < FLOOR))
    end = int(outside[outside > 10][0]) if (outside > 10).any() else len(y)
    t, v = time[end // 2 : end], y[end // 2 : end]
    growing = v[-len(v) // 4 :].max() > v[: len(v) // 4].max()
    envelope = np.maximum.accumulate(v) if growing else np.maximum.accumulate(v[::-1])[::-1]
    return float(np.polyfit(t, np.log(envelope), 1)[0])


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Hurwitz where the measured rate is negative, and nowhere else."""
    predicted, measured, abscissa = (
        np.array([float(u.arrays[k]) for u in units]) for k in ("predicted", "measured", "abscissa")
    )
    gain = np.array([u.config["gain"] for u in units])
    # a rate below 3 e-folds over the measured time is not distinguishable from 0
    clear = np.abs(predicted) > 3 / config["horizon"]
    wrong = int(((abscissa < 0) != (measured < 0))[clear].sum())
    apart = np.abs(measured - predicted)
    claims = [
        Claim.decide(
            "hurwitz",
            "Memory decays locally exactly where the linearization of the GRU is Hurwitz",
            None if clear.mean() < 0.8 else wrong == 0,
            {
                "networks": float(len(units)),
                "networks with a rate that is told from 0": float(clear.sum()),
                "contradictions": float(wrong),
                "share Hurwitz": float((abscissa < 0).mean()),
                "median distance of rates": float(np.median(apart)),
            },
            paper={"contradictions": 0.0},
            otherwise="A network decays although its linearization is unstable, or the other way round.",
            essential=True,
        ),
        Claim.decide(
            "only equilibrium",
            "The paper warns that h = 0 might not be the only equilibrium: others exist where 0 is unstable",
            bool(all(len(u.arrays["margins"]) > 1 for u, a in zip(units, abscissa, strict=True) if a > 0.05)),
            {"most equilibria of one network": float(max(len(u.arrays["margins"]) for u in units))},
            otherwise="For some network with an unstable 0 no other equilibrium was found: it may go around a cycle.",
        ),
    ]
    figures = [_rates(predicted, measured), _curves(units)]
    return Conclusion(claims, figures, [_table(units, gain, abscissa, apart)])


def _rates(predicted: np.ndarray, measured: np.ndarray) -> Figure:
    ends = np.array([predicted.min(), predicted.max()])
    layers = [
        Points("networks", predicted, measured, colour=0),
        Line("equal", ends, ends, colour=6, dash="dash"),
        Rule("", y=0.0),
    ]
    panel = Panel("", Axis("rate of the linearization"), Axis("measured rate"), layers)
    return Figure("rates", "Measured rate of the memory of random GRUs against that of their linearization.", [panel])


def _curves(units: Sequence[Unit]) -> Figure:
    order = sorted(units, key=lambda u: float(u.arrays["abscissa"]))
    chosen = {"most stable": order[0], "middle": order[len(order) // 2], "most unstable": order[-1]}
    lines = [
        Line(
            f"{name}, max Re = {float(u.arrays['abscissa']):.2f}",
            u.arrays["time"],
            np.where(u.arrays["memory"] > FLOOR / INPUT_SIZE, u.arrays["memory"], np.nan),
            colour=k,
        )
        for k, (name, u) in enumerate(chosen.items())
    ]
    panel = Panel("", Axis("time t"), Axis("memory of a small impulse", log=True), lines)
    return Figure(
        "curves", "Response to a small impulse of three GRUs; the unstable one grows until it saturates.", [panel]
    )


def _table(units: Sequence[Unit], gain: np.ndarray, abscissa: np.ndarray, apart: np.ndarray) -> Table:
    rows = []
    for g in np.unique(gain):
        of = gain == g
        margins = [u.arrays["margins"] for u in units if u.config["gain"] == g]
        stable = float(np.mean([bool((m > 0).any()) for m in margins]))
        count = float(np.median([len(m) for m in margins]))
        rows.append((float(g), float((abscissa[of] < 0).mean()), float(np.median(apart[of])), count, stable))
    heads = (
        "gain of U_h",
        "share Hurwitz at 0",
        "median distance of rates",
        "median equilibria found",
        "share with a stable one",
    )
    return Table("gains", "Random GRUs by the gain of their recurrent weights.", heads, rows)


EXPERIMENT = Experiment(
    id="iat-appj",
    where="Appendix J",
    title="GRUs decay locally as their linearization does",
    summary="Random continuous-time GRUs: the response to a small impulse against the eigenvalues of the Jacobian at h = 0, "
    "and the equilibria that there are beside it.",
    presets=presets(
        {"repeats": 10, "gains": [0.5, 1.0, 2.0, 3.0, 4.0, 6.0], "width": 16, "dt": 0.05, "horizon": 200.0},
        quick={"repeats": 2, "gains": [1.0, 2.0, 4.0, 6.0], "width": 8, "horizon": 100.0},
    ),
    units=lambda config: split(drop(config, "repeats", "gains"), gain=config["gains"], seed=range(config["repeats"])),
    run=run,
    conclude=conclude,
    cost=lambda config: 1.5,
)
