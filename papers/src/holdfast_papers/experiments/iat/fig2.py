"""iat-fig2: tanh RNNs trained on a functional with polynomial memory, and their errors when weights are perturbed.

The criterion: all weights perturbed in their own balls, the largest error over sequences and times (iat, Def. 3.4), the sup
searched by draws and gradient ascent on a horizon that grows with m (`_sup`), the median of the seeds at every width: the
widths are unstable by the rule of `assess_stability`; undecided where fewer than four widths approximate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.figures import Figure
from holdfast.stability import StabilityVerdict
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.iat import _curves, _students, _sup
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

SCOPES = {"all": "all weights", "recurrent": "recurrent weights"}  # of the searched sup
NAMES = ("all", "recurrent", "authors")  # by random draws alone, on the test sequences
BEYOND = 9  # doublings after the paper's largest beta, to see radii that lie behind it


def units(config: Config) -> list[Config]:
    """One run for each width and seed."""
    shared = {name: config[name] for name in (*_students.TRAINING, *_sup.SETTINGS, "smallest", "doublings")}
    return split(shared, m=config["widths"], seed=range(config["seeds"]))


def cost(config: Config) -> float:
    """Seconds, roughly: training, and 12 radii of two searches."""
    search = 2 * 12 * config["ascent"] * _sup.horizon(config) * config["sequences"] * (2e-6 + 1.1e-7 * config["m"])
    return _students.cost(config) + search


def run(config: Config, work: Work) -> Arrays:
    """One student: its training, and its perturbation curves."""
    given = _students.lesson(config)
    model, record = _students.learn(config, given, work)
    betas = _curves.betas_of(config, BEYOND)
    if record["diverged"]:
        lost = [_sup.failed(config, f"sup_{scope}") for scope in SCOPES]
        return _curves.kept(record, _curves.failed(betas, NAMES), *lost)
    found = [_sup.measured(model, _sup.noise(config), config, work, scope=s, name=f"sup_{s}") for s in SCOPES]
    return _curves.kept(record, _curves.measured(model, given.test, betas, config, NAMES), *found)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Approximated at every width, and unstable as widths grow."""
    largest = float(_curves.betas_of(config)[-1])
    found = {(words, "sup"): _sup.verdict(units, f"sup_{scope}") for scope, words in SCOPES.items()}
    drawn = {
        ("all weights", f"{config['draws']} draws"): _curves.verdict(units, "all"),
        ("recurrent weights", f"{config['draws']} draws"): _curves.verdict(units, "recurrent"),
        ("authors' noise", "the paper's beta"): _curves.verdict(units, "authors", largest),
        ("authors' noise", "larger beta too"): _curves.verdict(units, "authors"),
    }
    seeds = {
        ("all weights", f"seed {seed}"): _sup.verdict([u for u in units if u.config["seed"] == seed], "sup_all")
        for seed in range(config["seeds"])
    }
    heads = ("perturbed", "measure", *_sums.HEADS)
    tables = [
        Table("verdicts", "Radii of the median over the seeds.", heads, _sums.rows({**found, **drawn})),
        Table("seeds", "The same for single seeds, by the searched sup.", heads, _sums.rows(seeds)),
        Table("runs", "Medians over the seeds.", ("m", *_students.RUN_HEADS), _runs(units)),
    ]
    notes = [
        _sup.note(config),
        f"Students are trained on {config['train_steps']} steps of white noise, dt {config['dt']:g}. The paper trains on 32 "
        "steps, measures on 100, and calls both the same horizon. A rate r that moves past 0 to -beta makes the error grow "
        "like e^(beta t), which is not seen while beta t is small: a horizon held fixed hides the instability that the "
        "theorem, over all times, speaks of.",
        f"By draws alone the test sequences have {config['test_steps']} steps. The authors' noise: every entry moves by at "
        "most beta, one of them by exactly beta; mean square of the error; running maximum over beta. A matrix of such "
        "entries has a spectral norm that grows with m, which shrinks radii by itself.",
        "The more weights there are, the less of the worst case a few random draws find: that alone makes radii by draws grow "
        "with m. The slow rates are those of the start: students that start without slow rates do not learn them. "
        + _students.WHERE_SHOWN.format("iat-fig2"),
    ]
    claims = [_approximated(units), *_unstable(found, drawn)]
    return Conclusion(claims, _figures(units), tables, notes)


