"""ssm-table1: weights, growth of the cost with the sequence length, and memory pattern of six kinds of sequence model."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
import torch

from holdfast.figures import Axis, Figure, Line, Panel, Rule
from holdfast.memory import InputSearch, memory_function
from holdfast_papers.experiments._networks import capped, tail
from holdfast_papers.experiments._paired import smaller, together
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.ssm._models import KERNEL, KINDS, reference_model
from holdfast_papers.experiments.ssm._random import SHARE
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

NAMES = {
    "rnn": "RNN", "tcn": "TCN", "transformer": "transformer",
    "ssm": "SSM", "ckconv": "CKConv", "linear transformer": "linear transformer",
}  # fmt: skip
ORDERS = {"rnn": 1, "tcn": 1, "transformer": 2, "ssm": 1, "ckconv": 1, "linear transformer": 1}  # of the cost in T
LONGER = {"tcn": 8, "ssm": 8, "ckconv": 8}  # fast ones run longer: their overhead of a few ms would hide the growth
RECURRENT = {"rnn": 2000, "ssm": 100_000}  # steps; the slowest mode of S4 decays by e^-0.0005 per step
PATTERNS = {"rnn": "exponential decay", "tcn": "low rank", "transformer": "no restriction"}
EXPONENT_TOLERANCE = 0.35  # how far a measured exponent may be from the order
LEVEL = 10.0  # the oldest and the latest lags count alike within this factor
CHANNELS = 4  # of the TCN whose kernel's rank is measured: below KERNEL^2, the rank that it could have


def units(config: Config) -> list[Config]:
    """Memory by kind and seed, the rank of TCN kernels by seed, and all costs in one unit, so that they share a machine."""
    sizes = {"width": config["width"], "depth": config["depth"]}
    memory = split({"part": "memory", "lags": config["lags"], **sizes}, kind=KINDS, seed=range(config["seeds"]))
    rank = split({"part": "rank", "depth": config["depth"]}, seed=range(config["seeds"]))
    cost = {"part": "cost", "lengths": config["lengths"], "repeats": config["repeats"], **sizes}
    return [cost, *memory, *rank]


def run(config: Config, work: Work) -> Arrays:
    """One of the three measurements."""
    parts = {"memory": _memory, "rank": _rank, "cost": _cost}
    return parts[config["part"]](config, work)


def _memory(config: Config, work: Work) -> Arrays:
    """Influence of each lag on the last output, mean |dy_T / dx_{T-lag}| over random inputs; for recurrent ones M(t) too."""
    model = reference_model(config["kind"], config["width"], config["depth"], config["seed"]).double()
    rng = torch.Generator().manual_seed(config["seed"])
    x = torch.randn(16, config["lags"], 1, generator=rng, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x)[:, -1].sum(), x)
    arrays = {
        "influence": gradient.abs().mean((0, 2)).flip(0).numpy(),
        "weights": np.array(model.mixing_weights()),
    }
    work.progress(0.5, "memory function")
    if config["kind"] in RECURRENT:
        one = torch.ones(1, 1, dtype=torch.float64)
        alone = InputSearch(candidates=one)
        curve = memory_function(model, horizon=RECURRENT[config["kind"]], probe="impulse", search=alone)
        late = tail(curve)
        last = np.flatnonzero(curve.values > 1e-3 * curve.values.max())[-1]
        arrays |= {
            "tail": np.array([late.rate, capped(curve, SHARE * late.rate)]),
            "reach": np.array(last),  # the last step at which M is above a thousandth of its largest value
        }
    return arrays


def _rank(config: Config, work: Work) -> Arrays:
    """Singular values of a linear TCN's kernel, folded as rho(k_1 .. k_L) with lag = sum k_l K^(l-1), cut in the middle."""
    depth = config["depth"]
    length = KERNEL**depth
    model = reference_model("tcn", CHANNELS, depth, config["seed"], activation=lambda h: h).double()
    x = torch.zeros(2, length + 64, 1, dtype=torch.float64)
    x[0, 0] = 1
    with torch.no_grad():
        y = model(x)[..., 0]
    rho = (y[0] - y[1]).numpy()
    folded = rho[:length].reshape(KERNEL ** (depth // 2), -1)
    noise = np.random.default_rng(config["seed"]).standard_normal(folded.shape)
    return {
        "values": np.linalg.svd(folded, compute_uv=False),
        "noise": np.linalg.svd(noise, compute_uv=False),
        "after": np.array(np.abs(rho[length:]).max() / np.abs(rho).max()),
    }


def _cost(config: Config, work: Work) -> Arrays:
    """Processor seconds of inference, the least of several turns in which all kinds and lengths alternate; in the log.

    Times differ from run to run: they are no arrays, which equal configs must give equal.
    """
    models = {kind: reference_model(kind, config["width"], config["depth"], 0) for kind in KINDS}
    least: dict[tuple[str, int], float] = {}
    with torch.no_grad():
        for turn in work.steps(range(config["repeats"] + 1), "turns"):
            for (kind, model), base in itertools.product(models.items(), config["lengths"]):
                length = base * LONGER.get(kind, 1)
                x = torch.randn(1, length, 1, generator=torch.Generator().manual_seed(length))
                begun = time.process_time()
                model(x)
                spent = time.process_time() - begun
                if turn:  # the first turn warms up
                    least[kind, length] = min(spent, least.get((kind, length), np.inf))
    for (kind, length), seconds in least.items():
        work.log(kind=kind, length=length, seconds=seconds)
    return {"lengths": np.array(config["lengths"])}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The rows of Table 1."""
    memory = {kind: [u for u in units if u.config.get("kind") == kind] for kind in KINDS}
    ranks = [u.arrays for u in units if u.config["part"] == "rank"]
    seconds = _seconds(next(u for u in units if u.config["part"] == "cost"))
    exponents = {kind: _exponent(seconds[kind]) for kind in KINDS}
    counts = {kind: int(found[0].arrays["weights"]) for kind, found in memory.items()}
    level = {kind: _level([u.arrays["influence"] for u in found]) for kind, found in memory.items()}
    claims = [
        _weights(config, counts),
        _growth(exponents),
        _exponential(memory),
        _low_rank(ranks, memory["tcn"], config),
        _unrestricted(level),
        _improved(memory, level, config),
    ]
    rows = [
        (
            NAMES[kind],
            counts[kind],
            exponents[kind],
            ORDERS[kind],
            level[kind],
            _tail(memory[kind])[1] if kind in RECURRENT else None,
            PATTERNS.get(kind, ""),
        )
        for kind in KINDS
    ]
    heads = (
        "model", "weights of the mixers", "measured exponent of the time in T", "order", "old / recent influence",
        "late excess of M over a line at half its rate", "pattern in the paper",
    )  # fmt: skip
    notes = [
        "Weights are those of the parts that mix over time, which Table 1 counts; encoder, decoder and the transformer's "
        "position-wise MLP are left out. The exponent is fitted to the three longest sequences; CKConv by FFT takes T log T.",
        "Low rank: the kernel of a linear TCN whose layer l is dilated by K^l, as a tensor in the digits of the lag, has "
        "rank at most the number of channels at every cut; with activations in between it holds for its linear part.",
    ]
    table = Table("models", "Six kinds of sequence model, measured.", heads, rows)
    return Conclusion(claims, [_costs(seconds), _influences(memory, config), _spectra(ranks)], [table], notes)


def _seconds(unit: Unit) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}
    for entry in unit.log:
        found[entry["kind"]][entry["length"]] = entry["seconds"]
    return found


def _exponent(seconds: dict[int, float]) -> float:
    """Slope of log time against log length over the three longest; shorter ones are overhead."""
    lengths = sorted(seconds)[-3:]
    return float(np.polyfit(np.log(lengths), np.log([seconds[t] for t in lengths]), 1)[0])


def _level(influences: Sequence[np.ndarray]) -> float:
    """Influence of the oldest quarter of the lags against the most recent quarter (lag 0 aside)."""
    mean = np.mean(influences, axis=0)[1:]
    quarter = len(mean) // 4
    return float(mean[-quarter:].mean() / mean[:quarter].mean())


def _tail(found: Sequence[Unit]) -> tuple[float, float]:
    """Over the seeds: the slowest late rate, and the largest excess over a line at half of it."""
    rate, over = np.stack([u.arrays["tail"] for u in found]).T
    return float(rate.min()), float(over.max())


def _weights(config: Config, counts: dict[str, int]) -> Claim:
    m, depth = config["width"], config["depth"]
    printed = {"rnn": depth * m * (m + m + m), "tcn": depth * m * KERNEL * m, "transformer": 3 * depth * m * m}
    return Claim.decide(
        "weights",
        "RNN: L m (m + d_in + d_out) weights, TCN: L C K d_in, transformer: 3 L m d_in",
        all(counts[kind] == count for kind, count in printed.items()),
        {NAMES[kind]: float(counts[kind]) for kind in printed},
        paper={NAMES[kind]: float(count) for kind, count in printed.items()},
        otherwise="A count differs.",
        essential=True,
    )


def _growth(exponents: dict[str, float]) -> Claim:
    wrong = {kind: e for kind, e in exponents.items() if not abs(e - ORDERS[kind]) < EXPONENT_TOLERANCE}
    return Claim.decide(
        "cost",
        "Inference costs O(T) for RNN and TCN, O(T^2) for the transformer, and about O(T) for SSM, CKConv, linear transformer",
        not wrong,
        # the exponents themselves are times of this machine, which differ from run to run: in the table
        {"exponents within 0.35 of the order": float(len(exponents) - len(wrong)), "models": float(len(exponents))},
        otherwise="Measured exponents: "
        + ", ".join(f"{NAMES[k]} {e:.2f} where {ORDERS[k]} was expected" for k, e in wrong.items())
        + ". Short sequences are overhead; longer ones or more repeats settle it.",
        essential=True,
    )


def _exponential(memory: dict[str, list[Unit]]) -> Claim:
    found = {kind: _tail(memory[kind]) for kind in RECURRENT}
    resolved = all(np.isfinite(values).all() for values in found.values())
    return Claim.decide(
        "exponential",
        "The memory of RNN and SSM decays exponentially: a straight line at half the fitted rate caps it",
        all(rate > 0 and over <= 1 for rate, over in found.values()) if resolved else None,
        {
            f"{what}, {NAMES[kind]}": values[k]
            for kind, values in found.items()
            for k, what in enumerate(("smallest rate", "late excess over the line"))
        },
        otherwise="Some curve rises above the line."
        if resolved
        else "Some curve did not fall through eleven decades within the horizon.",
        essential=True,
    )


def _low_rank(ranks: Sequence[Arrays], tcn: Sequence[Unit], config: Config) -> Claim:
    largest = max(int((a["values"] > 1e-10 * a["values"][0]).sum()) for a in ranks)
    full = min(int((a["noise"] > 1e-10 * a["noise"][0]).sum()) for a in ranks)
    reach = KERNEL ** config["depth"]
    after = max(float(u.arrays["influence"][reach:].max()) for u in tcn)
    return Claim.decide(
        "low rank",
        "The memory of a TCN is of low rank, and ends with its receptive field",
        largest <= CHANNELS < full and after == 0,
        {
            "rank": float(largest),
            "channels": float(CHANNELS),
            "rank of noise": float(full),
            "influence after the end": after,
        },
        otherwise="The rank exceeds the number of channels, or inputs before the receptive field have influence.",
        essential=True,
    )


def _unrestricted(level: dict[str, float]) -> Claim:
    value = level["transformer"]
    return Claim.decide(
        "no restriction",
        "The transformer's memory is not restricted to recent inputs: old ones count like new ones",
        1 / LEVEL < value < LEVEL,
        {"old / recent influence, transformer": value, "the same, RNN": level["rnn"]},
        otherwise="The oldest and the latest lags differ by more than a factor of ten.",
        essential=True,
    )


def _improved(memory: dict[str, list[Unit]], level: dict[str, float], config: Config) -> Claim:
    horizons = {NAMES[kind]: [float(u.arrays["reach"]) for u in memory[kind]] for kind in RECURRENT}
    longer = smaller(horizons, NAMES["rnn"], [NAMES["ssm"]], factor=True)
    reach = KERNEL ** config["depth"]
    mean = np.mean([u.arrays["influence"] for u in memory["ckconv"]], axis=0)
    beyond = float(mean[reach:].sum() / mean.sum())
    linear = level["linear transformer"]
    return Claim.decide(
        "improved versions",
        "SSM remembers longer than the RNN, CKConv beyond the TCN's end, the linear transformer as evenly as the transformer",
        together([longer.holds, beyond > 0 and 1 / LEVEL < linear < LEVEL]),
        {
            **{f"steps to 0.1%, {name}": float(np.median(found)) for name, found in horizons.items()},
            **{f"steps to 0.1%, {name}": value for name, value in longer.numbers.items()},
            f"CKConv, share of influence beyond {reach}": beyond,
            "linear transformer, old / recent influence": linear,
        },
        otherwise=longer.why or "One of the improved versions does not improve on its model here.",
        essential=True,
    )


def _costs(seconds: dict[str, dict[int, float]]) -> Figure:
    lines = [
        Line(NAMES[kind], sorted(found), [found[t] for t in sorted(found)], colour=c, markers=True)
        for c, (kind, found) in enumerate(seconds.items())
    ]
    panel = Panel("", Axis("sequence length T", log=True), Axis("processor seconds", log=True), lines)
    caption = "Time of inference: the transformer's grows with the square of the length, all others about linearly."
    return Figure("cost", caption, [panel])


def _influences(memory: dict[str, list[Unit]], config: Config) -> Figure:
    panels = []
    for chosen in (("rnn", "tcn", "transformer"), ("ssm", "ckconv", "linear transformer")):
        lines = []
        for c, kind in enumerate(chosen):
            mean = np.mean([u.arrays["influence"] for u in memory[kind]], axis=0)
            values = np.where(mean > 1e-18, mean, np.nan)
            lines.append(Line(NAMES[kind], np.arange(len(mean)), values, colour=c))
        layers = [*lines, Rule("TCN's end", x=float(KERNEL ** config["depth"]))]
        axes = Axis("lag"), Axis("influence on the last output", log=True, limits=(1e-18, 10))
        panels.append(Panel(", ".join(NAMES[kind] for kind in chosen), *axes, layers))
    caption = (
        "Mean influence of each lag on the last output of random models. The RNN's falls on a straight line, the TCN's ends "
        "at its receptive field, the transformer's is level; second panel, their improved versions."
    )
    return Figure("influence", caption, panels)


def _spectra(ranks: Sequence[Arrays]) -> Figure:
    index = np.arange(1, len(ranks[0]["values"]) + 1)
    lines = []
    for c, (key, name) in enumerate((("values", f"TCN of {CHANNELS} channels"), ("noise", "random kernel"))):
        for k, a in enumerate(ranks):
            values = np.maximum(a[key] / a[key][0], 1e-18)
            lines.append(Line(name, index, values, colour=c, legend=k == 0, markers=True))
    panel = Panel("", Axis("index"), Axis("singular value of the folded kernel", log=True), lines)
    caption = f"Kernels folded in the digits of the lag: a TCN of {CHANNELS} channels has {CHANNELS} singular values."
    return Figure("rank", caption, [panel])


EXPERIMENT = Experiment(
    id="ssm-table1",
    where="Table 1",
    title="Sequence models compared: weights, cost, memory",
    summary="Random models of six kinds, built alike: weights counted, time of inference against the sequence length, "
    "influence of old inputs on the last output, late decay of the memory function, rank of convolution kernels.",
    presets=presets(
        {
            "width": 16, "depth": 4, "seeds": 3, "lags": 1024,
            "lengths": [1024, 2048, 4096, 8192, 16_384], "repeats": 4,
        },
        quick={"seeds": 2, "lengths": [1024, 2048, 4096, 8192], "repeats": 3},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 20.0 if config["part"] == "cost" else 4.0 if config.get("kind") == "ssm" else 1.0,
    version=2,
)  # fmt: skip
