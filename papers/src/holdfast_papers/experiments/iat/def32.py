"""iat-def32: decaying, uniformly decaying and fading memory, and which RNNs have them (Def. 3.2, Remark 3.3, App. A.5 to A.7).

Uniform decay (eq. 8) is more than the decay of each member. Remark 3.3 says that all RNNs have decaying memory, by point-wise
continuity of dH/dt: the continuity holds at every finite time (A.6), the limit that A.5 takes does not. Fading memory (A.7)
neither follows from decaying memory nor gives it: the peak-hold operator, and a kernel of ever narrower spikes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import laws
from holdfast.approximate import fit_exponential_sum
from holdfast.decay import uniform_memory
from holdfast.figures import Axis, Figure, Line, Panel, Points
from holdfast.memory import MemoryCurve, memory_function
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.iat.fig11 import W2, _integrate
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

START = (0.9, 0.9)  # dh/dt at t = 0, outside the periodic orbit of W = [[1, 1], [-4, -3]]
FAMILIES = ("rates from 0.1 on", "rate 1/m", "fits of (1+t)^-1.5")
PARTS = ("families", "continuity", "peak hold", "spikes")


class PeakHold(nn.Module):
    """H_t(x) = largest |x_s| up to t: forgets nothing, and has nothing to forget after a step."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, 1) to (batch, time, 1)."""
        return x.abs().cummax(1).values


def run(config: Config, work: Work) -> Arrays:
    """One of the four parts."""
    return {"families": _families, "continuity": _continuity, "peak hold": _peak_hold, "spikes": _spikes}[
        config["part"]
    ](config)


def _families(config: Config) -> Arrays:
    """sup over m of M_m(t) for three families of linear models, at a time that every one of them has forgotten alone."""
    t = np.concatenate([[0.0], np.geomspace(0.1, config["horizon"], 200)])
    found = {}
    for name in FAMILIES:
        curves = [MemoryCurve(time=t, values=_member(name, m, t)) for m in 2 ** np.arange(config["doublings"] + 1)]
        found[name] = uniform_memory(curves).values
    alone = np.array([_member(name, 8, np.array([100 * 8**2]))[0] for name in FAMILIES])
    return {"time": t, "alone": alone, **found}


def _member(name: str, m: int, t: np.ndarray) -> np.ndarray:
    if name == "rate 1/m":
        return np.exp(-t / m)
    if name == "rates from 0.1 on":
        return np.exp(-np.outer(t, np.geomspace(0.1, 4, m))).mean(1)
    width = min(m, 32)  # wider fits are no better on rates up to 4
    fitted = fit_exponential_sum(laws.PowerLaw(1.5), width, "nonnegative", rates=np.geomspace(1 / width**2, 4, width))
    return np.abs(np.asarray(fitted(t)))


def _continuity(config: Config) -> Arrays:
    """The network of Fig. 11: outputs under ramps that become the Heaviside input, and its memory at late times."""
    dt, steps = 0.005, round(config["span"] / 0.005)
    U = np.arctanh(np.array(START))
    ramps, gaps = np.geomspace(1.0, 0.01, 7), []
    exact = _hidden(U, None, dt, round(5 / dt))
    for width in ramps:
        gaps.append(float(np.abs(_hidden(U, width, dt, round(5 / dt)) - exact)[-1].max()))
    late = _integrate(np.array([START]), dt, steps)[:, 0, 0]
    return {
        "ramps": ramps,
        "gaps": np.array(gaps),
        "time": np.arange(steps + 1)[::40] * dt,
        "memory": np.abs(late)[::40],
    }


def _hidden(U: np.ndarray, ramp: float | None, dt: float, steps: int) -> np.ndarray:
    """dh/dt of h' = tanh(W h + U x) at every step, x the Heaviside input or a ramp of that width; midpoint steps."""
    h, speed = np.zeros(2), []

    def slope(h: np.ndarray, t: float) -> np.ndarray:
        x = 1.0 if ramp is None else min(t / ramp, 1.0)
        return np.tanh(W2 @ h + U * x)

    for k in range(steps):
        middle = slope(h + dt / 2 * slope(h, k * dt), (k + 0.5) * dt)
        h = h + dt * middle
        speed.append(slope(h, (k + 1) * dt))
    return np.array(speed)


