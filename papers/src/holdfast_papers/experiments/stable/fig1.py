"""stable-fig1: perturbation errors of state-space models, direct, softplus and S4, on a target with polynomial memory.

Nothing is trained. The direct and softplus models hold the same fitted sum of exponentials; S4 has the modes of HiPPO and a
fitted readout. Radii and draws are the same for all, each weight in its own ball (largest entry for modes, 2-norm for U
and C). S4's frequencies move by beta, or by the share beta of each: the highest is in the thousands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.figures import Figure, Panel
from holdfast.stability import Ball, Search, StabilityVerdict, perturbation_error
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments._paired import numbers, unpaired
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.stable._hippo import RelativeFrequencies, hippo_layer
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

TARGET = "(t+1)^-1.1"
MODEL_NAMES = {"direct": "SSM, direct", "softplus": "SSM, softplus", "s4": "S4"}
EXPECTED = {"direct": "unstable", "softplus": "stable", "s4": "stable"}
EXACT = ("direct", "softplus")  # real modes: the functional norm over all times is known in closed form
RECURRENT: _sums.Scope = "recurrent weights"
ALL: _sums.Scope = "all weights"
RELATIVE = "recurrent weights, frequencies by a share"
DECAY = "decay rates alone"
# for each set of weights: their names, and the norm of a perturbation
BALLS = {
    RECURRENT: Ball(scope="recurrent"),
    ALL: Ball(),
    _sums.SCALED: Ball(),
    RELATIVE: Ball("max-abs", ["shift", "layer.w", "layer.log_dt"]),
    DECAY: Ball(scope=["w"]),
}


def units(config: Config) -> list[Config]:
    """One a model, set of weights and width for sequences; one per model, set and width for the functional norm."""
    shared = {name: config[name] for name in ("smallest", "doublings", "per_doubling", "length", "signs")}
    sequences = {**shared, "draws": config["sampled_draws"], "part": "sequences"}
    return [
        *split(sequences, model=list(EXACT), scope=[RECURRENT, ALL], m=config["widths"]),
        *split(sequences, model=["softplus"], scope=[_sums.SCALED], m=config["widths"]),
        *split(sequences, model=["s4"], scope=[s for s in BALLS if s != _sums.SCALED], m=config["s4_widths"]),
        *split(sequences, model=["direct"], scope=[RECURRENT], m=config["too_wide"]),
        *_sums.exact_units(config, [TARGET], EXACT, [RECURRENT, ALL]),
        *_sums.exact_units(config, [TARGET], ["softplus"], [_sums.SCALED]),
    ]


def run(config: Config, work: Work) -> Arrays:
    """One curve E_m(beta)."""
    if config["part"] == "exact":
        return _sums.exact_error(config)
    x = _inputs(config["length"], config["signs"])
    model = _model(config["model"], config["m"], config["length"], config["scope"])
    curve = perturbation_error(
        model,
        x,
        _targets(x),
        _sums.radii(config),
        norm=BALLS[config["scope"]],
        search=Search(draws=config["draws"], seed=config["m"]),
    )
    return _sums.curve_arrays(curve)


def _model(name: str, m: int, length: int, scope: str) -> nn.Module:
    if name != "s4":
        readout: Literal["plain", "scaled"] = "scaled" if scope == _sums.SCALED else "plain"
        return _sums.bounded_sum(_sums.TARGETS[TARGET], m).to_layer(name, dtype=torch.float64, readout=readout)
    layer = hippo_layer(_kernel(length), m, 1 / length)
    return RelativeFrequencies(layer) if scope == RELATIVE else layer


def _inputs(length: int, signs: int) -> Tensor:
    """A constant, which is the worst input for an error of one sign, and random sequences of signs."""
    generator = torch.Generator().manual_seed(0)
    random = 2.0 * torch.randint(0, 2, (signs, length, 1), generator=generator) - 1
    return torch.cat([torch.ones(1, length, 1), random]).double()


def _kernel(steps: int) -> Tensor:
    """The integral of rho over [j, j+1] for every step j: what an input that is held over it adds."""
    j = torch.arange(steps, dtype=torch.float64)
    return _sums.TARGETS[TARGET].integral(j, j + 1)


def _targets(x: Tensor) -> Tensor:
    """y_k = sum_j kernel_j x_{k-j}."""
    steps = x.shape[1]
    spectra = torch.fft.rfft(x.squeeze(-1), 2 * steps) * torch.fft.rfft(_kernel(steps), 2 * steps)
    return torch.fft.irfft(spectra, 2 * steps)[:, :steps].unsqueeze(-1)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Direct is unstable, softplus and S4 are stable: in the functional norm, in the paper's measure, by what moves."""
    sequences = [u for u in units if u.config["part"] == "sequences"]
    narrow = [u for u in sequences if u.config["m"] in config["widths"] or u.config["model"] == "s4"]
    curves = _sums.families(narrow, "model", "scope")
    plain = [u for u in sequences if (u.config["model"], u.config["scope"]) == ("direct", RECURRENT)]
    beyond = _sums.families(plain, "model", "scope")
    exact = _sums.parts(units, "exact", "parameterization", "scope")
    shown, verdicts = _sums.verdicts(curves), _sums.verdicts(exact)
    claims = [
        *(_exact_claim(name, scope, v) for (name, scope), v in verdicts.items()),
        *(_sequence_claim(name, scope, shown, config["length"]) for scope in (RECURRENT, ALL) for name in MODEL_NAMES),
        _sequence_claim("softplus", _sums.SCALED, shown, config["length"]),
        _sums.bounded_claim("scaled readouts bounded", _scaled_units(units)),
        _relative(shown),
        _better(shown),
    ]
    heads = ("model", "perturbed", *_sums.HEADS)
    tables = [
        Table("sequences", f"Radii for sequences of {config['length']} steps.", heads, _sums.rows(shown)),
        Table(
            "wider",
            f"Direct weights and {config['length']} steps, with models too wide for that length: the radius stops shrinking.",
            heads,
            _sums.rows(_sums.verdicts(beyond)),
        ),
        Table(
            "functional-norm", "Radii in the functional norm over all times, worst case.", heads, _sums.rows(verdicts)
        ),
    ]
    notes = [
        f"The paper's own measure is {config['length']} steps. They cannot tell rates below 1/{config['length']} from 0, and "
        f"the slowest rate of width m is 1/m^2: wider models than m = {int(config['length'] ** 0.5)} keep a radius near "
        "1/length. The functional norm over all times has no such end; there rates go down to 6.4e-9/m^2, because an eighth of "
        "the target's norm lies after t = 1e9.",
        "Def. 2.4 lets all weights move, each of Lambda, U, b and c by up to beta. Sec. 3.2 proves stability under a "
        "simplified perturbation setting, solely perturbing the recurrent weights. Both are claims here.",
        f"S4: one feature, states of HiPPO-LegS, the step 1/{config['length']} that HiPPO takes for that length, and the "
        "readout by ridge regression. Its modes all decay at the rate 1/(2 length), whatever their number: on that length no "
        "mode moves to the boundary as states are added, and over all times these modes do not approximate the target. "
        "A stable verdict says that of the length alone.",
        "The authors perturbed the three models differently; here radii, norms and draws are the same.",
        "Scaled readouts are beyond the paper: c_i = gamma_i |f(w_i)| / sqrt(m), and gamma moves in the place of c. A change "
        "of gamma by beta in the 2-norm changes the kernel by at most beta in L1, whatever the rates.",
    ]
    return Conclusion(claims, _figures(curves, exact), tables, notes)


