"""iat-fig11: tanh RNNs whose memory does not decay, and the phase portrait of a two-dimensional one.

Under an input that is constant after t = 0, v = dh/dt = tanh(z) obeys dv/dt = (1 - v^2) o (W v), whatever U, x and b: the
memory function is |c'v|. The origin is stable when W is Hurwitz, but that holds near it only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch

from holdfast.figures import Axis, Figure, Layer, Line, Panel, Points
from holdfast.kernels import rnn
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

W2 = np.array([[1.0, 1.0], [-4.0, -3.0]])
CORNERS = {"(1, 1)": (1.0, 1.0), "(-1, -1)": (-1.0, -1.0)}
GONE, KEPT = 1e-3, 0.1  # of the start: below the first memory has decayed, above the second it has not


def units(config: Config) -> list[Config]:
    """Random networks by seed, and the portrait."""
    networks = {"part": "networks", **{k: config[k] for k in ("count", "horizon", "dt", "abscissa")}}
    portrait = {"part": "portrait", **{k: config[k] for k in ("grid", "span", "time_step")}}
    return [*split(networks, width=config["widths"], gain=config["gains"], seed=range(config["seeds"])), portrait]


def run(config: Config, work: Work) -> Arrays:
    """Memory functions of random networks, or the portrait of the two-dimensional one."""
    return _networks(config, work) if config["part"] == "networks" else _portrait(config, work)


def _networks(config: Config, work: Work) -> Arrays:
    """|c'v(t)| after a Heaviside input, by Euler steps of our own kernel.

    W ~ N(0, gain^2/m), moved along the diagonal until its spectral abscissa is `abscissa` < 0: all are Hurwitz.
    """
    rng = torch.Generator().manual_seed(config["seed"])
    m, steps = config["width"], round(config["horizon"] / config["dt"])
    every = max(1, steps // 500)
    curves = []
    for _ in work.steps(range(config["count"]), "networks"):
        W = config["gain"] / math.sqrt(m) * torch.randn(m, m, generator=rng, dtype=torch.float64)
        W = W + (config["abscissa"] - torch.linalg.eigvals(W).real.max()) * torch.eye(m, dtype=torch.float64)
        U = torch.randn(m, 1, generator=rng, dtype=torch.float64)
        c = torch.randn(m, generator=rng, dtype=torch.float64) / math.sqrt(m)
        x = torch.ones(1, steps, 1, dtype=torch.float64)
        h, _ = rnn(x, W, U, None, None, dt=config["dt"], activation="tanh")
        v = torch.diff(h[0], dim=0, prepend=torch.zeros(1, m, dtype=torch.float64)) / config["dt"]
        curves.append((v @ c).abs()[::every].numpy())
    return {"time": np.arange(0, steps, every) * config["dt"], "memory": np.stack(curves)}


def _portrait(config: Config, work: Work) -> Arrays:
    """Trajectories of v from a grid of starts, the periodic orbit (an attractor of reversed time), and its multiplier."""
    step, steps = config["time_step"], round(config["span"] / config["time_step"])
    side = np.linspace(-0.95, 0.95, config["grid"])
    start = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    path = _integrate(start, step, steps)
    work.progress(0.5, "periodic orbit")
    back = _integrate(np.array([[0.05, 0.05]]), -step, 20 * steps)[:, 0]
    orbit, period = _last_turn(back, step)
    radii = np.linspace(0.9, 1.1, 5)
    around = _integrate(radii[:, None] * orbit[0], step, 8 * steps)
    size = np.abs(around).max(-1)
    return {
        "time": np.arange(steps + 1) * step,
        "start": start,
        "path": path[:: max(1, steps // 200)].astype(np.float32),
        "last": np.abs(path[-steps // 4 :]).max((0, 2)),
        "orbit": orbit,
        "period": np.array(period),
        "radii": radii,
        "around": size[:: max(1, len(size) // 800)],
        "around_time": (np.arange(len(size)) * step)[:: max(1, len(size) // 800)],
    }


def _speed(v: np.ndarray) -> np.ndarray:
    return (1 - v**2) * (v @ W2.T)


def _integrate(v: np.ndarray, step: float, steps: int) -> np.ndarray:
    """Classical Runge-Kutta steps, all starts at once; (steps + 1, starts, 2)."""
    path = np.empty((steps + 1, *v.shape))
    path[0] = v
    for k in range(steps):
        a = _speed(v)
        b = _speed(v + step / 2 * a)
        c = _speed(v + step / 2 * b)
        d = _speed(v + step * c)
        v = np.clip(v + step / 6 * (a + 2 * b + 2 * c + d), -1, 1)  # rounding must not leave the square
        path[k + 1] = v
    return path


def _last_turn(path: np.ndarray, step: float) -> tuple[np.ndarray, float]:
    """The last full turn of a path in reversed time, put forwards, and its duration (crossings of v2 = 0 interpolated)."""
    first, second = path[:, 0], path[:, 1]
    a, b = np.flatnonzero((second[:-1] * second[1:] <= 0) & (first[:-1] > 0))[-2:]
    begin, end = (k + second[k] / (second[k] - second[k + 1]) for k in (a, b))
    return path[a : b + 1][::-1], float(end - begin) * step


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Non-decaying cases exist; the corners are saddles, not the attractors that the paper calls them."""
    networks = [u for u in units if u.config["part"] == "networks"]
    portrait = next(u.arrays for u in units if u.config["part"] == "portrait")
    memory = np.concatenate([u.arrays["memory"] for u in networks])
    size = np.concatenate([np.full(len(u.arrays["memory"]), u.config["width"]) for u in networks])
    gain = np.concatenate([np.full(len(u.arrays["memory"]), u.config["gain"]) for u in networks])
    time = networks[0].arrays["time"]
    quarter = len(time) // 4
    left = memory[:, -quarter:].max(1) / memory.max(1)
    kept, gone = float((left > KEPT).mean()), float((left < GONE).mean())
    outside = float((portrait["last"] > 0.5).mean())
    saddle = {name: np.sort(np.linalg.eigvals(_jacobian(np.array(v))).real) for name, v in CORNERS.items()}
    claims = [
        Claim.decide(
            "random",
            "Some randomly initialized tanh RNNs have memory that does not decay, though their W is Hurwitz",
            kept > 0,
            {
                "share not decayed": kept,
                "share decayed": gone,
                "networks": float(len(memory)),
                "largest real part of W": config["abscissa"],
            },
            otherwise="Every network that was drawn forgot its input: among large random W that are Hurwitz such cases are "
            "rare. The two-dimensional example shows that they exist.",
            essential=True,
        ),
        Claim.decide(
            "two-dimensional",
            "With W = [[1, 1], [-4, -3]], whose eigenvalues are both -1, some starts never decay",
            outside > 0,
            {"share of starts that do not decay": outside, "largest real part of W": -1.0},
            otherwise="Every start on the grid went to the origin.",
            essential=True,
        ),
        Claim.decide(
            "periodic",
            "There is a periodic trajectory of dh/dt, so a periodic memory function",
            bool(portrait["period"] > 0) and _returns(portrait["orbit"]) < 1e-2,
            {"period": float(portrait["period"]), "gap after one turn": _returns(portrait["orbit"])},
            otherwise="No closed orbit was found going backwards in time from the origin.",
            essential=True,
        ),
        Claim.decide(
            "attractors",
            "(1, 1) and (-1, -1) are attractors of dh/dt, as the paper says",
            all(bool((values < 0).all()) for values in saddle.values()),
            {f"eigenvalue {k + 1} at {name}": float(v) for name, vs in saddle.items() for k, v in enumerate(vs)},
            otherwise="Both are saddles: attracting along v1, repelling along v2. What lies outside the periodic orbit "
            "approaches the cycle of the four corners, slower at each turn, and settles in none of them; the orbit is "
            "the unstable boundary between that cycle and the origin.",
        ),
    ]
    figures = [_memories(time, memory, left), _phase(portrait), _around(portrait)]
    heads = ("equilibrium", "eigenvalue 1", "eigenvalue 2", "kind")
    rows = [("(0, 0)", -1.0, -1.0, "stable"), *((n, float(v[0]), float(v[1]), "saddle") for n, v in saddle.items())]
    tables = [
        Table("equilibria", "Linearization of dv/dt = (1 - v^2) o (W v) at its equilibria.", heads, rows),
        _by_kind(size, gain, left),
    ]
    return Conclusion(claims, figures, tables, arrays={"width": size, "gain": gain, "left": left})


