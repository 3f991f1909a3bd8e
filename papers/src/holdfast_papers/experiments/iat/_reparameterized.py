"""iat-fig7 and iat-fig8: networks of one activation with and without a stable W, trained on polynomial memory.

The criterion, for each activation on its own: with the recurrent weights perturbed, the sup searched by draws and gradient
ascent on a horizon that grows with m (`_sup`), the median of the seeds and the same level, the stable form is stable and the
free one is unstable, by the rule of `assess_stability`; undecided where fewer than four widths of either approximate. Both
arms hold the same class of matrices: symmetric ones, W = Q g(M) Q' (iat, eq. 16) with softplus on the eigenvalues against
free eigenvalues; and for tanh, where a second pair is asked for, all Hurwitz matrices against free ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from holdfast.figures import Figure, Panel
from holdfast.stability import StabilityVerdict
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.iat import _curves, _students, _sup
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

FORMS = {
    "symmetric": "free, symmetric", "softplus": "softplus, symmetric", "direct": "free, complete", "complete": "Hurwitz",
}  # fmt: skip
PAIRS = {"symmetric": ("symmetric", "softplus"), "complete": ("direct", "complete")}  # free, then stable
SLOW_FORMS = {
    "symmetric": 1.0,
    "softplus": 1.0,
    "complete": 2.0,
    "direct": 0.0,
}  # what building W adds to a step, about
ACTIVATION_NAMES = {"relu": "ReLU", "hardtanh": "hardtanh", "tanh": "tanh"}
MEASURES = ("recurrent", "all")  # by draws alone, on the test sequences
COMMON: Config = {
    **_students.PAPER, **_sup.SETTINGS, "widths": [8, 16, 32, 64], "complete_widths": [8, 16, 32, 64], "complete": ["tanh"],
    "seeds": 3, "smallest": 1e-4, "doublings": 20, "draws": 3,
}  # fmt: skip
STANDARD: Config = {
    "steps": 6000, "batch": 32, "train_size": 4096, "train_steps": 400, "widths": [4, 6, 10, 16, 24, 32],
    "complete_widths": [4, 8, 12, 16, 24], "draws": 30,
}  # fmt: skip
QUICK: Config = {
    "steps": 100, "seeds": 1, "widths": [4, 6], "complete_widths": [4], "train_size": 320, "test_size": 16, "ascent": 2,
    "least_steps": 100, "sequences": 2, "draws": 1,
}  # fmt: skip
Key = tuple[str, str]  # activation and form of W


def units(config: Config, activations: Sequence[str]) -> list[Config]:
    """One run for each activation, form of W, width and seed."""
    shared = {name: config[name] for name in (*_students.TRAINING, *_sup.SETTINGS, "smallest", "doublings")}
    seeds = range(config["seeds"])
    complete = [a for a in activations if a in config["complete"]]
    return [
        *split(shared, activation=activations, parameterization=PAIRS["symmetric"], m=config["widths"], seed=seeds),
        *split(
            shared, activation=complete, parameterization=PAIRS["complete"], m=config["complete_widths"], seed=seeds
        ),
    ]


def cost(config: Config) -> float:
    """Seconds, roughly: W = Q g(M) Q' costs an exponential of a matrix per step, and 12 radii are searched."""
    m, slow = config["m"], SLOW_FORMS[config["parameterization"]]
    search = 12 * config["ascent"] * _sup.horizon(config) * config["sequences"] * (2e-6 + 1.1e-7 * m)
    return _students.cost(config) + slow * config["steps"] * (0.001 + 9e-7 * m**2) + (1 + 4 * slow) * search


def run(config: Config, work: Work) -> Arrays:
    """One student: its training, and its perturbation curves."""
    given = _students.lesson(config)
    model, record = _students.learn(config, given, work)
    betas = _curves.betas_of(config)
    if record["diverged"]:
        return _curves.kept(record, _curves.failed(betas, MEASURES), _sup.failed(config))
    found = _sup.measured(model, _sup.noise(config), config, work, scope="recurrent")
    return _curves.kept(record, _curves.measured(model, given.test, betas, config, MEASURES), found)


def conclude(config: Config, units: Sequence[Unit], activations: Sequence[str]) -> Conclusion:
    """The stable form is stable and the free one is not, for each activation."""
    groups = {(a, f): [u for u in units if _key(u) == (a, f)] for a in activations for f in FORMS}
    groups = {key: found for key, found in groups.items() if found}
    verdicts = {key: _sup.verdict(found) for key, found in groups.items()}
    drawn = {(*key, name): _curves.verdict(found, name) for key, found in groups.items() for name in MEASURES}
    pairs = [(a, pair) for a in activations for pair in PAIRS if (a, PAIRS[pair][0]) in groups]
    claims = [_claim(a, pair, verdicts) for a, pair in pairs]
    heads = ("activation", "W", "perturbed", *_sums.HEADS)
    shown = {
        **{(ACTIVATION_NAMES[a], FORMS[f], "recurrent, searched"): v for (a, f), v in verdicts.items()},
        **{(ACTIVATION_NAMES[a], FORMS[f], f"{n}, draws"): v for (a, f, n), v in drawn.items()},
    }
    tables = [
        Table("verdicts", "Radii of the median over the seeds.", heads, _sums.rows(shown)),
        Table("runs", "Medians over the seeds.", ("activation", "W", "m", *_students.RUN_HEADS), _runs(groups)),
    ]
    return Conclusion(claims, _figures(groups), tables, _notes(config, activations))


