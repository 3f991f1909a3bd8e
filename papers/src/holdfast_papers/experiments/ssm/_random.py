"""What Figures 5 and 6 have in common: random networks, their Heaviside memory, and the shape of its late decay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.memory import MemoryCurve
from holdfast_papers.experiments._networks import (
    asymptotic_rate,
    capped,
    measure,
    random_network,
    tail,
    thinned,
    thinned_time,
)
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

HORIZON = {"rnn": 800, "gru": 1500, "lstm": 1500, "ssm": 40_000, "s4": 80_000}
SECONDS = {"rnn": 0.2}  # of a unit of depth 1; 0.5 of other kinds
ARCHITECTURES = {"rnn": "RNN", "gru": "GRU", "lstm": "LSTM", "ssm": "SSM, tanh between layers", "s4": "S4"}
POINTS = 400
SHARE = 0.5  # eq. 24 asks for some c0 > 0: this share of the fitted rate


def units(config: Config) -> list[Config]:
    """One a network."""
    rest = {key: config[key] for key in ("width", "amplitude")}
    return [
        {**rest, "kind": kind, "horizon": HORIZON[kind], "depth": depth, "seed": seed}
        for kind in config["kinds"]
        for depth in config["depths"]
        for seed in range(config["repeats"])
    ]


def run(config: Config, work: Work) -> Arrays:
    """The Heaviside memory of one network, the rate of its late decay, and what a line at half that rate leaves."""
    network = random_network(config["kind"], config["width"], config["depth"], config["seed"])
    curve = measure(network, "heaviside", config)
    late = tail(curve)
    predicted = asymptotic_rate(network, config["amplitude"])
    work.log(status=curve.status, burn_in=curve.burn_in, notes=list(curve.notes))
    return {
        "time": thinned_time(config["horizon"], POINTS),
        "memory": thinned(curve, POINTS),
        "tail": np.array([late.rate, predicted, capped(curve, SHARE * late.rate), late.end / late.rate]),
    }


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """A straight line in logarithmic scale caps every curve."""
    rows = []
    for kind in config["kinds"]:
        for depth in config["depths"]:
            chosen = [u.arrays for u in units if (u.config["kind"], u.config["depth"]) == (kind, depth)]
            late = np.stack([a["tail"] for a in chosen])
            rate, predicted = map(float, np.nanmedian(late[:, :2], axis=0))
            over, some = float(np.nanmax(late[:, 2])), max(_some_excess(a) for a in chosen)
            slowest, end = float(np.nanmin(late[:, :2])), float(np.nanmin(late[:, 3]))
            resolved = float(np.isfinite(late).all(1).mean())
            rows.append((ARCHITECTURES[kind], depth, rate, predicted, slowest, over, some, resolved, end))
    slowest, resolved = (min(float(row[k]) for row in rows) for k in (4, 7))
    over, some = (max(float(row[k]) for row in rows) for k in (5, 6))
    claims = [
        Claim.decide(
            "exponential",
            "The memory of every network is capped by a straight line in logarithmic scale, at half the rate of its slowest "
            "mode: there is a c_0 > 0 with e^(c_0 t) M(t) -> 0 (eq. 24)",
            None if resolved < 1 else slowest > 0 and some <= 1,
            {
                "late excess over the line": some,
                "smallest rate": slowest,
                "share of networks resolved": resolved,
                "late excess at half the fitted rate": over,
            },
            otherwise="Some network decays more slowly than half the rate of its slowest mode.",
            essential=True,
        ),
    ]
    notes = [
        f"Eq. 24 asks for some c_0 > 0: {SHARE:g} of the rate that the weights predict, -log of the spectral radius of one "
        "step at the equilibrium under the constant input. Capped: M(t) e^(c_0 t) in the last third of the decay stays below "
        "its largest value before.",
        "The rate that is fitted between 1e-4 and 1e-11 of the largest value, in the table too, need not be the last one: a "
        "sum of real exponentials with rates far apart slows down as each takes over from a faster one, and eleven decades do "
        "not show the slowest alone. A line at half of it is no cap, then.",
    ]
    heads = (
        "network", "layers", "late rate, median", "predicted rate, median", "smallest rate", "late excess at half the late "
        "rate",
        "at half the predicted rate", "share resolved", "rate of the last third / late rate",
    )  # fmt: skip
    table = Table("decay", "Late decay of the memory functions.", heads, rows)
    return Conclusion(claims, [_figure(config, units)], [table], notes)


def _some_excess(a: Arrays) -> float:
    """Late excess over a line at half the predicted rate."""
    return capped(MemoryCurve(time=a["time"].astype(float), values=a["memory"]), SHARE * float(a["tail"][1]))


def _figure(config: Config, units: Sequence[Unit]) -> Figure:
    panels = []
    for kind in config["kinds"]:
        lines, end = [], 1.0
        for slot, depth in enumerate(config["depths"]):
            chosen = [u.arrays for u in units if (u.config["kind"], u.config["depth"]) == (kind, depth)]
            values = np.stack([a["memory"] / a["memory"].max() for a in chosen])
            low, high = np.maximum((values.min(0), values.max(0)), 1e-17)
            time = chosen[0]["time"]
            label = f"{depth} layer{'s' if depth > 1 else ''}"
            lines.append(Line(label, time, np.maximum(np.median(values, 0), 1e-17), low, high, colour=slot))
            end = max(end, float(next((t for t, v in zip(time, high, strict=True) if v < 1e-14), time[-1])))
        y = Axis("memory / its largest value", log=True, limits=(1e-14, 1))
        panels.append(Panel(ARCHITECTURES[kind], Axis("step", limits=(0, end)), y, lines))
    caption = (
        "Memory of randomly initialized networks, median and range of the repeats: straight lines in logarithmic scale."
    )
    return Figure("memory", caption, panels)


def experiment(number: int, title: str, summary: str, kinds: Sequence[str]) -> Experiment:
    """Figure 5 or 6 of the paper: memory of random networks of these kinds.

    Args:
        number: of the figure.
        title: of the experiment.
        summary: of the experiment.
        kinds: of the networks.
    """
    return Experiment(
        id=f"ssm-fig{number}",
        where=f"Figure {number}",
        title=title,
        summary=summary,
        presets=presets(
            {"kinds": [*kinds], "repeats": 10, "width": 64, "depths": [1, 2, 4], "amplitude": 1.0},
            quick={"repeats": 3, "width": 32, "depths": [1, 2]},
        ),
        units=units,
        run=run,
        conclude=conclude,
        version=2,
        cost=lambda config: SECONDS.get(config["kind"], 0.5) * config["depth"],
    )
