"""stable-thm33: the perturbation error of linear models stays below E_m(0) + g(beta) sum |c_i| / |f(w_i)| (eq. 65).

The theorem follows where those sums stay bounded over m (eq. 57): for fits with non-negative coefficients they do, for
least squares on the papers' grid of rates they do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast import laws
from holdfast.approximate import ExponentialSum, fit_exponential_sum
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.stability import kernel_error_bound, kernel_perturbation_error
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

PARAMETERIZATIONS = ("direct", "exp", "softplus", "best")
STABLE = PARAMETERIZATIONS[1:]
FITS = ("non-negative", "least squares")
RHO, FASTEST = laws.PowerLaw(1.5), 4.0
ROUNDING = 1e-6  # of the norm of rho: the exact error is placed to 1e-8 of it
BOUNDED = 1.5  # sums that grow less than this from the narrowest to the widest model count as bounded


def units(config: Config) -> list[Config]:
    """One a width, parameterization and fit."""
    shared = {key: config[key] for key in ("smallest", "largest", "points", "spacing")}
    return split(shared, fit=FITS, parameterization=PARAMETERIZATIONS, m=config["widths"])


def run(config: Config, work: Work) -> Arrays:
    """The exact error and its bound, for each beta."""
    fitted = _fit(config)
    beta = np.geomspace(config["smallest"], config["largest"], config["points"])
    curve = kernel_perturbation_error(fitted, RHO, beta, parameterization=config["parameterization"])
    bound = kernel_error_bound(fitted, beta, parameterization=config["parameterization"], centre=curve.at_zero)
    mass = np.abs(fitted.coefficients / fitted.rates).sum()
    return {
        "beta": beta,
        "error": curve.errors,
        "bound": bound,
        "centre": np.array(curve.at_zero),
        "mass": np.array(mass),
    }


def _fit(config: Config) -> ExponentialSum:
    m = config["m"]
    if config["fit"] == "non-negative":
        return fit_exponential_sum(RHO, m, "nonnegative", rates=np.geomspace(1 / m**2, FASTEST, m))
    t = np.arange(1.0, 101)
    rates = config["spacing"] * np.arange(1, m + 1)
    return fit_exponential_sum(np.asarray(RHO(t)), method="least_squares", rates=rates, time=t)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The bound holds for every stable reparameterization; direct has none; the sums decide what it is worth."""
    arrays = {(u.config["fit"], u.config["parameterization"], u.config["m"]): u.arrays for u in units}
    over = {
        (fit, f): max(float((a["error"] / a["bound"]).max()) for (k, n, _), a in arrays.items() if (k, n) == (fit, f))
        for fit in FITS for f in STABLE
    }  # fmt: skip
    mass = {fit: [float(arrays[fit, "exp", m]["mass"]) for m in config["widths"]] for fit in FITS}
    direct = [a for (_, f, _), a in arrays.items() if f == "direct"]
    claims = [
        Claim.decide(
            "bound",
            "With exp, softplus and best weights E_m(beta) <= E_m(0) + g(beta) sum |c_i| / |f(w_i)| (eq. 65)",
            max(over.values()) <= 1 + ROUNDING,
            {f"largest error / bound, {f}, {fit}": v for (fit, f), v in over.items()},
            otherwise="The exact error of some sum exceeds the bound.",
            essential=True,
        ),
        Claim.decide(
            "bounded sums",
            "The sums |c_i| / |f(w_i)| are bounded over m (eq. 57), for fits with non-negative coefficients",
            max(mass["non-negative"]) < BOUNDED * mass["non-negative"][0],
            {f"sum at m = {m}": v for m, v in zip(config["widths"], mass["non-negative"], strict=True)},
            otherwise="They grow with m.",
            essential=True,
        ),
        Claim.decide(
            "any approximation",
            "The sums |c_i| / |f(w_i)| are bounded for any approximation, as the theorem's wording has it: least squares on "
            "equally spaced rates",
            max(mass["least squares"]) < BOUNDED * mass["least squares"][0],
            {f"sum at m = {m}": v for m, v in zip(config["widths"], mass["least squares"], strict=True)},
            otherwise="They grow without limit. The proof assumes eq. 57, which the theorem does not say: a family of sums "
            "whose terms cancel need not be stable, whatever f is.",
        ),
        Claim.decide(
            "direct",
            "Direct weights have no such bound, and their error is infinite once a mode stops decaying",
            all(bool(np.isinf(a["bound"]).all() and np.isinf(a["error"][-1])) for a in direct),
            {"smallest bound": float(min(a["bound"].min() for a in direct))},
            otherwise="A finite bound was found, or no direct model diverged at the largest beta.",
            essential=True,
        ),
    ]
    rows = [
        (fit, f, m, float(a["centre"]), float(a["mass"]), float(a["error"][-1]), float(a["bound"][-1]))
        for (fit, f, m), a in arrays.items()
    ]
    last = f"{config['largest']:g}"
    heads = ("fit", "parameterization", "m", "E_m(0)", "sum |c|/|f|", f"E_m({last})", f"bound at {last}")
    table = Table("sums", f"Sums of m exponentials for {RHO.name}, L1 norm of the kernel.", heads, rows)
    return Conclusion(claims, [_figure(config, arrays)], [table])


def _figure(config: Config, arrays: dict[tuple[str, str, int], Arrays]) -> Figure:
    panels = []
    for f in STABLE:
        lines = []
        for k, m in enumerate(config["widths"]):
            a = arrays["non-negative", f, m]
            lines.append(Line(f"m = {m}", a["beta"], a["error"], colour=k, legend=f == "exp"))
            lines.append(Line("bound", a["beta"], a["bound"], colour=k, dash="dash", legend=f == "exp" and k == 0))
        panels.append(Panel(f, Axis("perturbation beta", log=True), Axis("error E_m(beta)", log=True), lines))
    caption = (
        "Exact error of non-negative fits when every recurrent weight moves by up to beta (solid) and the bound of Thm 3.3 "
        "(dashed): it holds at every beta, and falls with m at small ones."
    )
    return Figure("bounds", caption, panels, columns=3)


EXPERIMENT = Experiment(
    id="stable-thm33",
    where="Theorem 3.3, eq. 57 to 65",
    title="Stable reparameterization bounds the perturbation error",
    summary="Sums of m exponentials fitted to a power law: the exact worst-case error under perturbed recurrent weights, "
    "against the bound of the theorem, and the sums that the bound is made of.",
    presets=presets(
        {"widths": [4, 8, 16, 32], "smallest": 1e-3, "largest": 1.0, "points": 13, "spacing": 0.05},
        quick={"widths": [4, 8], "points": 5},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 0.05 * config["m"] * config["points"] / 5,
)
