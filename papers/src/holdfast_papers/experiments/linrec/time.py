"""linrec-time: the number of steps read off the state that counts, and inputs of unknown length rebuilt with it."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

import numpy as np
import torch

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.kernels import scan
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

EXACT = 1e-10  # relative error of inputs that counts as rounding: 256 steps there and back


def units(config: Config) -> list[Config]:
    """One eigenvalue per unit, and the inputs of unknown length."""
    counting = {"part": "counting", "longest": config["longest"]}
    turning = {"part": "turning", "longest": config["longest"]}
    inputs = {"part": "inputs", **drop(config, "longest", "eigenvalues", "angles"), "seed": 0}
    return [
        *split(counting, eigenvalue=[*config["eigenvalues"], 1 - 1 / config["longest"]]),
        *split(turning, angle=config["angles"]),
        inputs,
    ]


def run(config: Config, work: Work) -> Arrays:
    """Counting states of every length, by a real or a complex eigenvalue, or whole sequences of random length."""
    return {"counting": _counting, "turning": _turning, "inputs": _inputs}[config["part"]](config, work)


def _counting(config: Config, work: Work) -> Arrays:
    """k = log_lam(x (lam - 1) + 1) before it is rounded, from the states of our own recurrence; NaN where it saturated."""
    lam, longest = config["eigenvalue"], config["longest"]
    steps = np.arange(1, longest + 1)
    arrays = {"step": steps}
    for dtype in (torch.float64, torch.float32):
        ones = torch.ones(1, longest, 1, dtype=dtype)
        x = scan(torch.tensor([lam], dtype=dtype), ones)[0][0, :, 0].double()
        # float32 rounds the eigenvalue itself: the one that made the states is inverted
        used = float(torch.tensor(lam, dtype=dtype))
        rest = 1 - x * (1 - used)
        k = torch.where(rest > 0, torch.log1p(-x * (1 - used)) / math.log(used), math.nan).numpy()
        name = str(dtype).removeprefix("torch.")
        wrong = np.flatnonzero(~(np.abs(k - steps) < 0.25))
        first = int(steps[wrong[0]]) if len(wrong) else longest + 1
        told = min(first - 1, reconstruct.longest_count(used, dtype))  # beyond it the state fits several counts
        read = reconstruct.timestamp(x[:told], used).numpy()
        arrays |= {
            f"{name}.off": np.abs(k - steps),
            f"{name}.reach": np.array(first - 1),
            f"{name}.equal": np.array(bool((read == steps[:told]).all())),
        }
    return arrays


def _turning(config: Config, work: Work) -> Arrays:
    """k from the states of a complex eigenvalue of modulus 1 - 1/longest: by moduli, and by the principal logarithm."""
    longest = config["longest"]
    lam = (1 - 1 / longest) * cmath.exp(1j * config["angle"])
    ones = torch.ones(1, longest, 1, dtype=torch.complex128)
    x = scan(torch.tensor([lam], dtype=torch.complex128), ones)[0][0, :, 0]
    steps = np.arange(1, longest + 1)
    rest = (x * (lam - 1) + 1).numpy()
    moduli, principal = np.log(np.abs(rest)) / math.log(abs(lam)), np.log(rest) / cmath.log(lam)
    wrong = np.flatnonzero(~(np.abs(principal - steps) < 0.25))
    return {
        "off": np.array(np.abs(moduli - steps).max()),
        "misread": np.array(int((reconstruct.timestamp(x, lam).numpy() != steps).sum())),
        "principal": np.array(int(steps[wrong[0]]) - 1 if len(wrong) else longest),
    }


def _inputs(config: Config, work: Work) -> Arrays:
    """Embedded inputs (1, u_k), B of (N + 1) x 2: the state alone gives the length, and with it all inputs."""
    rng = torch.Generator().manual_seed(config["seed"])
    longest = config["sequence"]
    lam = torch.cat(
        [
            torch.tensor([reconstruct.counting_eigenvalue(longest)], dtype=torch.complex128),
            reconstruct.roots_of_unity(longest),
        ]
    )
    B = torch.zeros(longest + 1, 2, dtype=torch.complex128)
    B[0, 0] = 1
    B[1:, 1] = 1
    lengths = torch.randint(1, longest + 1, (config["count"],), generator=rng)
    errors, found = [], []
    for k in work.steps(lengths.tolist(), "sequences"):
        u = torch.randn(k, generator=rng, dtype=torch.float64)
        embedded = torch.stack([torch.ones_like(u), u], -1).to(torch.complex128)
        _, state = scan(lam, (embedded @ B.mT).unsqueeze(0))
        read = int(reconstruct.timestamp(state[0, :1].real, float(lam[0].real))[0])
        found.append(read)
        same = read == k
        errors.append(reconstruct.inputs(state[0, 1:], lam[1:], read).error(u) if same else math.inf)
    return {"length": lengths.numpy(), "read": np.array(found), "error": np.array(errors)}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Exact as far as wanted with an eigenvalue that suits; not with any in the disk."""
    counting = {u.config["eigenvalue"]: u.arrays for u in units if u.config["part"] == "counting"}
    inputs = next(u.arrays for u in units if u.config["part"] == "inputs")
    suited = counting[max(counting)]
    longest = config["longest"]
    reaches = {lam: int(a["float64.reach"]) for lam, a in counting.items()}
    turning = {u.config["angle"]: u.arrays for u in units if u.config["part"] == "turning"}
    claims = [
        Claim.decide(
            "timestamp",
            f"The number of steps is recovered from the counting state, up to {longest:,} steps",
            reaches[max(counting)] == longest and bool(suited["float64.equal"]),
            {"steps read correctly": float(reaches[max(counting)]), "largest error before rounding": _largest(suited)},
            paper={"steps read correctly": float(longest)},
            otherwise="The counting state loses steps to rounding.",
            essential=True,
        ),
        Claim.decide(
            "inputs",
            "With the number of steps so read, inputs of unknown length are rebuilt from the state alone",
            bool((inputs["read"] == inputs["length"]).all()) and float(inputs["error"].max()) < EXACT,
            {"sequences": float(len(inputs["length"])), "largest relative error": float(inputs["error"].max())},
            otherwise="Some length was misread, or its inputs are off by more than rounding.",
            essential=True,
        ),
        Claim.decide(
            "complex eigenvalue",
            f"The counting eigenvalue may be complex: k = log|x (lam - 1) + 1| / log|lam|, up to {longest:,} steps",
            all(int(a["misread"]) == 0 for a in turning.values()),
            {f"largest error before rounding, angle {angle:g}": float(a["off"]) for angle, a in turning.items()},
            otherwise="Some step is misread from the moduli.",
            essential=True,
        ),
        Claim.decide(
            "as printed",
            "The paper's k = log_lam(x (lam - 1) + 1) holds for a complex eigenvalue",
            all(int(a["principal"]) == longest for a in turning.values()),
            {f"steps read correctly, angle {angle:g}": float(a["principal"]) for angle, a in turning.items()},
            paper={f"steps read correctly, angle {angle:g}": float(longest) for angle in turning},
            otherwise="The principal logarithm is another branch once lam^k has turned past pi. The moduli give k all the "
            "same.",
        ),
        Claim.decide(
            "any modulus",
            "The paper asks only that the counting eigenvalue has modulus at most 1",
            min(reaches.values()) == longest,
            {f"steps read correctly, {lam:g}": float(reach) for lam, reach in reaches.items()},
            otherwise="At 1 the formula is 0/0, and an eigenvalue well below 1 saturates: lam^k is lost in rounding. A "
            "modulus near 1 - 1/length works.",
        ),
    ]
    rows = [
        (lam, dtype, int(a[f"{dtype}.reach"]), _largest(a, dtype))
        for lam, a in counting.items()
        for dtype in ("float64", "float32")
    ]
    heads = ("eigenvalue", "states in", "steps read correctly", "largest error before rounding")
    return Conclusion(claims, [_figure(counting)], [Table("reach", "How far each eigenvalue counts.", heads, rows)])


