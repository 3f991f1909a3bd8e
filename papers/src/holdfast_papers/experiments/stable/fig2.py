"""stable-fig2: gradient over weight G_f(w)/|w| of every parameterization, and the formulas of Table 1 against autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast import parameterizations
from holdfast.figures import Axis, Dash, Figure, Line, Panel
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

# StableSSM, Table 1, as printed
PRINTED: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
    "continuous": {
        "relu": lambda w: torch.where(w > 0, w**-2, 0.0),
        "exp": lambda w: torch.exp(-w),
        "softplus": lambda w: torch.exp(w) / ((1 + torch.exp(w)) * torch.log1p(torch.exp(w)) ** 2),
        "best": lambda w: 2 * w.abs(),
    },
    "discrete": {
        "relu": lambda w: torch.where(w > 0, torch.exp(-w) / (1 - torch.exp(-w)) ** 2, 0.0),
        "exp": lambda w: torch.exp(w - torch.exp(w)) / (1 - torch.exp(-torch.exp(w))) ** 2,
        "softplus": lambda w: torch.exp(-w),
        "tanh": lambda w: torch.exp(2 * w),
        "best": lambda w: 2 * w.abs(),
    },
}
OTHER = "best (b = 1)"


def run(config: Config, work: Work) -> Arrays:
    """G_f(w) three ways on a grid of weights: our closed form, |f'|/margin^2 by autograd, and the paper's Table 1."""
    time = config["time"]
    # an even number of points, so that 0, where G/|w| has no value, is not among them
    w = torch.linspace(-config["span"], config["span"], config["points"], dtype=torch.float64)
    arrays = {"w": w.numpy()}
    for name in work.steps(PRINTED[time], "parameterizations"):
        # the paper's own constants: b = 0.5 in both kinds of time
        f = parameterizations.get(name, time=time, **({"b": 0.5} if name == "best" else {}))
        arrays[f"corrected.{name}"] = f.gradient_scale(w).numpy()
        arrays[f"autograd.{name}"] = _by_autograd(f, w).numpy()
        arrays[f"printed.{name}"] = PRINTED[time][name](w).numpy()
    arrays[f"corrected.{OTHER}"] = parameterizations.get("best", time=time, b=1.0).gradient_scale(w).numpy()
    return arrays


def _by_autograd(f: parameterizations.AbstractParameterization, w: Tensor) -> Tensor:
    """|f'|/f^2, or |f'|/(1 - f)^2 in discrete time as the paper prints it, with f' by reverse differentiation."""
    free = w.clone().requires_grad_()
    lam = f(free)
    (slope,) = torch.autograd.grad(lam.sum(), free)
    distance = lam.detach() if f.time == "continuous" else 1 - lam.detach()
    # relu is 0 in value and slope on half the line: its G is 0 there in the paper
    return torch.where(slope == 0, 0.0, slope.abs() / distance**2)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Table 1 equals autograd; best alone has a constant ratio, in discrete time with b = 1 only."""
    by_time = {unit.config["time"]: unit.arrays for unit in units}
    rows = [_row(time, name, arrays) for time, arrays in by_time.items() for name in [*PRINTED[time], OTHER]]
    table = max(float(row[2]) for row in rows if row[2] is not None)
    spread = {(time, name): _spread(high, low) for time, name, _, low, high in rows}
    others = min(value for (_, name), value in spread.items() if not name.startswith("best"))
    claims = [
        Claim.decide(
            "table 1",
            "The formulas of Table 1 equal |f'|/f^2 and |f'|/(1 - f)^2 computed by automatic differentiation",
            table < 1e-9,  # 1/(1-f)^2 loses seven digits where f is within 1e-4 of 1
            {"largest relative difference": table},
            otherwise="A printed formula differs from its definition; the table below says which.",
            essential=True,
        ),
        *(_constant(b, {time: spread[time, name] for time in by_time}, others)
          for b, name in (("b = 0.5", "best"), ("b = 1", OTHER))),
    ]  # fmt: skip
    columns = ("time", "parameterization", "Table 1 against autograd", "smallest G/|w|", "largest G/|w|")
    numbers = Table("table1", "Corrected gradient scale over weight, and Table 1 against autograd.", columns, rows)
    notes = [
        "In discrete time the paper divides by (1 - f)^2, which is right for f >= 0. For tanh at w < 0 and for best with "
        "b = 0.5 at |w| < 0.71, f is negative and the true scale |f'|/(1 - |f|)^2 is larger (solid lines; dashed: as "
        "printed). With b = 1, holdfast's default, f stays in [0, 1) and G = 2|w| everywhere. Relu at w <= 0 is not stable and "
        "its scale infinite; Table 1 prints 0."
    ]
    return Conclusion(claims, [_figure(by_time)], [numbers], notes)


def _constant(b: str, spread: dict[str, float], others: float) -> Claim:
    return Claim.decide(
        f"best is constant, {b}",
        f"G_f(w)/|w| is constant for 'best' with {b}, in continuous and discrete time, and for no other parameterization",
        max(spread.values()) < 1 + 1e-9 < others,
        {f"largest / smallest, {time}": value for time, value in spread.items()} | {"smallest of the others": others},
        paper={f"largest / smallest, {time}": 1.0 for time in spread},
        otherwise="In discrete time f is negative for small w, where the gradient scale is |f'|/(1 - |f|)^2: it grows "
        "without bound towards w = 0, where f = -1.",
        essential=True,
    )


def _spread(high: float, low: float) -> float:
    return high / low if low > 0 and high < np.inf else np.inf


def _row(time: str, name: str, arrays: Arrays) -> tuple[str, str, float | None, float, float]:
    ratio = arrays[f"corrected.{name}"] / np.abs(arrays["w"])
    return time, name, _difference(arrays, name), float(ratio.min()), float(ratio.max())


def _difference(arrays: Arrays, name: str) -> float | None:
    """Table 1 against autograd; it has one 'best' only."""
    if f"printed.{name}" not in arrays:
        return None
    printed, autograd = arrays[f"printed.{name}"], arrays[f"autograd.{name}"]
    size = np.maximum(np.abs(printed), np.abs(autograd))
    return float((np.abs(printed - autograd) / np.where(size > 0, size, 1)).max())


def _figure(by_time: dict[str, Arrays]) -> Figure:
    slots = {"relu": 0, "exp": 1, "softplus": 2, "best": 3, "tanh": 4, OTHER: 5}
    panels = []
    for time, arrays in by_time.items():
        w = arrays["w"]
        lines = []
        for key, scale in arrays.items():
            kind, _, name = key.partition(".")
            if kind == "corrected":
                dash: Dash = "dot" if name == OTHER else "solid"  # in continuous time both lie on each other
                lines.append(Line(name, w, _positive(scale / np.abs(w)), colour=slots[name], dash=dash))
                printed = arrays.get(f"printed.{name}")
                if time == "discrete" and name in ("tanh", "best") and printed is not None:
                    ratio = _positive(printed / np.abs(w))
                    lines.append(Line(f"{name}, as printed", w, ratio, colour=slots[name], dash="dash"))
        y = Axis("G_f(w) / |w|", log=True, limits=(1e-2, 1e4))
        panels.append(Panel(f"{time.capitalize()} time", Axis("weight w"), y, lines))
    caption = (
        "Gradient scale over weight. Exp and softplus grow without bound towards slow modes, relu near w = 0; best is a "
        "straight line at 2, in discrete time with b = 1 only. Triangles: infinite."
    )
    return Figure("gradient-over-weight", caption, panels)


def _positive(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.nan)  # 0 has no place on a logarithmic axis


EXPERIMENT = Experiment(
    id="stable-fig2",
    where="Figure 2 and Table 1",
    title="Gradient over weight of the parameterizations",
    summary="The gradient scale G_f(w) of every parameterization divided by |w|, from its closed form, by automatic "
    "differentiation, and by the formulas printed in Table 1.",
    presets=presets({"times": ["continuous", "discrete"], "span": 5.0, "points": 2000}, quick={"points": 400}),
    units=lambda config: split({"span": config["span"], "points": config["points"]}, time=config["times"]),
    run=run,
    conclude=conclude,
    version=2,
)
