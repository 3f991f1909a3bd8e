"""linrec-lemma8: one continuous map for all times, from maps at whole times (Lemma 8, eq. 26 to 31).

The MLP after the recurrence is one map for every step: the outputs T_k and the pseudo-inverses Omega_k^+ are extended to
real t. Continuity is measured: how far the extension jumps across a whole t, for smaller and smaller steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

NAMES = {"outputs": "outputs of a causal map (eq. 26)", "inputs": "inputs rebuilt from a state (eq. 31)"}
EXACT = 1e-7  # relative error of rebuilt inputs: conditions up to 1e9 times rounding
Maps = Callable[[int], Tensor]


def run(config: Config, work: Work) -> Arrays:
    """Jumps of both extensions, corrected and printed; errors at whole t; what later inputs change."""
    rng = torch.Generator().manual_seed(config["seed"])
    L, steps = config["length"], np.geomspace(1e-1, 1e-6, config["points"])
    psi = reconstruct.haar_basis(L, config["functions"])
    u = psi @ torch.randn(config["functions"], generator=rng, dtype=torch.float64)
    lam = reconstruct.ring_eigenvalues(config["modes"], config["r_min"], seed=rng)
    outputs = _causal(u)
    # rebuilt at time k from the state x_k, on the whole length (eq. 29)
    states = [reconstruct.encode(u[:k], lam) for k in range(1, L + 1)]
    solvers = {k: reconstruct.decoder(lam, k, basis=psi[:k]) for k in range(1, L + 1)}
    whole = range(2, L)
    arrays: dict[str, np.ndarray] = {"steps": steps}
    for name in work.steps(NAMES, "extensions"):
        for kind, extend in (("corrected", reconstruct.interpolated), ("printed", _printed)):
            jumps = np.zeros((len(steps), len(whole)))
            for j, k in enumerate(whole):
                # the state is that of step k, whatever t is: the map's own continuity is looked at
                maps = outputs if name == "outputs" else _rebuilt(solvers, psi, states[k - 1])
                size = float(maps(k).abs().max())
                for i, h in enumerate(steps):
                    jumps[i, j] = float((extend(maps, k + h) - extend(maps, k - h)).abs().max()) / size
            arrays[f"{name}.{kind}"] = jumps.max(1)
    at_whole = [_rebuilt(solvers, psi, states[k - 1]) for k in whole]
    errors = [
        float((reconstruct.interpolated(m, _time(config, k))[:k] - u[:k]).norm() / u[:k].norm())
        for k, m in zip(whole, at_whole, strict=True)
    ]
    zero = max(float(_printed(m, float(k)).abs().max()) for k, m in zip(whole, at_whole, strict=True))
    return {
        **arrays,
        "error": np.array(errors),
        "printed_at_whole": np.array(zero),
        "later": np.array(_later(u, outputs)),
    }


def _causal(u: Tensor) -> Maps:
    """T_k(u) = max of the running sum up to k, and its square: causal, continuous in u, not linear."""
    running = u.cumsum(0)
    return lambda k: torch.stack([running[:k].max(), running[k - 1] ** 2])


def _rebuilt(solvers: dict[int, reconstruct.Decoder], psi: Tensor, state: Tensor) -> Maps:
    return lambda n: psi @ solvers[n](state)


def _printed(maps: Maps, t: float) -> Tensor:
    """Eq. 26 and 31 as they stand."""
    up, down = math.ceil(t), math.floor(t)
    return (up - t) * maps(up) + (t - down) * maps(down)


def _time(config: Config, k: int) -> float:
    """t from the counting state after k steps (eq. 30), rounded to a whole number where it is within rounding of one."""
    lam = reconstruct.counting_eigenvalue(config["length"])
    state = (1 - lam**k) / (1 - lam)
    return float(reconstruct.timestamp(state, lam))


def _later(u: Tensor, maps: Maps) -> float:
    """What other inputs after step k change of the extension at t <= k."""
    k = len(u) // 2
    other = torch.cat([u[:k], u[k:] + 1])
    changed = _causal(other)
    times = (1.0, k - 0.5, float(k))
    return max(
        float((reconstruct.interpolated(maps, t) - reconstruct.interpolated(changed, t)).abs().max()) for t in times
    )


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Corrected, the extension is continuous and right at whole t; printed, it is neither."""
    a = units[0].arrays
    steps = a["steps"]
    slopes = {
        (name, kind): float(np.polyfit(np.log(steps), np.log(np.maximum(a[f"{name}.{kind}"], 1e-300)), 1)[0])
        for name in NAMES for kind in ("corrected", "printed")
    }  # fmt: skip
    worst = float(a["error"].max())
    claims = [
        Claim.decide(
            "continuous",
            "The extension is continuous in t: across whole times it moves in proportion to the step",
            all(abs(slopes[name, "corrected"] - 1) < 0.01 for name in NAMES),
            {f"exponent of the jump in the step, {name}": slopes[name, "corrected"] for name in NAMES}
            | {f"jump at a step of {steps[-1]:.0e}, {name}": float(a[f"{name}.corrected"][-1]) for name in NAMES},
            paper={f"exponent of the jump in the step, {name}": 1.0 for name in NAMES},
            otherwise="The jump does not vanish with the step.",
            essential=True,
        ),
        Claim.decide(
            "exact",
            "At t = k the extension gives the inputs up to k back from the state x_k alone, k read off the counting state (eq. "
            "27 to 31)",
            worst < EXACT,
            {"largest relative error": worst, "steps": float(len(a["error"]))},
            otherwise="Some inputs come back with more than rounding.",
            essential=True,
        ),
        Claim.decide(
            "causal",
            "The extension at t <= k does not depend on inputs after k",
            float(a["later"]) == 0,
            {"largest change": float(a["later"])},
            otherwise="Later inputs change it.",
            essential=True,
        ),
        Claim.decide(
            "as printed",
            "(ceil t - t) T_ceil + (t - floor t) T_floor is continuous and gives T_k at t = k (eq. 26, 31)",
            all(abs(slopes[name, "printed"] - 1) < 0.01 for name in NAMES) and float(a["printed_at_whole"]) > 0,
            {f"exponent of the jump in the step, {name}": slopes[name, "printed"] for name in NAMES}
            | {f"jump at a step of {steps[-1]:.0e}, {name}": float(a[f"{name}.printed"][-1]) for name in NAMES}
            | {"value at whole t": float(a["printed_at_whole"])},
            otherwise="Both weights are 0 at whole t, and from the two sides it comes near T_(k+1) and T_(k-1): the weights "
            "are exchanged, and ceil t must be floor t + 1.",
        ),
    ]
    rows = [
        (NAMES[name], kind, slopes[name, kind], float(a[f"{name}.{kind}"][0]), float(a[f"{name}.{kind}"][-1]))
        for name, kind in slopes
    ]
    heads = ("map", "form", "exponent of the jump", f"jump at {steps[0]:.0e}", f"jump at {steps[-1]:.0e}")
    table = Table("jumps", "Largest jump across a whole t, relative to the map's size.", heads, rows)
    return Conclusion(claims, [_figure(a)], [table])


def _figure(a: Arrays) -> Figure:
    panels = []
    for name, words in NAMES.items():
        lines = [
            Line(kind, a["steps"], a[f"{name}.{kind}"], colour=k, markers=True, legend=name == "outputs")
            for k, kind in enumerate(("corrected", "printed"))
        ]
        panels.append(Panel(words, Axis("step across a whole t", log=True), Axis("relative jump", log=True), lines))
    caption = "Jump of the extension across whole times: corrected it vanishes with the step, as printed it does not."
    return Figure("jumps", caption, panels)


EXPERIMENT = Experiment(
    id="linrec-lemma8",
    where="Lemma 8, eq. 26 to 31",
    title="One continuous map for all times",
    summary="The outputs of a causal map and the pseudo-inverses of a sparse reconstruction, extended from whole times to "
    "real ones; how far the extension jumps across a whole time, and what it gives there.",
    presets=presets(
        {"length": 64, "functions": 8, "modes": 32, "r_min": 0.99, "points": 11, "seed": 0},
        quick={"length": 16, "points": 6},
    ),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.1 * config["length"],
)
