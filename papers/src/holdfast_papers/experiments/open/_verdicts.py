"""What open-activations and open-gated conclude from their families: claims, tables and figures by the stability rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.figures import Figure
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments.base import Conclusion, Config, Unit
from holdfast_papers.experiments.iat import _sup
from holdfast_papers.experiments.open._copies import DT, TARGETS, copies_as_units
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

ALL, RECURRENT = "all weights", "recurrent weights"
MEASURES = {"all": ALL, "recurrent": RECURRENT}
ADVERBS = {"stable": "stably", "unstable": "unstably"}


def conclusion(config: Config, found: Mapping[str, Sequence[Unit]], kind: str) -> Conclusion:
    """The verdicts of every network and target, all weights and recurrent ones perturbed.

    Args:
        config: the experiment's.
        found: units by the network's name.
        kind: what the networks are, in words.
    """
    families = {
        (name, target, words): [one for unit in units for one in copies_as_units(unit, measure, target)]
        for name, units in found.items()
        for target in TARGETS
        for measure, words in MEASURES.items()
    }
    curves = {key: _sup.family(units) for key, units in families.items()}
    verdicts = _sums.verdicts(curves)
    heads = ("network", "target", "perturbed", *_sums.HEADS)
    diverged = sum(int((~unit.arrays["alive"].astype(bool)).sum()) for units in found.values() for unit in units)
    notes = [
        f"{kind}, dt {DT:g}, trained for {config['steps']:,} steps of AdamW on {config['train_steps']} steps of input, half "
        f"of them white noise and half random signs that are held. {diverged} of the runs diverged; they count with an "
        "infinite error.",
        f"The sup is searched by gradient ascent from {config['starts']} starts with {config['ascent']} steps, on "
        f"{config['sequences']} sequences of {config['measured_steps']} steps, at least 25 for each unit of the widest; radii "
        "are bisected to 5%, and at every width the seed with the median radius is shown.",
    ]
    claims = [_claim(name, target, words, v) for (name, target, words), v in verdicts.items()]
    table = Table("verdicts", "Radii by width, medians of the seeds.", heads, _sums.rows(verdicts))
    return Conclusion(claims, [_figure(curves, words) for words in MEASURES.values()], [table], notes)


def _claim(name: str, target: str, words: str, verdict: _sums.StabilityVerdict) -> Claim:
    wanted = TARGETS[target][1]
    return _sums.claim(
        f"{name}, {target}" + ("" if words == ALL else f", {words}"),
        f"{name} networks approximate the functional of {target} {ADVERBS[wanted]}, {words} perturbed",
        {name: verdict},
        wanted,
        essential=words == ALL,
    )


def _figure(curves: _sums.Families, words: str) -> Figure:
    shown = {key: family for key, family in curves.items() if key[2] == words}
    return Figure(
        words.replace(" ", "-"),
        f"One line for each width: the largest error that ascent finds when {words} move by up to beta, at the points of a "
        "bisection.",
        _sums.panels(shown, (1e-2, 1e2), lambda name, target, _: f"{name}, {target}"),
    )
