"""iat-fig7 and iat-fig8: networks of one activation with and without softplus on W, trained on polynomial memory.

The criterion, for each activation on its own: with the recurrent weights perturbed, the median of the seeds at every beta and
the same level, softplus is stable and without it the widths are unstable, by the rule of `assess_stability`; undecided where
fewer than four widths of either approximate. W = Q g(M) Q' (iat, eq. 16): softplus on the eigenvalues, Q orthogonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from holdfast.figures import Figure, Panel
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.iat import _curves, _students
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

FORMS = {"direct": "without", "softplus": "softplus"}
EXPECTED = {"direct": "unstable", "softplus": "stable"}
ACTIVATION_NAMES = {"relu": "ReLU", "hardtanh": "hardtanh", "tanh": "tanh"}
MEASURES = {
    "recurrent": "recurrent weights",
    "all": "all weights",
    "long": "recurrent weights, long sequences",
}
COMMON: Config = {
    **_students.PAPER, "widths": [8, 16, 32, 64], "seeds": 3, "tuned_seeds": 3, "smallest": 1e-4, "doublings": 20,
    "draws": 3, "long_steps": 1600, "long_size": 8, "trial_steps": 300,
}  # fmt: skip
STANDARD: Config = {"steps": 4000, "tuned_seeds": 1, "train_size": 4096}
QUICK: Config = {
    "steps": 150, "seeds": 1, "tuned_seeds": 0, "widths": [8, 16], "train_size": 1280, "test_size": 16, "long_steps": 400,
    "draws": 1,
}  # fmt: skip


def units(config: Config, activations: Sequence[str]) -> list[Config]:
    """One run for each activation, parameterization, width, seed and column of the learning rate."""
    names = (*_students.TRAINING, "smallest", "doublings", "draws", "long_steps", "long_size")
    shared = {name: config[name] for name in names}
    axes = {"activation": activations, "parameterization": list(FORMS), "m": config["widths"]}
    tuned = {**shared, "trial_steps": config["trial_steps"], "rate": "best"}
    return [
        *split({**shared, "rate": "paper"}, **axes, seed=range(config["seeds"])),
        *split(tuned, **axes, seed=range(config["tuned_seeds"])),
    ]


def cost(config: Config) -> float:
    """Seconds, roughly: W = Q g(M) Q' costs an exponential of a matrix a step."""
    softplus = 0.001 + 9e-7 * config["m"] ** 2 if config["parameterization"] == "softplus" else 0.0
    tried = config.get("trial_steps", 0) * len(_students.RATES)
    return (_students.cost(config) + config["steps"] * softplus) * (1 + tried / config["steps"])


def run(config: Config, work: Work) -> Arrays:
    """One student: its training, and its perturbation curves."""
    given = _students.lesson(config)
    model, record = _students.learn(config, given, work)
    betas = _curves.betas_of(config)
    if record["diverged"]:
        return _curves.kept(record, _curves.failed(betas, MEASURES))
    curves = _curves.measured(model, given.test, betas, config, ("recurrent", "all"))
    return _curves.kept(record, curves, _curves.drift(model, betas, config))


def conclude(config: Config, units: Sequence[Unit], activations: Sequence[str]) -> Conclusion:
    """Softplus is stable and without it the network is not, for each activation."""
    groups = {
        (a, f, rate): [u for u in units if _key(u) == (a, f, rate)]
        for rate in ("paper", "best")
        for a in activations
        for f in FORMS
    }
    groups = {key: found for key, found in groups.items() if found}
    verdicts = {
        (ACTIVATION_NAMES[a], FORMS[f], f"{rate} rate", words): _curves.verdict(found, name)
        for (a, f, rate), found in groups.items()
        for name, words in MEASURES.items()
    }
    claims = [
        claim
        for a in activations
        for claim in (
            _claim(a, verdicts, "paper rate", "recurrent"),
            _claim(a, verdicts, "paper rate", "all"),
            _claim(a, verdicts, "paper rate", "long"),
            *([_claim(a, verdicts, "best rate", "recurrent")] if (a, "direct", "best") in groups else []),
        )
    ]
    heads = ("activation", "parameterization", "learning rate", "perturbed", *_sums.HEADS)
    tables = [
        Table("verdicts", "Radii of the median over the seeds.", heads, _sums.rows(verdicts)),
        Table(
            "runs",
            "Medians over the seeds.",
            ("activation", "parameterization", "learning rate", "m", *_students.RUN_HEADS),
            _runs(groups),
        ),
    ]
    return Conclusion(claims, _figures(groups), tables, _notes(config, activations))


def _key(unit: Unit) -> tuple[str, str, str]:
    return unit.config["activation"], unit.config["parameterization"], unit.config["rate"]