def _approximated(units: Sequence[Unit]) -> Claim:
    shares = {m: c.at_zero / float(c.target_norm or 1.0) for m, c in _sup.family(units, "sup_all").items()}
    return Claim.decide(
        "approximated",
        "Trained tanh RNNs of every width approximate the functional of (t+1)^-1.5 on the horizon that they are measured on",
        all(share <= _curves.SHARE for share in shares.values()),
        {f"error / norm at m = {m}": share for m, share in shares.items()},
        otherwise=f"Some widths miss more than {_curves.SHARE} of the largest target.",
    )


def _unstable(
    found: Mapping[tuple[str, str], StabilityVerdict], drawn: Mapping[tuple[str, str], StabilityVerdict]
) -> list[Claim]:
    authors = drawn["authors' noise", "larger beta too"]
    return [
        *(
            Claim.decide(
                "unstable" if words == "all weights" else f"unstable, {words}",
                f"The stability radius shrinks as m grows: there is no stable approximation ({words} perturbed, the sup "
                "searched by gradient ascent)",
                _curves.decided((found[words, "sup"], "unstable")),
                _sums.numbers(found[words, "sup"]),
                otherwise=_sums.why({words: found[words, "sup"]}),
            )
            for words in SCOPES.values()
        ),
        Claim.decide(
            "authors' noise",
            "The radius shrinks as m grows in the authors' own measure, entries of size beta and the mean square",
            _curves.decided((authors, "unstable")),
            _sums.numbers(authors),
            otherwise=_sums.why({"authors' noise": authors}),
        ),
    ]


def _runs(units: Sequence[Unit]) -> list[tuple[_sums.Cell, ...]]:
    widths = sorted({u.config["m"] for u in units})
    return [(m, *_students.run_row([u for u in units if u.config["m"] == m])) for m in widths]


def _figures(units: Sequence[Unit]) -> list[Figure]:
    panels = [
        *(
            _sums.panel(f"{words}, searched", _sup.family(units, f"sup_{scope}"), (1e-2, 1e2), legend=scope == "all")
            for scope, words in SCOPES.items()
        ),
        _sums.panel("all weights, by draws", _curves.family(units, "all"), (1e-2, 1e2), legend=False),
        _sums.panel("authors' noise, mean square", _curves.family(units, "authors"), (1e-6, 1e2), legend=False),
    ]
    return [
        Figure(
            "perturbation",
            f"One line for each width: the error when the weights move by up to beta, medians of the seeds. {_curves.UNSTABLE} "
            "Searched: at the points of a bisection. The paper has beta up to 0.34.",
            panels,
        ),
        Figure(
            "learning",
            "Training loss: the median of the seeds, with all of them in the band.",
            [_students.loss_panel("", units)],
        ),
    ]


EXPERIMENT = Experiment(
    id="iat-fig2",
    where="Figure 2",
    title="Stability of trained tanh RNNs on a polynomial target",
    summary="Tanh RNNs of several widths learn the functional with memory (t+1)^-1.5, and their weights are perturbed.",
    presets=presets(
        {
            **_students.PAPER, **_sup.SETTINGS, "widths": [8, 16, 32, 64], "seeds": 3, "smallest": 1e-11, "doublings": 35,
            "draws": 3,
        },
        standard={
            "widths": [4, 6, 8, 12, 16, 24, 32, 64], "steps": 10_000, "batch": 32, "train_steps": 400, "train_size": 4096,
            "draws": 30,
        },
        quick={
            "steps": 200, "seeds": 1, "widths": [4, 6, 8, 12], "train_size": 320, "test_size": 16, "ascent": 3,
            "least_steps": 100, "sequences": 2,
        },
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=cost,
    version=2,
)  # fmt: skip