def _peak_hold(config: Config) -> Arrays:
    """Its memory function, and what one input of age s still counts, for growing s."""
    curve = memory_function(PeakHold(), input_size=1, horizon=200)
    ages = np.array([1, 10, 100, 1000])
    left = []
    for age in ages:
        x = torch.zeros(1, age + 1, 1, dtype=torch.float64)
        x[0, 0] = 1
        left.append(float(PeakHold()(x)[0, -1, 0]))
    return {"memory": curve.values, "ages": ages, "left": np.array(left)}


def _spikes(config: Config) -> Arrays:
    """rho = 1 on [n, n + 4^-n] for n = 0, 1, ...: rho(n) = 1 for ever, and rho / w is integrable with w = 2^-s."""
    n = np.arange(25.0)
    width = 4.0**-n
    mass = (2.0 ** (n + width) - 2.0**n) / math.log(2)  # integral of 2^s over a spike
    # inputs that differ by up to delta / w, constant over each spike: outputs differ by at most delta times that integral
    rng = np.random.default_rng(0)
    apart = [float(abs((rng.choice([-1, 1], len(n)) * 2.0**n * width).sum())) for _ in range(200)]
    share = np.array(apart) / mass.sum()
    return {"n": n, "memory": np.ones_like(n), "mass": mass, "share": share}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Uniform decay, Remark 3.3 and the two examples of Remark A.5."""
    part = {u.config["part"]: u.arrays for u in units}
    families, network, hold, spikes = (part[name] for name in PARTS)
    last = {name: float(families[name][-1]) for name in FAMILIES}
    order = float(np.polyfit(np.log(network["ramps"]), np.log(network["gaps"]), 1)[0])
    left = float(network["memory"][-len(network["memory"]) // 4 :].min())
    claims = [
        Claim.decide(
            "uniform",
            "Uniform decay (eq. 8) is more than that of each member: e^(-t/m) decays for every m, its largest over m does not; "
            "models with a common rate decay uniformly",
            float(families["alone"].max()) < 1e-3 and last["rate 1/m"] > 0.9 and last["rates from 0.1 on"] < 1e-6,
            {f"largest memory at t = {families['time'][-1]:g}, {name}": value for name, value in last.items()}
            | {"largest memory of one member, m = 8, late": float(families["alone"].max())},
            otherwise="The sup over the family does not behave as it should.",
            essential=True,
        ),
        Claim.decide(
            "long memory, uniformly",
            "Bounded fits of a power law decay uniformly, though their slowest rates go to 0",
            last["fits of (1+t)^-1.5"] < 1e-3,
            {
                "largest memory at the last time": last["fits of (1+t)^-1.5"],
                "first": float(families["fits of (1+t)^-1.5"][0]),
            },
            otherwise="Their sup does not decay.",
        ),
        Claim.decide(
            "continuity",
            "dH_t/dt of an RNN is point-wise continuous at Heaviside inputs, at every finite t (App. A.6)",
            order > 0.9,
            {
                "exponent of the difference in the ramp's width, t = 5": order,
                "smallest difference": float(network["gaps"][-1]),
            },
            otherwise="Ramps that approach the Heaviside input do not approach its output.",
            essential=True,
        ),
        Claim.decide(
            "remark 3.3",
            "RNNs have decaying memory, as the paper concludes from that continuity (Remark 3.3)",
            left < 1e-3,
            {f"smallest |dh_1/dt| in the last quarter, up to t = {network['time'][-1]:g}": left},
            otherwise="The tanh network of Fig. 11, whose W = [[1, 1], [-4, -3]] is Hurwitz, keeps moving for ever after "
            f"x = 1 with U = artanh({START}). App. A.5 exchanges the limit t -> inf with the functional; A.6 gives continuity "
            "for bounded times only.",
        ),
        Claim.decide(
            "decaying, not fading",
            "The peak-hold operator has decaying memory and no fading memory (Remark A.5)",
            float(hold["memory"][1:].max()) == 0 and float(hold["left"].min()) == 1,
            {"largest memory after t = 0": float(hold["memory"][1:].max())}
            | {f"what an input of age {s} counts": float(v) for s, v in zip(hold["ages"], hold["left"], strict=True)},
            otherwise="It forgets, or its memory function does not decay.",
            essential=True,
        ),
        Claim.decide(
            "fading, not decaying",
            "A linear functional whose kernel is a row of narrowing spikes has fading memory and no decaying "
            "memory (Remark A.5)",
            float(spikes["memory"].min()) == 1
            and float(spikes["mass"][-1]) < 1e-6
            and float(spikes["share"].max()) <= 1,
            {
                "rho at t = 24": float(spikes["memory"][-1]),
                "integral of |rho| / w": float(spikes["mass"].sum()),
                "its last term": float(spikes["mass"][-1]),
                "largest difference / bound, 200 inputs": float(spikes["share"].max()),
            },
            otherwise="The integral does not converge, or rho goes to 0.",
            essential=True,
        ),
    ]
    rows = [(name, float(a), last[name]) for name, a in zip(FAMILIES, families["alone"], strict=True)]
    heads = ("family", "one member, m = 8, at t = 6400", f"largest over all m at t = {families['time'][-1]:g}")
    table = Table("families", "Memory of one member and of the whole family.", heads, rows)
    return Conclusion(claims, [_figure(families, network, hold, spikes)], [table])


def _figure(families: Arrays, network: Arrays, hold: Arrays, spikes: Arrays) -> Figure:
    size = Axis("memory", log=True, limits=(1e-8, 3))
    first = [Line(n, families["time"] + 1, np.maximum(families[n], 1e-12), colour=k) for k, n in enumerate(FAMILIES)]
    panels = [
        Panel("sup over m", Axis("t + 1", log=True), size, first),
        Panel(
            "Fig. 11's network, one input",
            Axis("time t"),
            size,
            [Line("memory", network["time"], network["memory"], colour=0)],
        ),
        Panel(
            "Decaying or fading",
            Axis("age or time", log=True),
            Axis("what is left", limits=(-0.1, 1.2)),
            [
                Points("peak hold, what an old input counts", hold["ages"], hold["left"], colour=1),
                Points("spikes, rho", spikes["n"] + 1, spikes["memory"], colour=2),
                Line("spikes, integral of rho / w", spikes["n"] + 1, spikes["mass"] / spikes["mass"].max(), colour=3),
            ],
        ),
    ]
    caption = (
        "First panel: the largest memory of three families; e^(-t/m) does not decay uniformly. Second: a tanh network with "
        "Hurwitz W that never comes to rest. Third: the peak-hold operator forgets nothing though its memory function is 0, "
        "and the spikes' memory function stays 1 though old inputs count less and less."
    )
    return Figure("memory", caption, panels, columns=3)


EXPERIMENT = Experiment(
    id="iat-def32",
    where="Definition 3.2, Remark 3.3, App. A.5 to A.7",
    title="Decaying, uniformly decaying and fading memory",
    summary="The largest memory of families of models, a tanh network under inputs that approach a step, and two functionals "
    "that have one of decaying and fading memory without the other.",
    presets=presets({"doublings": 12, "horizon": 300.0, "span": 200.0}, quick={"span": 60.0}),
    units=lambda config: [
        {"part": "families", "doublings": config["doublings"], "horizon": config["horizon"]},
        {"part": "continuity", "span": config["span"]},
        *split({}, part=PARTS[2:]),
    ],
    run=run,
    conclude=conclude,
    cost=lambda config: 2.0,
)
