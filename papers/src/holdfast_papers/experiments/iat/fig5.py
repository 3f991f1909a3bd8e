"""iat-fig5: memory of repeated words in LSTMs that judge the sentiment of a sentence.

Whether they forget faster than a transformer encoder is the claim of iat-fig6.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast_papers.experiments.base import Conclusion, Config, Experiment, Unit, presets
from holdfast_papers.experiments.iat import _repeated_words as words
from holdfast_papers.experiments.iat import _sentiment
from holdfast_papers.experiments.iat._repeated_words import EARLY, LATE
from holdfast_papers.results import Claim

LEFT = 0.1  # memory has decayed when less than this share is left after 18 more copies


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Plain words are forgotten; "ha" is forgotten more slowly."""
    judged = words.judged(units)
    why = words.undecided(units, judged)
    claims = [_decays(model, judged, why) for model in _sentiment.LSTMS]
    claims += [_slower(model, judged, why) for model in _sentiment.LSTMS]
    caption = "Change of the sentiment score from n to n + 1 copies of a word; median and range of the seeds."
    return Conclusion(claims, [words.figure(judged, caption)], [words.table(judged)], words.notes(units))


def _decays(model: str, judged: Sequence[words.Judged], why: str) -> Claim:
    own = [j for j in judged if j.model == model]
    largest = {word: max(j.ratio(word) for j in own) for word in _sentiment.PLAIN}
    return Claim.decide(
        model,
        f"The memory of plain words decays in the {model}: M({LATE})/M({EARLY}) < {LEFT:g} for 'good' and 'bad', in every seed",
        None if why else max(largest.values()) < LEFT,
        {
            **{f"largest M({LATE})/M({EARLY}), {word}": value for word, value in largest.items()},
            "smallest test accuracy": min(j.accuracy for j in own),
        },
        otherwise=why
        or "More than that is left of a plain word's memory in one of the seeds." + words.later(own, _sentiment.PLAIN),
    )


def _slower(model: str, judged: Sequence[words.Judged], why: str) -> Claim:
    own = [j for j in judged if j.model == model]
    slower = sum(j.ratio(_sentiment.ODD) > max(j.ratio(word) for word in _sentiment.PLAIN) for j in own)
    return Claim.decide(
        f"ha, {model}",
        f"In the {model} the memory of 'ha' does not decay as fast: its M({LATE})/M({EARLY}) is larger than those of "
        "'good' and 'bad', in every seed",
        None if why else slower == len(own),
        {"seeds where it is larger": slower, "seeds": len(own)},
        otherwise=why
        or "In some seeds 'ha' is forgotten as fast as a plain word; the training sentences hardly have it.",
    )


EXPERIMENT = Experiment(
    id="iat-fig5",
    where="Figure 5",
    title="Memory of repeated words: LSTMs",
    summary="A bidirectional LSTM and a stacked one learn the sentiment of film-review sentences; the memory of a word is how "
    "much one more copy of it changes the score.",
    presets=presets(
        {
            "download": True, "seeds": 3, "copies": 40, "width": 64, "vocabulary": 10_000, "batch": 128, "epochs": 5,
            "lr": 4e-3,
        },
        quick={"download": False, "seeds": 1, "copies": 22, "width": 16, "vocabulary": 2000, "batch": 128, "epochs": 1},
    ),
    units=lambda config: _sentiment.units(config, encoder=False),
    run=_sentiment.run,
    conclude=conclude,
    cost=_sentiment.cost,
)  # fmt: skip
