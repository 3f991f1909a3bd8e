"""iat-fig2: tanh RNNs trained on a functional with polynomial memory, and their errors when weights are perturbed.

The criterion: with the median of the seeds at every beta up to 1e-11 2^35, all weights perturbed in their own balls and the
largest error over sequences and times (iat, Def. 3.4), the widths are unstable by the rule of `assess_stability`; undecided
where fewer than four widths approximate.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.figures import Figure
from holdfast.stability import StabilityVerdict
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.iat import _curves, _students
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

NAMES = ("all", "recurrent", "authors")
BEYOND = 9  # doublings after the paper's largest beta, to see radii that lie behind it


def units(config: Config) -> list[Config]:
    """One run for each width and seed."""
    shared = {name: config[name] for name in (*_students.TRAINING, "smallest", "doublings", "draws")}
    return split(shared, m=config["widths"], seed=range(config["seeds"]))


def run(config: Config, work: Work) -> Arrays:
    """One student: its training, and its perturbation curves."""
    given = _students.lesson(config)
    model, record = _students.learn(config, given, work)
    betas = _curves.betas_of(config, BEYOND)
    if record["diverged"]:
        return _curves.kept(record, _curves.failed(betas, NAMES))
    return _curves.kept(record, _curves.measured(model, given.test, betas, config, NAMES))


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Approximated at every width, and unstable as widths grow."""
    largest = float(_curves.betas_of(config)[-1])
    found = {
        ("all weights", "the paper's beta"): _curves.verdict(units, "all", largest),
        ("all weights", "larger beta too"): _curves.verdict(units, "all"),
        ("recurrent weights", "larger beta too"): _curves.verdict(units, "recurrent"),
        ("authors' noise", "the paper's beta"): _curves.verdict(units, "authors", largest),
        ("authors' noise", "larger beta too"): _curves.verdict(units, "authors"),
    }
    seeds = {
        ("all weights", f"seed {seed}"): _curves.verdict([u for u in units if u.config["seed"] == seed], "all", largest)
        for seed in range(config["seeds"])
    }
    heads = ("perturbed", "radii", *_sums.HEADS)
    tables = [
        Table("verdicts", "Radii of the median over the seeds.", heads, _sums.rows(found)),
        Table("seeds", "The same for single seeds, the paper's beta.", heads, _sums.rows(seeds)),
        Table("runs", "Medians over the seeds.", ("m", *_students.RUN_HEADS), _runs(units)),
    ]
    notes = [
        f"Students are trained on {config['train_steps']} steps and measured on {config['test_steps']}, dt {config['dt']:g}, "
        "inputs are white noise. The paper's text gives both lengths and calls them the same horizon.",
        f"{config['test_steps']} steps are t = {config['test_steps'] * config['dt']:g}: a rate r that moves past 0 to -beta "
        "makes the error grow like e^(beta t), which is not seen while beta t is small, however small r is. A horizon held "
        "fixed hides the instability that the theorem, over all times, speaks of.",
        "The authors' noise: every entry moves by at most beta, one of them by exactly beta; mean square of the error; running "
        "maximum over beta. A matrix of such entries has a spectral norm that grows with m, which shrinks radii by itself.",
        "What was found: a few random draws meet the less of the worst case the more weights there are, so that radii grow "
        "with m by themselves. By gradient ascent on such students they do not, and on 1600 steps they shrink. The slow rates "
        "are those of the start: training does not bring them about in students that start without them. "
        + _students.WHERE_SHOWN.format("iat-fig2"),
    ]
    claims = [_approximated(units), *_unstable(found)]
    return Conclusion(claims, _figures(units), tables, notes)


def _approximated(units: Sequence[Unit]) -> Claim:
    shares = _curves.shares(units, "all")
    return Claim.decide(
        "approximated",
        "Trained tanh RNNs of every width approximate the functional of (t+1)^-1.5",
        all(share <= _curves.SHARE for share in shares.values()),
        {f"error / norm at m = {m}": share for m, share in shares.items()},
        otherwise=f"Some widths miss more than {_curves.SHARE} of the largest target.",
    )


def _unstable(verdicts: dict[tuple[str, str], StabilityVerdict]) -> list[Claim]:
    decisive, wider = verdicts["all weights", "the paper's beta"], verdicts["all weights", "larger beta too"]
    authors = verdicts["authors' noise", "larger beta too"]
    return [
        Claim.decide(
            "unstable",
            "The stability radius shrinks as m grows: there is no stable approximation (all weights, beta of the paper)",
            _curves.decided((decisive, "unstable")),
            _sums.numbers(decisive) | _sums.numbers(wider, "larger beta too: "),
            otherwise=_sums.why({"beta of the paper": decisive, "larger beta too": wider})
            + " On a fixed length of sequences a radius is about the inverse of that length, whatever m is.",
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
        _sums.panel(title, _curves.family(units, name), (low, 1e2), legend=name == "all")
        for name, title, low in (
            ("all", "all weights, largest error", 1e-2),
            ("recurrent", "recurrent weights, largest error", 1e-2),
            ("authors", "authors' noise, mean square", 1e-6),
        )
    ]
    return [
        Figure(
            "perturbation",
            f"One line for each width: the error when the weights move by up to beta, medians of the seeds. {_curves.UNSTABLE} "
            "The paper has beta up to 0.34.",
            panels,
            columns=3,
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
        {**_students.PAPER, "widths": [8, 16, 32, 64], "seeds": 3, "smallest": 1e-11, "doublings": 35, "draws": 3},
        standard={"steps": 12_000},
        quick={"steps": 300, "seeds": 1, "widths": [8, 12, 16, 24], "train_size": 1280, "test_size": 16},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=_students.cost,
)  # fmt: skip