def _claim(activation: str, verdicts: _sums.Verdicts, rate: str, name: str) -> Claim:
    pair = {f: verdicts[ACTIVATION_NAMES[activation], FORMS[f], rate, MEASURES[name]] for f in FORMS}
    extra = (
        "best rate" if rate == "best rate" else {"recurrent": "", "all": "all weights", "long": "longer times"}[name]
    )
    return Claim.decide(
        f"{ACTIVATION_NAMES[activation]}, {extra}" if extra else ACTIVATION_NAMES[activation],
        f"{ACTIVATION_NAMES[activation]} RNNs approximate the polynomial target stably with softplus and not without it "
        f"(perturbed: {MEASURES[name]}; {'the common' if rate == 'paper rate' else 'a chosen'} learning rate)",
        _curves.decided(*((pair[f], wanted) for f, wanted in EXPECTED.items())),
        {k: v for f in FORMS for k, v in _sums.numbers(pair[f], f"{FORMS[f]}: ").items()},
        otherwise=_sums.why({FORMS[f]: pair[f] for f in FORMS})
        + " On sequences of a fixed length every radius is about the inverse of that length.",
    )


def _runs(groups: dict[tuple[str, str, str], list[Unit]]) -> list[tuple[_sums.Cell, ...]]:
    rows = []
    for (a, f, rate), found in groups.items():
        for m in sorted({u.config["m"] for u in found}):
            rows.append(
                (ACTIVATION_NAMES[a], FORMS[f], rate, m, *_students.run_row([u for u in found if u.config["m"] == m]))
            )
    return rows


FOUND = {
    "iat-fig7": "What was found: on longer sequences the states of free networks grow by powers of ten, and with softplus "
    "hardly; on the steps of the experiment both have the same radii. ",
    "iat-fig8": "What was found: by gradient ascent on 1600 steps free hardtanh networks are unstable. With softplus the "
    "weights of the eigenvalues may move by 1 and break nothing; those of the eigenvectors, which softplus does not hold, "
    "break it. ",
}
RELU = (
    "dh/dt = relu(...) is never negative: a ReLU network follows a signal only where the argument stays positive, and nothing "
    "keeps it there beyond the steps that it was trained on. So it is trained on as many steps as it is measured on, except at "
    "the paper's own sizes."
)


def _notes(config: Config, activations: Sequence[str]) -> list[str]:
    factors = ", ".join(f"{factor * config['lr']:g}" for factor in _students.RATES)
    study = "iat-fig7" if "relu" in activations else "iat-fig8"
    return [
        "Softplus acts on the eigenvalues of a symmetric M, W = Q g(M) Q' with Q orthogonal (eq. 16); without it W is a free "
        "matrix. Both start from the same W, with rates geometric on [1/m, 4]. Units of a ReLU network start with bias 1.",
        f"Trained on {config['train_steps']} steps, measured on {config['test_steps']}. In the long measure the outputs on "
        f"{config['long_steps']} steps are compared with the model's own before the perturbation: it asks for stability alone, "
        "since no student was trained on such lengths.",
        f"Best rate: the recurrent learning rate is the best of {factors} on validation data after {config['trial_steps']} "
        f"steps, {config['tuned_seeds']} seeds. The other weights keep {config['lr']:g}.",
        *([RELU] if "relu" in activations else []),
        FOUND[study] + _students.WHERE_SHOWN.format(study),
    ]


def _figures(groups: dict[tuple[str, str, str], list[Unit]]) -> list[Figure]:
    paper = {(a, f): found for (a, f, rate), found in groups.items() if rate == "paper"}

    def panels(name: str, limits: tuple[float, float]) -> list[Panel]:
        return [
            _sums.panel(f"{ACTIVATION_NAMES[a]}, {FORMS[f]}", _curves.family(found, name), limits, legend=k == 0)
            for k, ((a, f), found) in enumerate(paper.items())
        ]

    learning = [
        _students.loss_panel(f"{ACTIVATION_NAMES[a]}, {FORMS[f]}", found, legend=k == 0)
        for k, ((a, f), found) in enumerate(paper.items())
    ]
    return [
        Figure(
            "recurrent-weights",
            f"One line for each width: the error when the recurrent weights move by up to beta, the median of the seeds. "
            f"{_curves.UNSTABLE}",
            panels("recurrent", (1e-2, 1e2)),
        ),
        Figure("all-weights", "The same with all weights perturbed.", panels("all", (1e-2, 1e2))),
        Figure(
            "longer-times",
            "Distance of the perturbed outputs from the unperturbed ones on long sequences, over the largest output.",
            panels("long", (1e-4, 1e2)),
        ),
        Figure("learning", "Training loss: the median of the seeds, with all of them in the band.", learning),
    ]


def experiment(number: int, title: str, activations: Sequence[str], *, standard: Config, quick: Config) -> Experiment:
    """Figure 7 or 8 of the paper: networks with these activations, W free or with softplus on its eigenvalues.

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
        summary="Networks of several widths, W free or with softplus on its eigenvalues, are trained on the functional with "
        "memory (t+1)^-1.5, and their weights are perturbed.",
        presets=presets(COMMON, standard={**STANDARD, **standard}, quick={**QUICK, **quick}),
        units=partial(units, activations=activations),
        run=run,
        conclude=partial(conclude, activations=activations),
        cost=cost,
    )
