"""What Figures 5 and 6 have in common: random networks, their Heaviside memory, and the shape of its late decay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.experiments._networks import asymptotic_rate, capped, measure, random_network, tail, thinned, thinned_time
from holdfast.experiments.base import Arrays, Conclusion, Config, Unit, Work
from holdfast.figures import Axis, Figure, Line, Panel, Table
from holdfast.results import Claim

HORIZON = {"rnn": 800, "gru": 1500, "lstm": 1500, "ssm": 40_000, "s4": 80_000}
NAMES = {"rnn": "RNN", "gru": "GRU", "lstm": "LSTM", "ssm": "SSM, tanh between layers", "s4": "S4"}
POINTS = 400
SLACK = 0.9  # any rate below the predicted one must cap the curve; the full one may not, for a sum like t e^{-rt}
STRETCH = 2.0  # a power law would need an exponent above 11 to stretch its second half of the decades so little


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
    """The Heaviside memory of one network, the rate of its late decay and its stretch."""
    network = random_network(config["kind"], config["width"], config["depth"], config["seed"])
    curve = measure(network, "heaviside", config)
    late = tail(curve)
    predicted = asymptotic_rate(network, config["amplitude"])
    caps = [capped(curve, SLACK * predicted, power) for power in (config["depth"] - 1, 0)]
    work.log(status=curve.status, burn_in=curve.burn_in, notes=list(curve.notes))
    time = thinned_time(config["horizon"], POINTS)
    return {
        "time": time,
        "memory": thinned(curve, POINTS),
        "tail": np.array([late.rate, predicted, *caps, late.stretch]),
    }


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """A straight line in logarithmic scale caps every curve: its late decades take equal times."""
    rows = []
    for kind in config["kinds"]:
        for depth in config["depths"]:
            late = np.stack([u.arrays["tail"] for u in units if (u.config["kind"], u.config["depth"]) == (kind, depth)])
            rate, predicted = map(float, np.nanmedian(late[:, :2], axis=0))
            over, alone, longest = map(float, np.nanmax(late[:, 2:], axis=0))
            slowest, resolved = float(late[:, 1].min()), float(np.isfinite(late).all(1).mean())
            rows.append((NAMES[kind], depth, rate, predicted, slowest, over, alone, longest, resolved))
    slowest, resolved = (min(float(row[k]) for row in rows) for k in (4, 8))
    over, alone, longest = (max(float(row[k]) for row in rows) for k in (5, 6, 7))
    claims = [
        Claim.decide(
            "exponential",
            "The memory of every network is capped by a straight line in logarithmic scale: it decays exponentially",
            None if resolved < 1 else slowest > 0 and over <= 1,
            {
                "late excess over the cap": over,
                "late excess over a bare line": alone,
                "smallest predicted rate": slowest,
                "share of networks resolved": resolved,
            },
            otherwise="Some network decays more slowly than its linearisation, or not through eleven decades.",
            essential=True,
        ),
        Claim.decide(
            "equal decades",
            "Equal factors of late decay take equal times, to within a factor of 2",
            None if resolved < 1 else longest < STRETCH,
            {"largest stretch": longest},
            paper={"largest stretch": 1.0},
            otherwise="A state-space model with real eigenvalues is a sum of exponentials with rates far apart: each takes "
            "over from a faster one, and eleven decades are not enough for the slowest to be alone. The decay is "
            "exponential, but its rate is reached late.",
        ),
    ]
    notes = [
        "The cap is (1 + t)^(layers - 1) times an exponential: layers that feed each other with nearly equal rates make powers "
        "of t, which any flatter line caps, but in a four-layer GRU or LSTM only beyond the eleven decades that float64 shows "
        "(late excess over a bare line).",
        "The rate is not fitted: it is 0.9 of the rate that the weights predict, -log of the spectral radius of one "
        "step at the equilibrium under the constant input. The curve is capped where its ratio to the cap in the last third of "
        "the decay stays below the largest before.",
        "Stretch: how many times longer the memory takes from 3e-8 to 1e-11 of its largest value than from 1e-4 to 3e-8. It is "
        "1 for an exponential and 10^(3.5/p) for a power law with exponent p, so 3000 for p = 1.",
    ]
    heads = (
        "network", "layers", "late rate, median", "predicted rate, median", "predicted rate, smallest", "late excess",
        "without (1 + t)^(layers - 1)", "largest stretch", "share resolved",
    )  # fmt: skip
    table = Table("decay", "Late decay of the memory functions.", heads, rows)
    return Conclusion(claims, [_figure(config, units)], [table], notes)


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
        panels.append(Panel(NAMES[kind], Axis("step", limits=(0, end)), y, lines))
    caption = (
        "Memory of randomly initialised networks, median and range of the repeats: straight lines in logarithmic scale."
    )
    return Figure("memory", caption, panels)