def _largest(arrays: Arrays, dtype: str = "float64") -> float:
    """Over the steps that are read correctly."""
    return float(arrays[f"{dtype}.off"][: int(arrays[f"{dtype}.reach"])].max())


def _figure(counting: dict[float, Arrays]) -> Figure:
    panels = []
    for dtype in ("float64", "float32"):
        lines = []
        for c, (lam, a) in enumerate(counting.items()):
            some = np.unique(np.geomspace(1, len(a["step"]), 300).round().astype(int)) - 1
            off = np.where(a["step"] <= a[f"{dtype}.reach"], np.maximum(a[f"{dtype}.off"], 1e-16), np.nan)
            lines.append(Line(f"lam = {lam:g}", a["step"][some], off[some], colour=c))
        axes = Axis("steps k", log=True), Axis("error of k before rounding", log=True, limits=(1e-16, 1))
        panels.append(Panel(f"States in {dtype}", *axes, lines))
    caption = (
        "Error of k = log_lam(x (lam - 1) + 1) before it is rounded to a whole number; a line ends where it passes a quarter "
        "of a step. Eigenvalues well below 1 end early, 1 - 1/length never does in float64."
    )
    return Figure("counting", caption, panels)


EXPERIMENT = Experiment(
    id="linrec-time",
    where="Section 3.1, eq. 27",
    title="The timestamp read off the state",
    summary="The number of steps from the state that counts, k = log_lam(x (lam - 1) + 1), for several eigenvalues, and "
    "inputs of random length rebuilt from the state alone.",
    presets=presets(
        {
            "longest": 10_000, "eigenvalues": [0.9, 0.99, 0.999], "angles": [0.01, 0.5, 2.0], "sequence": 256, "count": 64,
        },
        quick={"count": 16},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 0.1 * config["count"] if config["part"] == "inputs" else 0.2,
    version=2,
)  # fmt: skip