def _by_kind(size: np.ndarray, gain: np.ndarray, left: np.ndarray) -> Table:
    rows = []
    for m, g in itertools.product(np.unique(size), np.unique(gain)):
        these = left[(size == m) & (gain == g)]
        rows.append((int(m), float(g), len(these), float((these < GONE).mean()), float((these > KEPT).mean())))
    caption = (
        f"Random networks: memory in the last quarter below {GONE:g} (decayed) or above {KEPT:g} (kept) of its largest."
    )
    return Table("gains", caption, ("units", "gain of W", "networks", "share decayed", "share kept"), rows)


def _jacobian(v: np.ndarray) -> np.ndarray:
    return np.diag(-2 * v * (W2 @ v)) + (1 - v**2)[:, None] * W2


def _returns(orbit: np.ndarray) -> float:
    """Distance between the ends of one turn against the orbit's size."""
    return float(np.linalg.norm(orbit[0] - orbit[-1]) / np.linalg.norm(orbit, axis=1).max())


def _memories(time: np.ndarray, memory: np.ndarray, left: np.ndarray) -> Figure:
    order = np.argsort(left)
    shown = {"decays": order[:3], "does not decay": order[-3:]}
    lines = [
        Line(label, time, np.maximum(memory[i], 1e-16), colour=slot, legend=k == 0)
        for slot, (label, chosen) in enumerate(shown.items())
        for k, i in enumerate(chosen)
    ]
    panel = Panel("", Axis("time t"), Axis("memory |d/dt H_t(u)|", log=True, limits=(1e-16, 10)), lines)
    caption = "Heaviside memory of random tanh RNNs: the three that forgot most and the three that forgot least."
    return Figure("random-networks", caption, [panel])