def _scaled_units(units: Sequence[Unit]) -> list[Unit]:
    return [u for u in units if u.config["part"] == "exact" and u.config["scope"] == _sums.SCALED]


def _exact_claim(name: str, scope: str, verdict: StabilityVerdict) -> Claim:
    how = "cannot approximate" if EXPECTED[name] == "unstable" else "approximates"
    return _sums.claim(
        name if scope == RECURRENT else f"{name}, {scope}",
        f"{MODEL_NAMES[name]} {how} the target stably in the functional norm, {scope} perturbed: the verdict is "
        f"{EXPECTED[name]}",
        {MODEL_NAMES[name]: verdict},
        EXPECTED[name],
        reason=" A mode of rate r turns a change beta of its readout weight into beta / r." if scope == ALL else "",
        essential=scope == RECURRENT,
    )


def _sequence_claim(name: str, scope: str, shown: _sums.Verdicts, length: int) -> Claim:
    return _sums.claim(
        f"paper's measure, {name}" if scope == RECURRENT else f"paper's measure, {name}, {scope}",
        f"In the paper's own measure, sequences of {length} steps and random draws, {MODEL_NAMES[name]} with {scope} "
        f"perturbed is {EXPECTED[name]}",
        {MODEL_NAMES[name]: shown[name, scope]},
        EXPECTED[name],
        essential=name == "s4" and scope == RECURRENT,
    )


