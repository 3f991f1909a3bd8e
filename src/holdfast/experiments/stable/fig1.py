"""stable-fig1: perturbation errors of state-space models, direct, softplus and S4, on a target with polynomial memory.

The same perturbations for all three: equal radii, every weight in its own ball (largest entry for modes, 2-norm for U and
C), 30 draws. Nothing is trained: each model holds a fitted sum of exponentials. Free complex modes (matrix pencil) come
out real for this target, so that the modes of S4, -e^w + i frequency, begin on the real axis and are moved off it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.approximate import ExponentialSum
from holdfast.experiments import _sums
from holdfast.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast.figures import Figure, Panel, Table
from holdfast.nn.base import AbstractRecurrent
from holdfast.results import Claim
from holdfast.stability import StabilityVerdict, perturbation_error

TARGET = "(t+1)^-1.1"
MODELS = ("direct", "softplus", "s4")
NAMES = {"direct": "SSM, direct", "softplus": "SSM, softplus", "s4": "S4"}
EXACT = ("direct", "softplus")  # real modes: the functional norm over all times is known in closed form
SCOPES = {"recurrent weights": "recurrent", "all weights": "all"}


def units(config: Config) -> list[Config]:
    """One a model, scope and width for sequences; one a model and width for the functional norm."""
    shared = {name: config[name] for name in ("smallest", "doublings", "per_doubling", "draws")}
    sequences = {**shared, "part": "sequences", "length": config["length"], "signs": config["signs"]}
    exact = {**shared, "part": "exact", "target": TARGET}
    return [
        *split(sequences, model=MODELS, scope=SCOPES, m=config["widths"]),
        *split(sequences, model=["direct"], scope=["recurrent weights"], m=_wider(config)),
        *split(exact, parameterization=EXACT, m=config["exact_widths"]),
    ]


def _wider(config: Config) -> list[int]:
    """Widths whose slowest rate, 1/m^2, sequences of this length cannot tell from 0."""
    return [m for m in config["exact_widths"] if m not in config["widths"]]


def run(config: Config, work: Work) -> Arrays:
    """One curve E_m(beta)."""
    if config["part"] == "exact":
        return _sums.exact_error(config)
    found = _sums.bounded_sum(_sums.TARGETS[TARGET], config["m"])
    x = _inputs(config["length"], config["signs"])
    curve = perturbation_error(
        _model(config["model"], found), x, _targets(x), _sums.radii(config),
        scope=SCOPES[config["scope"]], draws=config["draws"], seed=config["m"],
    )  # fmt: skip
    return _sums.as_arrays(curve, found)


def _model(name: str, found: ExponentialSum) -> AbstractRecurrent:
    if name != "s4":
        return found.to_layer(name, dtype=torch.float64)
    return ExponentialSum(found.rates.astype(complex), found.coefficients).to_layer("exp", dtype=torch.float64)


def _inputs(length: int, signs: int) -> Tensor:
    """A constant, which is the worst input for an error of one sign, and random sequences of signs."""
    generator = torch.Generator().manual_seed(0)
    random = 2.0 * torch.randint(0, 2, (signs, length, 1), generator=generator) - 1
    return torch.cat([torch.ones(1, length, 1), random]).double()


def _targets(x: Tensor) -> Tensor:
    """y_k = sum_j (integral of rho over [j, j+1]) x_{k-j}: the functional for inputs that are held over steps of 1."""
    steps = x.shape[1]
    j = torch.arange(steps, dtype=torch.float64)
    kernel = _sums.TARGETS[TARGET].integral(j, j + 1)
    spectra = torch.fft.rfft(x.squeeze(-1), 2 * steps) * torch.fft.rfft(kernel, 2 * steps)
    return torch.fft.irfft(spectra, 2 * steps)[:, :steps].unsqueeze(-1)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Direct is unstable, softplus and S4 are stable, when recurrent weights are perturbed."""
    sequences = [u for u in units if u.config["part"] == "sequences"]
    curves = _sums.families((u for u in sequences if u.config["m"] in config["widths"]), "model", "scope")
    wide = [u for u in sequences if u.config["m"] in config["exact_widths"] and u.config["model"] == "direct"]
    beyond = _sums.families((u for u in wide if u.config["scope"] == "recurrent weights"), "model", "scope")
    exact = _sums.families((u for u in units if u.config["part"] == "exact"), "parameterization")
    shown, found = _sums.verdicts(curves), _sums.verdicts(exact)
    claims = [_claim(name, shown[name, "recurrent weights"], found.get((name,))) for name in MODELS]
    radius = {name: float(np.median(shown[name, "recurrent weights"].radii)) for name in ("softplus", "s4")}
    claims.append(
        Claim.decide(
            "better stability",
            "S4 has better stability than the softplus model: a larger radius",
            radius["s4"] > radius["softplus"],
            {f"median radius, {NAMES[name]}": r for name, r in radius.items()},
            otherwise="Under the same perturbations it has the smaller one. Its frequencies move too, in absolute units, and "
            "turn slow modes around; its decay rates alone, or its time step alone, leave a radius near 1, like softplus.",
        )
    )
    everything = {name: shown[name, "all weights"] for name in MODELS}
    claims.append(
        Claim.decide(
            "all weights",
            "When all weights are perturbed, the read-out too, direct is unstable and softplus and S4 are stable",
            [v.verdict for v in everything.values()] == ["unstable", "stable", "stable"],
            {k: x for name, v in everything.items() for k, x in _sums.numbers(v, f"{NAMES[name]}: ").items()},
            otherwise="; ".join(f"{NAMES[n]}: {v.verdict}" for n, v in everything.items())
            + ". The read-out moves too: a "
            "slow mode of rate r turns a change beta of its weight into an error of beta min(1/r, length), whatever the "
            "parameterization is. Theorem 3.3 moves the recurrent weights alone.",
        )
    )
    tables = [
        Table(
            "sequences",
            f"Radii for sequences of {config['length']} steps.",
            ("model", "perturbed", *_sums.HEADS),
            _sums.rows(shown),
        ),
        Table(
            "wider",
            f"Direct weights and {config['length']} steps with models too wide for that length: the radius stops shrinking.",
            ("model", "perturbed", *_sums.HEADS),
            _sums.rows(_sums.verdicts(beyond)),
        ),
        Table(
            "functional-norm",
            "Radii in the functional norm over all times, recurrent weights, worst case.",
            ("parameterization", *_sums.HEADS),
            _sums.rows(found),
        ),
    ]
    notes = [
        f"The slowest rate of width m is 1/m^2, and {config['length']} steps cannot tell rates below "
        f"1/{config['length']} from 0: wider models than m = {int(config['length'] ** 0.5)} are looked at in the functional "
        "norm, which has no such end. On the sequences their radius stays near 1/length, and a family that "
        "contains them has no verdict.",
        "The authors perturbed the three models differently; here radii, norms and draws are the same. The smallest-error "
        "sum of non-negative weights is the same in all three models too.",
    ]
    return Conclusion(claims, _figures(curves, exact), tables, notes)