def _phase(portrait: Arrays) -> Figure:
    kept = portrait["last"] > 0.5
    layers: list[Layer] = []
    for slot, (label, which) in enumerate((("to the origin", ~kept), ("does not decay", kept))):
        path = portrait["path"][:, which]
        gap = np.full((1, *path.shape[1:]), np.nan)
        joined = np.concatenate([path, gap]).transpose(1, 0, 2).reshape(-1, 2)
        layers.append(Line(label, joined[:, 0], joined[:, 1], colour=slot))
    orbit = portrait["orbit"]
    layers.append(Line("periodic orbit", orbit[:, 0], orbit[:, 1], colour=3))
    corners = np.array([[0, 0], *CORNERS.values()])
    layers.append(Points("equilibria", corners[:, 0], corners[:, 1], colour=4))
    panel = Panel(
        "", Axis("v1 = dh1/dt", limits=(-1.05, 1.05)), Axis("v2 = dh2/dt", limits=(-1.05, 1.05)), layers, True
    )
    caption = (
        "Phase portrait of dv/dt = (1 - v^2) o (W v). Inside the periodic orbit trajectories go to the origin, outside "
        "they approach the cycle through the corners."
    )
    return Figure("phase-portrait", caption, [panel])


def _around(portrait: Arrays) -> Figure:
    lines = [
        Line(f"{r:.3g} of the orbit", portrait["around_time"], portrait["around"][:, k], colour=k)
        for k, r in enumerate(portrait["radii"])
    ]
    panel = Panel("", Axis("time t"), Axis("largest |v|", log=True, limits=(1e-8, 2)), lines)
    caption = "Starts just inside the periodic orbit decay, starts just outside do not: the orbit is the boundary."
    return Figure("boundary", caption, [panel])


EXPERIMENT = Experiment(
    id="iat-fig11",
    where="Figure 11, App. I.1",
    title="Nonlinear RNNs with memory that does not decay",
    summary="Heaviside memory functions of random tanh RNNs with Hurwitz W, and the phase portrait of dh/dt for the paper's "
    "two-dimensional example with its periodic orbit found in reversed time.",
    presets=presets(
        {
            "seeds": 4, "count": 32, "widths": [2, 4, 16, 64], "gains": [0.5, 1.0, 1.5, 2.0], "abscissa": -0.1,
            "horizon": 200.0, "dt": 0.05,
            "grid": 15, "span": 40.0, "time_step": 0.005,
        },
        quick={"seeds": 1, "count": 16, "widths": [2, 4, 16], "horizon": 100.0, "grid": 11, "time_step": 0.01},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 3.0 if config["part"] == "portrait" else 0.05 * config["count"],
    version=2,
)  # fmt: skip
