"""stable-thm34: |dLoss/dw_j| <= |c_j| G_f(w_j), on real losses: the sup norm of the functional, and mean squares.

The theorem is about the sup norm, for a linear functional the L1 norm of the kernel's error (eq. 88; discrete: eq. 93). With
the mean square and inputs up to 1 the same proof gives 2 mean |error| times as much; for the product of two linear functionals
(eq. 96 to 98) the L1 norm of the other kernel comes in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast import laws, parameterizations
from holdfast.figures import Axis, Figure, Panel, Points, Rule
from holdfast.parameterizations import AbstractParameterization
from holdfast.stability import gradient_bound
from holdfast.stability.perturbation._kernel_error import l1_distance, target_of
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

NAMES = {"continuous": ("direct", "exp", "softplus", "best"), "discrete": ("direct", "exp", "softplus", "tanh", "best")}
LOSSES = {
    "sup": "sup norm, continuous time (eq. 88)",
    "sup, discrete": "sup norm, discrete time (eq. 93)",
    "mean square": "mean square, discrete time",
    "order 2": "mean square of a product of two (eq. 96-98)",
}
RHO = laws.PowerLaw(1.5)
STEPS = 4000  # of the discrete sup norm; the slowest mode has decayed by e^-40 after them
ROUNDING = 1e-6


def units(config: Config) -> list[Config]:
    """One a loss and parameterization."""
    shared = {key: config[key] for key in ("models", "modes", "length", "training")}
    return [
        {**unit, "name": name}
        for unit in split(shared, loss=LOSSES)
        for name in NAMES["continuous" if unit["loss"] == "sup" else "discrete"]
    ]


def run(config: Config, work: Work) -> Arrays:
    """|gradient| and its bound for every mode of every model, random and trained; in discrete time the printed bound too."""
    rows = []
    for seed in work.steps(range(config["models"]), "models"):
        w, c = _start(config, seed)
        for trained in (False, True):
            if trained:
                w, c = _train(config, w, c, seed)
            rows.append(np.stack([*_compare(config, w, c, seed), np.full(len(w), trained)]))
    gradient, bound, printed, trained = np.concatenate(rows, axis=1)
    return {"gradient": gradient, "bound": bound, "printed": printed, "trained": trained}


def _f(config: Config) -> AbstractParameterization:
    return parameterizations.get(config["name"], time="continuous" if config["loss"] == "sup" else "discrete")


def _start(config: Config, seed: int) -> tuple[Tensor, Tensor]:
    """Margins log-uniform from 0.01 to 1, every other eigenvalue negative where f allows, the slowest among them; normal c.

    In every other model c is large against the target, so that the slowest mode decides the sign of the error: there the
    bound is nearly attained.
    """
    rng = torch.Generator().manual_seed(seed)
    f, n = _f(config), config["modes"]
    margin = (10 ** (2 * torch.rand(n, generator=rng, dtype=torch.float64) - 2)).sort().values
    lam = -margin if f.time == "continuous" else 0.999 - 0.99 * margin
    if config["name"] in ("direct", "tanh") and f.time == "discrete":
        lam = lam * torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(n)[:n]
    size = 1 / n if seed % 2 == 0 else 10.0
    return f.inverse(lam), size * torch.randn(n, generator=rng, dtype=torch.float64)


def _loss(config: Config, w: Tensor, c: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """The loss, and the factor of |c_j| G_j in the bound on its gradient."""
    f = _f(config)
    if config["loss"] == "sup":
        lam = f(w)
        target = target_of(RHO, -lam.detach().numpy(), None)
        return l1_distance(target, lam[None], c[None])[0], torch.ones(())
    k = torch.arange(STEPS if config["loss"] == "sup, discrete" else config["length"], dtype=torch.float64)
    kernel = (c * f(w) ** k[:, None]).sum(-1)
    rho = RHO(k)
    if config["loss"] == "sup, discrete":
        return (rho - kernel).abs().sum(), torch.ones(())
    x = 2 * torch.rand(16, config["length"], generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
    y, wanted = _convolve(x, kernel), _convolve(x, rho)
    factor = torch.ones(())
    if config["loss"] == "order 2":
        other = 0.8**k
        y, wanted, factor = y * _convolve(x, other), wanted * _convolve(x, other), other.sum()
    error = y - wanted
    return (error**2).mean(), 2 * error.detach().abs().mean() * factor


def _convolve(x: Tensor, kernel: Tensor) -> Tensor:
    n = 2 * x.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(kernel, n), n)[..., : x.shape[-1]]


def _train(config: Config, w: Tensor, c: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Adam on w and c; a step that leaves the stable region is undone by halves."""
    f = _f(config)
    w, c = w.clone().requires_grad_(), c.clone().requires_grad_()
    optimizer = torch.optim.Adam([w, c], lr=0.01)
    for _ in range(config["training"]):
        before = w.detach().clone()
        optimizer.zero_grad()
        _loss(config, w, c, seed)[0].backward()
        optimizer.step()
        with torch.no_grad():
            while not bool((f.margin(w) > 5e-3).all()):
                w.lerp_(before, 0.5)
    return w.detach(), c.detach()