def _key(unit: Unit) -> Key:
    return unit.config["activation"], unit.config["parameterization"]


def _claim(activation: str, pair: str, verdicts: Mapping[Key, StabilityVerdict]) -> Claim:
    free, stable = PAIRS[pair]
    both = {free: verdicts[activation, free], stable: verdicts[activation, stable]}
    name = ACTIVATION_NAMES[activation]
    return Claim.decide(
        name if pair == "symmetric" else f"{name}, {pair}",
        f"{name} RNNs approximate the polynomial target stably with {FORMS[stable]} W and not with {FORMS[free]} W "
        "(recurrent weights perturbed, the sup searched by gradient ascent)",
        _curves.decided((both[free], "unstable"), (both[stable], "stable")),
        {k: v for f, verdict in both.items() for k, v in _sums.numbers(verdict, f"{FORMS[f]}: ").items()},
        otherwise=_sums.why({FORMS[f]: verdict for f, verdict in both.items()}),
    )


def _runs(groups: Mapping[Key, Sequence[Unit]]) -> list[tuple[_sums.Cell, ...]]:
    rows = []
    for (a, f), found in groups.items():
        for m in sorted({u.config["m"] for u in found}):
            rows.append(
                (ACTIVATION_NAMES[a], FORMS[f], m, *_students.run_row([u for u in found if u.config["m"] == m]))
            )
    return rows


RELU = (
    "dh/dt = relu(...) is never negative: a ReLU network follows a signal only where the argument stays positive, and nothing "
    "keeps it there beyond the steps that it was trained on. So its widths end where 25 steps a unit are as many as those, "
    "except at the paper's own sizes."
)


def _notes(config: Config, activations: Sequence[str]) -> list[str]:
    study = "iat-fig7" if "relu" in activations else "iat-fig8"
    return [
        "Both arms hold the same class of matrices and start from the same W, symmetric with rates geometric on [1/m, 4]. "
        "Symmetric: W = Q g(M) Q' with Q orthogonal (eq. 16), softplus on the eigenvalues or none. Complete: W = (J - R) P, "
        "which is every Hurwitz matrix, or any matrix. Units of a ReLU network start with bias 1.",
        f"Trained on {config['train_steps']} steps of white noise.",
        _sup.note(config),
        *([RELU] if "relu" in activations else []),
        "Radii by draws alone, on the test sequences, stand in the table beside the searched ones. "
        + _students.WHERE_SHOWN.format(study),
    ]


def _figures(groups: Mapping[Key, Sequence[Unit]]) -> list[Figure]:
    titles = {key: f"{ACTIVATION_NAMES[key[0]]}, {FORMS[key[1]]}" for key in groups}
    searched = [
        _sums.panel(titles[key], _sup.family(found), (1e-2, 1e2), legend=k == 0)
        for k, (key, found) in enumerate(groups.items())
    ]

    def drawn(name: str) -> list[Panel]:
        return [
            _sums.panel(titles[key], _curves.family(found, name), (1e-2, 1e2), legend=k == 0)
            for k, (key, found) in enumerate(groups.items())
        ]

    learning = [
        _students.loss_panel(titles[key], found, legend=k == 0) for k, (key, found) in enumerate(groups.items())
    ]
    return [
        Figure(
            "recurrent-weights",
            "One line for each width: the largest error found when the recurrent weights move by up to beta, at the points of "
            f"a bisection, the seed with the median radius. {_curves.UNSTABLE}",
            searched,
        ),
        Figure("all-weights", "All weights perturbed, random draws alone, medians of the seeds.", drawn("all")),
        Figure("learning", "Training loss: the median of the seeds, with all of them in the band.", learning),
    ]


def experiment(number: int, title: str, activations: Sequence[str], *, standard: Config, quick: Config) -> Experiment:
    """Figure 7 or 8 of the paper: networks with these activations, W free or held stable.

    Args:
        number: of the figure.
        title: of the experiment.
        activations: of the networks.
        standard: settings of the standard preset beside those that both figures have.
        quick: settings of the quick preset beside those that both figures have.
    """
    return Experiment(
        id=f"iat-fig{number}",
        where=f"Figure {number}",
        title=title,
        summary="Networks of several widths, W free or held stable within the same class of matrices, are trained on the "
        "functional with memory (t+1)^-1.5, and their weights are perturbed.",
        presets=presets(COMMON, standard={**STANDARD, **standard}, quick={**QUICK, **quick}),
        units=partial(units, activations=activations),
        run=run,
        conclude=partial(conclude, activations=activations),
        cost=cost,
        version=2,
    )
