"""Sparse inputs rebuilt at every step from the state of that step: what Figures 7 and 8 share; they differ by the ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.experiments.linrec._rebuild import falls
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

PERFECT = 1e-3  # relative error at every step that counts as perfect; from 1e-8 to 0.1 all give the same verdicts


def run(config: Config, work: Work) -> Arrays:
    """Error of u_{1:k} = Psi_k Omega_k^+ x_k and the ranks of V_k, Psi_k and Omega_k, for k on a grid up to L."""
    rng = torch.Generator().manual_seed(config["seed"])
    length = config["length"]
    psi = reconstruct.haar_basis(length, config["functions"])
    u = torch.randn(config["inputs"], config["functions"], generator=rng, dtype=torch.float64) @ psi.mT
    lam = reconstruct.ring_eigenvalues(config["modes"], config["r_min"], seed=config["seed"])
    steps = np.unique(np.linspace(1, length, config["points"]).round().astype(int))
    V = reconstruct.vandermonde(lam, length)
    rows = []
    for k in work.steps(steps.tolist(), "steps"):
        known, V_k, psi_k = u[:, :k], V[:, length - k :], psi[:k]
        states = torch.complex(known @ V_k.real.mT, known @ V_k.imag.mT)
        omega = torch.complex(V_k.real @ psi_k, V_k.imag @ psi_k)
        solve = reconstruct.make_decoder(omega, form="complex", cut=None, ridge=0.0)
        rebuilt = solve(states) @ psi_k.mT
        rows.append((float((rebuilt - known).norm() / known.norm()), solve.rank, _rank(psi_k)))
    error, rank, basis = np.array(rows).T
    arrays = {"step": steps, "error": error, "omega": rank, "basis": basis}
    if config["seed"] == 0:  # V_k is large: its rank is shown for one draw and some of the steps
        some = steps[:: max(1, len(steps) // 16)]
        arrays |= {"some": some, "vandermonde": np.array([_rank(V[:, length - int(k) :]) for k in some])}
    # the first inputs as rebuilt from the last state
    arrays["true"], arrays["rebuilt"] = u[0, ::8].numpy(), rebuilt[0, ::8].numpy()
    return arrays


def _rank(matrix: torch.Tensor) -> int:
    """Singular values above rounding, counted like the decoder's."""
    sizes = torch.linalg.svdvals(matrix)
    return int((sizes > max(matrix.shape) * torch.finfo(torch.float64).eps * sizes[0]).sum())


def _conclude(claim: Callable[[dict[int, float]], Claim]) -> Callable[[Config, Sequence[Unit]], Conclusion]:
    def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
        errors = {m: [u.arrays["error"] for u in units if u.config["modes"] == m] for m in config["modes"]}
        # over all steps the largest, over the draws the median
        worst = {m: float(np.median([e.max() for e in found])) for m, found in errors.items()}
        falling = falls([[float(e.max()) for e in errors[m]] for m in config["modes"]])
        grows = Claim.decide(
            "uniformly",
            "As N grows, the error becomes negligible uniformly over the steps: its largest value falls with every N until it "
            f"is rounding, and ends below {PERFECT:g}",
            worst[max(worst)] < PERFECT and falling.holds,
            falling.numbers | {f"largest over the steps, N = {m}": e for m, e in worst.items()},
            otherwise=falling.why
            or "The largest error over the steps does not fall below the threshold at the largest N.",
            essential=True,
        )
        rows = [
            (m, worst[m], float(np.median([e[-1] for e in found])), float(np.max([e.max() for e in found])))
            for m, found in errors.items()
        ]
        heads = ("N", "largest over the steps, median draw", "at the last step, median draw", "largest of all")
        table = Table("errors", "Relative error of the inputs up to step k.", heads, rows)
        notes = [
            "Psi_k holds the first k values of functions of the whole length: those that have not begun are 0, so that its "
            "rank grows with k; their coefficients are not determined and not needed.",
        ]
        return Conclusion([claim(worst), grows], _figures(config, units, errors), [table], notes)

    return conclude


def smallest(worst: dict[int, float]) -> float:
    """The fewest modes with perfect reconstruction; inf where there is none."""
    return float(min((m for m, e in worst.items() if e < PERFECT), default=np.inf))


def _figures(config: Config, units: Sequence[Unit], errors: dict[int, list[np.ndarray]]) -> list[Figure]:
    first = {u.config["modes"]: u.arrays for u in units if u.config["seed"] == 0}
    step = next(iter(first.values()))["step"]
    x = Axis("step k")
    lines = []
    for c, (m, found) in enumerate(errors.items()):
        values = np.maximum(np.stack(found), 1e-16)
        middle, low, high = np.median(values, 0), values.min(0), values.max(0)
        lines.append(Line(f"N = {m}", step, middle, low=low, high=high, colour=c))
    panels = [Panel("Relative error", x, Axis("relative error of u_1 to u_k", log=True), lines)]
    for key, name in (("omega", "Omega_k"), ("vandermonde", "V_k")):
        at = "some" if key == "vandermonde" else "step"
        curves = [Line(f"N = {m}", a[at], a[key], colour=c) for c, (m, a) in enumerate(first.items())]
        panels.append(Panel(f"Rank of {name}", x, Axis(f"rank of {name}"), curves))
    basis = [Line("Psi_k", step, next(iter(first.values()))["basis"], colour=0, legend=False)]
    panels.append(Panel("Rank of Psi_k", x, Axis("rank of Psi_k"), basis))
    caption = (
        "Inputs of 32 Haar functions rebuilt at each step from the state of that step: error (median and range over the "
        "draws) and numerical ranks. More modes make the error negligible at every step."
    )
    time = np.arange(len(next(iter(first.values()))["true"])) * 8 + 1
    examples = [Line("true", time, next(iter(first.values()))["true"], colour=0)]
    chosen = [m for m in (16, 32, 64, 256) if m in first]
    examples += [Line(f"N = {m}", time, first[m]["rebuilt"], colour=c + 1, dash="dash") for c, m in enumerate(chosen)]
    shown = [Panel("", Axis("step"), Axis("input"), examples)]
    what = "One input, and what the last state returns: with too few modes the oldest part is lost."
    return [Figure("steps", caption, panels), Figure("example", what, shown)]


def sparse(id: str, where: str, r_min: float, claim: Callable[[dict[int, float]], Claim]) -> Experiment:
    """The experiment for one ring."""
    return Experiment(
        id=id,
        where=where,
        title=f"Sparse inputs rebuilt at every step, ring from {r_min:g} to 1",
        summary="Inputs of length 4096 that are sums of 32 Haar functions, rebuilt at each step k from the state of a random "
        "linear recurrence through alpha = Omega_k^+ x_k; errors and ranks over k for several state sizes.",
        presets=presets(
            {
                "length": 4096, "functions": 32, "r_min": r_min, "modes": [16, 32, 64, 128, 256, 512],
                "seeds": 5, "inputs": 16, "points": 400,
            },
            standard={"points": 60, "seeds": 80},  # the error jumps at some N, and twenty draws leave its size open
            quick={"modes": [32, 64, 128, 256], "seeds": 2, "points": 20},
        ),
        units=lambda config: split(
            drop(config, "modes", "seeds"), modes=config["modes"], seed=range(config["seeds"])
        ),
        run=run,
        conclude=_conclude(claim),
        cost=lambda config: 1e-5 * config["points"] * config["modes"] * (20 if config["seed"] == 0 else 4),
    )  # fmt: skip