def _compare(config: Config, w: Tensor, c: Tensor, seed: int) -> list[np.ndarray]:
    f = _f(config)
    free = w.clone().requires_grad_()
    loss, factor = _loss(config, free, c, seed)
    (gradient,) = torch.autograd.grad(loss, free)
    bound = factor * gradient_bound(c, w, parameterization=f, time=f.time)
    printed = factor * c.abs() * f.gradient_scale(w, form="printed")
    return [gradient.abs().numpy(), bound.numpy(), printed.numpy()]


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """No gradient exceeds its bound; the printed one fails for negative eigenvalues."""
    arrays = {(u.config["loss"], u.config["name"]): u.arrays for u in units}
    claims = [_holds(loss, {n: a for (k, n), a in arrays.items() if k == loss}) for loss in LOSSES]
    discrete = {n: _worst(a, "printed") for (loss, n), a in arrays.items() if loss == "sup, discrete"}
    claims.append(
        Claim.decide(
            "as printed",
            "In discrete time |dLoss/dw_j| <= |c_j| |f'| / (1 - f)^2 (eq. 93, 98)",
            max(discrete.values()) <= 1 + ROUNDING,
            {f"largest gradient / bound, {n}": v for n, v in discrete.items()},
            otherwise="Eq. 91 sums k f^(k-1), not its absolute value: for f < 0, which direct and tanh weights allow, the "
            "sum is smaller than what it bounds. With (1 - |f|)^2 the bound holds.",
        )
    )
    rows = [
        (LOSSES[loss], n, len(a["gradient"]), _worst(a, "bound"), _worst(a, "printed"),
         float(np.median(a["gradient"] / a["bound"])))
        for (loss, n), a in arrays.items()
    ]  # fmt: skip
    heads = ("loss", "parameterization", "gradients", "largest / bound", "largest / printed bound", "median / bound")
    table = Table(
        "gradients", "Gradients of recurrent weights over their bounds, random and trained models.", heads, rows
    )
    notes = [
        "With the mean square the bound is |c_j| G_f(w_j) times 2 mean |error|, for inputs up to 1; the paper says only that "
        "the sup norm is the larger loss, from which nothing follows for gradients. Order 2: times the L1 norm of the "
        "other kernel.",
    ]
    return Conclusion(claims, [_figure(arrays)], [table], notes)


def _worst(a: Arrays, key: str) -> float:
    return float((a["gradient"] / a[key]).max())


def _holds(loss: str, arrays: dict[str, Arrays]) -> Claim:
    worst = {n: _worst(a, "bound") for n, a in arrays.items()}
    return Claim.decide(
        loss,
        f"|dLoss/dw_j| is at most |c_j| G_f(w_j), times the loss's own factor: {LOSSES[loss]}",
        max(worst.values()) <= 1 + ROUNDING,
        {f"largest gradient / bound, {n}": v for n, v in worst.items()}
        | {"gradients": float(sum(len(a["gradient"]) for a in arrays.values()))},
        otherwise="A gradient exceeds its bound; the table says for which parameterization.",
        essential=True,
    )


def _figure(arrays: dict[tuple[str, str], Arrays]) -> Figure:
    slots = {"direct": 6, "exp": 1, "softplus": 2, "best": 3, "tanh": 4}
    panels = []
    for loss, words in LOSSES.items():
        points = [
            Points(n, a["bound"], a["gradient"] / a["bound"], colour=slots[n])
            for (k, n), a in arrays.items()
            if k == loss
        ]
        y = Axis("gradient / bound", log=True, limits=(1e-6, 3))
        panels.append(Panel(words, Axis("bound", log=True), y, [*points, Rule("", y=1.0)]))
    caption = (
        "Gradients of recurrent weights over their bounds, one point for each mode of a random or trained model: none lies "
        "above 1."
    )
    return Figure("gradients", caption, panels)


EXPERIMENT = Experiment(
    id="stable-thm34",
    where="Theorem 3.4, eq. 77 to 98",
    title="The gradient of a recurrent weight is bounded by its parameterization",
    summary="Gradients of recurrent weights of random and trained models, by automatic differentiation of the sup norm and "
    "of mean squares, against the bound |c_j| G_f(w_j) in continuous and discrete time and for a Volterra term of order 2.",
    presets=presets({"models": 10, "modes": 6, "length": 256, "training": 200}, quick={"models": 2, "training": 30}),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 0.004 * config["models"] * config["training"],
)