def _claim(name: str, sequences: StabilityVerdict, exact: StabilityVerdict | None) -> Claim:
    expected = "unstable" if name == "direct" else "stable"
    found = [sequences] if exact is None else [sequences, exact]
    numbers = _sums.numbers(sequences, "100 steps: ")
    if exact is not None:
        numbers |= _sums.numbers(exact, "functional norm: ")
    how = "cannot approximate" if name == "direct" else "approximates"
    return Claim.decide(
        name,
        f"{NAMES[name]} {how} the target stably: the verdict is {expected}",
        all(v.verdict == expected for v in found),
        numbers,
        otherwise="; ".join(f"{v.verdict}: {v.explanation}" for v in found) + ".",
        essential=True,
    )


def _figures(curves: _sums.Families, exact: _sums.Families) -> list[Figure]:
    def panels(scope: str) -> list[Panel]:
        return [
            _sums.panel(NAMES[name], curves[name, scope], (1e-3, 1e3), legend=k == 0) for k, name in enumerate(MODELS)
        ]

    functional = [
        _sums.panel(NAMES[f], family, (1, 1e3), legend=k == 0) for k, ((f,), family) in enumerate(exact.items())
    ]
    return [
        Figure(
            "recurrent-weights",
            "Error against the size of the perturbation of the recurrent weights. Direct: the curves of wider models begin "
            "lower, turn up earlier and cross those of narrower ones. Softplus and S4: no curve blows up.",
            panels("recurrent weights"),
            columns=3,
        ),
        Figure(
            "all-weights",
            "The same with the read-out perturbed too: softplus and S4 do not blow up, but their curves cross as well.",
            panels("all weights"),
            columns=3,
        ),
        Figure(
            "functional-norm",
            "Worst case over all times. Direct: errors are infinite from beta = 1/m^2 on (triangles). Softplus: all widths "
            "turn up at the same beta, near 1.",
            functional,
        ),
    ]


EXPERIMENT = Experiment(
    id="stable-fig1",
    where="Figure 1",
    title="State-space models need a stable reparameterization for polynomial memory",
    summary="Direct and softplus state-space models and S4, each holding the same sum of m exponentials fitted to (t+1)^-1.1, "
    "and their errors under the same perturbations.",
    presets=presets(
        {
            "widths": [2, 4, 6, 8, 10], "exact_widths": [4, 8, 16, 32], "smallest": 1e-3, "doublings": 10,
            "per_doubling": 2, "draws": 30, "length": 100, "signs": 15,
        },
        quick={"exact_widths": [4, 8, 16], "signs": 3, "per_doubling": 1},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 0.3 * config["m"] if config["part"] == "exact" else 0.7,
)  # fmt: skip
