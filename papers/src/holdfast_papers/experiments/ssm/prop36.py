"""ssm-prop36: any continuous function of a short sequence by five layers, after Kolmogorov and Arnold (Prop. 3.6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers import constructions
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "product": lambda x: x.prod(1),
    "sine": lambda x: np.sin(np.pi * x.mean(1)) * (1 - x[:, 0] / 2),
    "largest": lambda x: x.max(1),
}
EPS = (0.5, 0.2, 0.05, 0.02)  # of functions whose range is 1


def units(config: Config) -> list[Config]:
    """Functions and digits for short lengths, and one digit for all lengths."""
    cases = [
        {"function": name, "length": length, "digits": digits}
        for length, most in zip(config["lengths"], config["digits"], strict=True)
        for digits in range(1, most + 1)
        for name in config["functions"]
    ]
    more = [{"function": "product", "length": length, "digits": 1} for length in config["growth"]]
    return [*cases, *(case for case in more if case not in cases)]


def run(config: Config, work: Work) -> Arrays:
    """One network and its measured error."""
    f = FUNCTIONS[config["function"]]
    built = constructions.kolmogorov_arnold(f, config["length"], digits=config["digits"])
    work.progress(1.0, "measured")
    assert built.bound is not None
    return {
        "error": np.array(built.error),
        "bound": np.array(built.bound),
        "width": np.array(built.width),
        "parameters": np.array(built.parameters),
    }


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Errors fall below a sequence of eps; the width is exponential in T."""
    arrays = {(u.config["function"], u.config["length"], u.config["digits"]): u.arrays for u in units}
    reached = {}
    for length, most in zip(config["lengths"], config["digits"], strict=True):
        for k in range(1, most + 1):
            reached[length, k] = max(float(arrays[name, length, k]["error"]) for name in config["functions"])
    falls = all(reached[length, k + 1] < reached[length, k] for length, k in reached if (length, k + 1) in reached)
    least = {length: _least(reached, length) for length in config["lengths"]}
    within = all(float(a["error"]) <= float(a["bound"]) for a in arrays.values())
    first = config["lengths"][0]
    growth = {length: float(arrays["product", length, 1]["width"]) for length in config["growth"]}
    factors = [b / a for a, b in zip(list(growth.values()), list(growth.values())[1:], strict=False)]
    claims = [
        Claim.decide(
            "every eps",
            "The error falls below every eps of a sequence as digits and terms grow",
            falls and least[first] <= _asked(config),
            {f"largest error, T = {t}, {k} digits": e for (t, k), e in reached.items()}
            | {f"smallest eps reached, T = {first}": least[first]},
            otherwise="The error does not fall with the digits, or stays above the eps that this preset asks for.",
            essential=True,
        ),
        Claim.decide(
            "bound",
            "The error of a five-layer network stays within the modulus of f over half a cell plus T (max f - min f) / terms",
            within,
            {"largest error / bound": max(float(a["error"] / a["bound"]) for a in arrays.values())},
            otherwise="Some measured error exceeds the bound.",
        ),
        Claim.decide(
            "width in T",
            "Remark 3.7: the number of hidden neurons grows linearly with the sequence length",
            factors[-1] <= 2 * (config["growth"][-1] / config["growth"][-2]),
            {f"hidden units, T = {t}, 1 digit": w for t, w in growth.items()} | {"last factor": factors[-1]},
            paper={"last factor": config["growth"][-1] / config["growth"][-2]},
            otherwise="With k digits in base B the inner sum takes about B^{T k} values, and the outer functions need a "
            "unit for each: the width is exponential in T. The remark counts the 2 T + 1 outer "
            "functions, not the units of each.",
        ),
    ]
    rows = [
        (name, t, k, float(a["error"]), float(a["bound"]), int(a["width"]), int(a["parameters"]))
        for (name, t, k), a in sorted(arrays.items(), key=lambda item: item[0][1:])
    ]
    heads = ("function", "T", "digits", "error", "bound", "hidden units", "parameters")
    table = Table("networks", "Five-layer networks in base 4.", heads, rows)
    return Conclusion(claims, [_figure(config, arrays, growth)], [table])


def _asked(config: Config) -> float:
    """One more digit divides a cell by 4: the k-th eps with k digits, and the last with a third one."""
    return EPS[config["digits"][0]]


def _least(reached: dict[tuple[int, int], float], length: int) -> float:
    error = min(e for (t, _), e in reached.items() if t == length)
    return min((eps for eps in EPS if error <= eps), default=np.inf)


def _figure(config: Config, arrays: dict[tuple[str, int, int], Arrays], growth: dict[int, float]) -> Figure:
    lines = []
    for c, length in enumerate(config["lengths"]):
        digits = [k for name, t, k in arrays if name == "product" and t == length and t in config["lengths"]]
        for j, name in enumerate(config["functions"]):
            values = [float(arrays[name, length, k]["error"]) for k in digits]
            dash = ("solid", "dash", "dot")[j]
            lines.append(Line(f"{name}, T = {length}", digits, values, colour=c, dash=dash, markers=True))  # type: ignore[arg-type]
    widths = [Line("product, 1 digit", list(growth), list(growth.values()), colour=0, markers=True)]
    panels = [
        Panel("Error", Axis("digits"), Axis("measured sup error", log=True), lines),
        Panel("Width", Axis("sequence length T"), Axis("hidden units", log=True), widths),
    ]
    caption = "First panel: the error falls with every digit. Second: the width grows exponentially with the length."
    return Figure("errors", caption, panels)


EXPERIMENT = Experiment(
    id="ssm-prop36",
    where="Proposition 3.6, Figure 3",
    title="Functions of a sequence by five layers",
    summary="Five-layer state-space networks after the Kolmogorov-Arnold theorem, with the inner function of Braun and "
    "Griebel cut to a few digits, for functions of 2 and 3 inputs; errors measured on the networks.",
    presets=presets(
        {"functions": list(FUNCTIONS), "lengths": [2, 3], "digits": [3, 2], "growth": [2, 3, 4, 5]},
        quick={"functions": ["product", "largest"], "lengths": [2], "digits": [2], "growth": [2, 3, 4]},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 0.1 * 4 ** (config["length"] * config["digits"] / 2),
)