def _relative(shown: _sums.Verdicts) -> Claim:
    return _sums.claim(
        "paper's measure, s4, relative frequencies",
        "S4 is stable too where its frequencies move by a share of their size, with decay rates and step",
        {"S4": shown["s4", RELATIVE]},
        "stable",
    )


def _better(shown: _sums.Verdicts) -> Claim:
    """Geometric means over the widths that approximate; the widths of the two models differ and are not paired."""
    radii = {name: _radii(shown[name, RECURRENT]) for name in ("softplus", "s4")}
    gap = unpaired(radii["s4"], radii["softplus"], factor=True)
    alone = unpaired(_radii(shown["s4", DECAY]), radii["softplus"], factor=True)
    holds = None if gap.below() is None else not gap.below()
    return Claim.decide(
        "better stability",
        "S4 has better stability than the softplus model: a larger radius",
        holds,
        numbers({"radius of S4 / softplus": gap, "radius of S4, decay rates alone / softplus": alone}, factor=True),
        otherwise="The 95% interval leaves it open."
        if holds is None
        else "Under the same perturbations its radius is the smaller one. Its frequencies and its step move too; the radius "
        "with the decay rates alone is among the numbers.",
    )


def _radii(verdict: StabilityVerdict) -> np.ndarray:
    return np.asarray(verdict.radii[np.array(verdict.approximates)])


def _figures(curves: _sums.Families, exact: _sums.Families) -> list[Figure]:
    def panels(families: Mapping[str, _sums.Family]) -> list[Panel]:
        return [
            _sums.panel(name, family, (1e-3, 1e3), legend=k in (0, len(EXACT)))
            for k, (name, family) in enumerate(families.items())
        ]

    return [
        Figure(
            "recurrent-weights",
            "Error against the size of the perturbation of the recurrent weights. Direct: the curves of wider models begin "
            "lower, turn up earlier and cross those of narrower ones. Softplus: no curve blows up. S4: a line for each "
            "state size.",
            panels({MODEL_NAMES[name]: curves[name, RECURRENT] for name in MODEL_NAMES}),
            columns=3,
        ),
        Figure(
            "all-weights",
            "The same with the readout perturbed too.",
            panels({MODEL_NAMES[name]: curves[name, ALL] for name in MODEL_NAMES}),
            columns=3,
        ),
        Figure(
            "s4-frequencies",
            "S4 by what moves: frequencies by beta, frequencies by the share beta of their size, decay rates alone.",
            panels({scope: curves["s4", scope] for scope in (RECURRENT, RELATIVE, DECAY)}),
            columns=3,
        ),
        Figure(
            "functional-norm",
            "Worst case over all times. Direct: errors are infinite from the slowest rate on (triangles). Softplus: all widths "
            "turn up at the same beta; with the readout, wider ones earlier.",
            _sums.panels(exact, (1e-1, 1e3), lambda f, scope: f"{MODEL_NAMES[f]}, {scope}"),
        ),
    ]


EXPERIMENT = Experiment(
    id="stable-fig1",
    where="Figure 1",
    title="State-space models need a stable reparameterization for polynomial memory",
    summary="Direct and softplus state-space models that hold a sum of m exponentials fitted to (t+1)^-1.1, and S4 with the "
    "modes of HiPPO and a fitted readout, and their errors under the same perturbations.",
    presets=presets(
        {
            "widths": [4, 5, 6, 7, 8, 9, 10], "s4_widths": [16, 24, 32, 40, 48, 64, 80, 96], "too_wide": [16, 24],
            "slow_widths": [12, 16, 20, 24, 32, 40], "smallest": 1e-3, "doublings": 10, "per_doubling": 2, "draws": 30,
            "exact_smallest": 2e-4, "exact_doublings": 13, "exact_per_doubling": 3, "length": 100, "signs": 15,
            "sampled_draws": 30,
        },
        standard={"sampled_draws": _sums.SAMPLED_DRAWS},
        quick={
            "s4_widths": [24, 32, 48, 64], "slow_widths": [16, 20, 25, 32], "too_wide": [16], "signs": 3, "per_doubling": 1,
            "exact_smallest": 4e-4, "exact_doublings": 10, "exact_per_doubling": 2,
        },
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: _sums.exact_cost(config) if config["part"] == "exact" else 0.7,
    version=2,
)  # fmt: skip
