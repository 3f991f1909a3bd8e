"""ssm-prop32: temporal convolutions by one state-space layer (Proposition 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from holdfast import laws
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers import constructions
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

Kernel = Callable[[np.ndarray], np.ndarray]


def _noise(k: np.ndarray) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(len(k)) / len(k)


# from kernels made of few modes to one without any structure; the length of each is that of its convolution
KERNELS: dict[str, tuple[int, Kernel]] = {
    "(1 + t)^-1.5": (1024, lambda k: np.asarray(laws.PowerLaw(1.5)(k))),
    "e^-0.05t cos 0.7t": (256, lambda k: np.exp(-0.05 * k) * np.cos(0.7 * k)),
    "t e^-t/10": (256, lambda k: k / 10 * np.exp(-k / 10)),
    "box": (128, lambda k: np.where(k < 40, 1 / 40, 0.0)),
    "noise": (128, _noise),
}


def run(config: Config, work: Work) -> Arrays:
    """A layer for each eps, and its kernel."""
    length, rho = KERNELS[config["kernel"]]
    steps = np.arange(length, dtype=np.float64)
    rows, kernels = [], []
    for eps in work.steps(config["eps"], "layers"):
        built = constructions.convolution(rho(steps), tolerance=eps)
        impulse = torch.zeros(1, length, 1, dtype=torch.float64)
        impulse[0, 0] = 1
        with torch.no_grad():
            kernels.append(built.network(impulse)[0].flatten().numpy())
        assert built.bound is not None
        rows.append((built.details["kernel_error"], built.bound, built.error, built.width))
    sup, bound, error, width = np.array(rows).T
    return {"sup": sup, "bound": bound, "error": error, "width": width, "rho": rho(steps), "kernels": np.array(kernels)}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The kernel and the output are within every eps."""
    arrays = {u.config["kernel"]: u.arrays for u in units}
    eps = np.array(config["eps"])
    sup = {name: float((a["sup"] / eps).max()) for name, a in arrays.items()}
    output = {name: float((np.maximum(a["bound"], a["error"]) / eps).max()) for name, a in arrays.items()}
    claims = [
        Claim.decide(
            "kernel",
            "For every eps there is a hidden dimension with sup_k |rho_k - C W^k U| < eps",
            max(sup.values()) < 1,
            {f"largest error / eps, {name}": value for name, value in sup.items()} | {"smallest eps": float(eps.min())},
            otherwise="The kernel's error stays above eps for some kernel.",
            essential=True,
        ),
        Claim.decide(
            "output",
            "The outputs of such a layer are within eps for every input bounded by 1",
            max(output.values()) <= 1,
            {f"largest error / eps, {name}": value for name, value in output.items()},
            otherwise="A small sup error of the kernel alone does not bound the output: its sum over the lags does.",
            essential=True,
        ),
    ]
    rows = [
        (name, KERNELS[name][0], float(e), *(float(a[k][j]) for k in ("sup", "bound", "error")), int(a["width"][j]))
        for name, a in arrays.items()
        for j, e in enumerate(eps)
    ]
    heads = (
        "kernel",
        "length",
        "eps",
        "sup error of the kernel",
        "bound of the output's",
        "its measured error",
        "modes",
    )
    notes = [
        "The proof needs only the sup over lags of the kernel's error; outputs are bounded by its sum over lags, and the "
        "layers are built for that. A kernel without decaying modes (box, noise) takes about half as many complex modes as "
        "steps, on a circle."
    ]
    table = Table("layers", "One linear layer for each eps.", heads, rows)
    return Conclusion(claims, [_errors(eps, arrays), _kernels(config, arrays)], [table], notes)


def _errors(eps: np.ndarray, arrays: dict[str, Arrays]) -> Figure:
    x = Axis("eps", log=True)
    errors = [
        Line(name, eps, np.maximum(a["sup"], 1e-17), colour=c, markers=True)
        for c, (name, a) in enumerate(arrays.items())
    ]
    widths = [Line(name, eps, a["width"], colour=c, markers=True) for c, (name, a) in enumerate(arrays.items())]
    panels = [
        Panel(
            "Error",
            x,
            Axis("sup error of the kernel", log=True),
            [*errors, Line("eps", eps, eps, colour=7, dash="dash")],
        ),
        Panel("Modes", x, Axis("modes", log=True), widths),
    ]
    return Figure("errors", "The kernel's error lies below eps; kernels that decay need only a few modes.", panels)


def _kernels(config: Config, arrays: dict[str, Arrays]) -> Figure:
    panels = []
    for name, a in arrays.items():
        k = np.arange(len(a["rho"]))[:128]
        lines = [Line("rho", k, a["rho"][:128], colour=7)]
        lines += [Line(f"eps = {e:g}", k, a["kernels"][j][:128], colour=j, dash="dash")
                  for j, e in enumerate(config["eps"][:2])]  # fmt: skip
        panels.append(Panel(name, Axis("lag"), Axis("kernel"), lines))
    return Figure("kernels", "The kernels and those of the layers at the two largest eps.", panels, columns=3)


EXPERIMENT = Experiment(
    id="ssm-prop32",
    where="Proposition 3.2",
    title="Temporal convolutions by one layer",
    summary="One linear state-space layer for each kernel and tolerance, by matrix pencil or non-negative sums of "
    "exponentials, measured on its impulse response and on inputs that attain the error.",
    presets=presets(
        {"kernels": list(KERNELS), "eps": [1e-1, 1e-2, 1e-3, 1e-4]},
        quick={"kernels": ["(1 + t)^-1.5", "e^-0.05t cos 0.7t", "box"], "eps": [1e-1, 1e-2, 1e-3]},
    ),
    units=lambda config: split(drop(config, "kernels"), kernel=config["kernels"]),
    run=run,
    conclude=conclude,
    cost=lambda config: 1.0 * len(config["eps"]),
)
