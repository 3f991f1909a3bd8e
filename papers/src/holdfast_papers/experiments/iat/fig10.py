"""iat-fig10: memory of random RNN, GRU, LSTM and S4 by three probes; their decay rates agree."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from holdfast.figures import Axis, Dash, Figure, Line, Panel
from holdfast_papers.experiments._networks import measure, random_network, tail, thinned, thinned_time
from holdfast_papers.experiments._paired import equal
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

PROBES = ("heaviside", "impulse", "reversed")
HORIZON = {"rnn": 800, "gru": 1500, "lstm": 1500, "s4": 60_000}
ARCHITECTURES = {"rnn": "RNN", "gru": "GRU", "lstm": "LSTM", "s4": "S4"}
POINTS = 400
MARGIN = 1.25  # a factor within which rates agree
RESOLVED = 0.9  # share of the networks whose decay must be seen


def units(config: Config) -> list[Config]:
    """One a network."""
    rest = {key: config[key] for key in ("width", "amplitude")}
    return [
        {**rest, "kind": kind, "horizon": HORIZON[kind], "seed": seed}
        for kind in ARCHITECTURES
        for seed in range(config["repeats"])
    ]


def run(config: Config, work: Work) -> Arrays:
    """The memory function of one network by each probe, and the rate of its late decay."""
    network = random_network(config["kind"], config["width"], 1, config["seed"])
    arrays: dict[str, np.ndarray] = {"time": thinned_time(config["horizon"], POINTS)}
    rates = []
    for probe in work.steps(PROBES, "probes"):
        curve = measure(network, probe, config)
        arrays[probe] = thinned(curve, POINTS)
        rates.append(tail(curve).rate)
        work.log(probe=probe, status=curve.status, burn_in=curve.burn_in)
    return {**arrays, "rates": np.array(rates)}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The median rate of each architecture is the same by every probe."""
    rates = {kind: np.stack([u.arrays["rates"] for u in units if u.config["kind"] == kind]) for kind in ARCHITECTURES}
    rows: list[tuple[str | float, ...]] = []
    for kind, values in rates.items():
        median = np.nanmedian(values, axis=0)
        gap = float(np.abs(np.log(median / median[0])).max())
        each = np.exp(np.abs(np.log(values[:, 1:] / values[:, :1])))
        rows.append((ARCHITECTURES[kind], *map(float, median), math.exp(gap), float(np.nanmedian(each))))
    claims = [_agreement(kind, values) for kind, values in rates.items()]
    nonlinear = max(float(row[4]) for row in rows if row[0] != ARCHITECTURES["s4"])
    notes = [
        "The probes linearize a nonlinear network around different equilibria: that of the constant input x = 1 for "
        f"Heaviside, of zero input for the other two. Median rates of RNN, GRU and LSTM differ by up to {nonlinear - 1:.0%}.",
        "The input is x = 1 alone, not the sup over x of Def. 3.1.",
    ]
    heads = (
        "network",
        *(f"rate, {probe}" for probe in PROBES),
        "largest ratio of medians",
        "median ratio of one network",
    )
    caption = "Median decay rate (per step) of the random networks by each probe, and how far they are apart."
    return Conclusion(claims, [_figure(units)], [Table("rates", caption, heads, rows)], notes)


def _agreement(kind: str, rates: np.ndarray) -> Claim:
    """Whether the rates by the probes, (network, probe), are equal within MARGIN, network by network."""
    resolved = np.isfinite(rates).all(1)
    found = equal(dict(zip(PROBES, rates[resolved].T, strict=True)), math.log(MARGIN), factor=True)
    few = "Too few networks decayed by eleven decades." if resolved.mean() < RESOLVED else ""
    found = found.unless(few)
    return Claim.decide(
        f"rates, {ARCHITECTURES[kind]}",
        f"The decay rates of the {ARCHITECTURES[kind]}'s memory function agree between Heaviside, impulse and reversed "
        f"inputs, within a factor of {MARGIN:g}",
        found.holds,
        found.numbers | {"share of networks resolved": float(resolved.mean())},
        otherwise=found.why,
        essential=True,
    )


def _figure(units: Sequence[Unit]) -> Figure:
    panels = []
    for kind, name in ARCHITECTURES.items():
        chosen = [u.arrays for u in units if u.config["kind"] == kind]
        lines = []
        dashes: tuple[Dash, ...] = ("solid", "dash", "dot")  # the lines lie on each other
        for slot, probe in enumerate(PROBES):
            values = np.stack([a[probe] for a in chosen])
            low, middle, high = np.maximum(np.quantile(values, (0.1, 0.5, 0.9), axis=0), 1e-17)
            lines.append(Line(probe, chosen[0]["time"], middle, low, high, colour=slot, dash=dashes[slot]))
        end = next((t for t, v in zip(chosen[0]["time"], lines[0].y, strict=True) if v < 1e-15), chosen[0]["time"][-1])
        panels.append(
            Panel(name, Axis("step", limits=(0, float(end))), Axis("memory", log=True, limits=(1e-15, 1)), lines)
        )
    caption = (
        "Memory of randomly initialized networks: median and 10% to 90% of the repeats. The three probes decay alike."
    )
    return Figure("probes", caption, panels)


EXPERIMENT = Experiment(
    id="iat-fig10",
    where="Figure 10, App. H",
    title="Memory does not depend on the probe",
    summary="The memory functions of randomly initialized RNN, GRU, LSTM and S4 evaluated over Heaviside, impulse and "
    "reversed inputs, and the rates of their late decay.",
    presets=presets({"repeats": 20, "width": 64, "amplitude": 1.0}, quick={"repeats": 6, "width": 32}),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: {"rnn": 0.2, "gru": 0.5, "lstm": 0.5, "s4": 1.5}[config["kind"]],
)
