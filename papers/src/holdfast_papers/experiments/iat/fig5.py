"""iat-fig5: memory of repeated words in LSTMs that judge the sentiment of a sentence.

Whether they forget faster than a transformer encoder is the claim of iat-fig6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast_papers.experiments._paired import Decision, larger, numbers, paired, together
from holdfast_papers.experiments.base import Conclusion, Config, Experiment, Unit, presets
from holdfast_papers.experiments.iat import _repeated_words as words
from holdfast_papers.experiments.iat import _sentiment
from holdfast_papers.experiments.iat._repeated_words import EARLY, LATE
from holdfast_papers.results import Claim

LEFT = 0.01  # of M(1): less than this is left of a memory that has decayed


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
    pairs = (
        [] if why else [(w, [j.memory(w, LATE) for j in own], [j.memory(w, 1) for j in own]) for w in _sentiment.PLAIN]
    )
    left = {f"M({LATE})/M(1), {word}": paired(late, first, factor=True) for word, late, first in pairs}
    holds = together([d.below(math.log(LEFT)) for d in left.values()])
    return Claim.decide(
        model,
        f"The memory of plain words decays in the {model}: at {LATE} copies less than {LEFT:g} of that of the first is left, "
        "for 'good' and 'bad'",
        holds,
        {**numbers(left, factor=True), "smallest test accuracy": min(j.accuracy for j in own)},
        otherwise=why or "The 95% interval over the seeds reaches above that.",
    )


def _slower(model: str, judged: Sequence[words.Judged], why: str) -> Claim:
    own = [j for j in judged if j.model == model]
    if not why and any(j.forgotten(_sentiment.ODD, LATE) for j in own):
        why = f"At {LATE} copies the memory of 'ha' has fallen to rounding: how little of it is left is not known."
    shares = {} if why else {word: [j.ratio(word) for j in own] for word in _sentiment.WORDS}
    logs = {word: [math.log(value) for value in found] for word, found in shares.items()}
    found = larger(logs, _sentiment.ODD, _sentiment.PLAIN) if logs else Decision(None, {}, why)
    return Claim.decide(
        f"ha, {model}",
        f"In the {model} the memory of 'ha' does not decay as fast: its M({LATE})/M({EARLY}) is larger than those of "
        "'good' and 'bad'",
        found.holds,
        {f"log of M({LATE})/M({EARLY}), {pair}": value for pair, value in found.numbers.items()},
        otherwise=why or found.why + "The training sentences hardly have 'ha'.",
    )


EXPERIMENT = Experiment(
    id="iat-fig5",
    where="Figure 5",
    title="Memory of repeated words: LSTMs",
    summary="A bidirectional LSTM and a stacked one learn the sentiment of film-review sentences; the memory of a word is how "
    "much one more copy of it changes the score.",
    presets=presets(
        {
            "download": True, "seeds": 3, "copies": 200, "width": 64, "vocabulary": 10_000, "batch": 128, "epochs": 5,
            "lr": 4e-3,
        },
        quick={"download": False, "seeds": 1, "copies": 22, "width": 16, "vocabulary": 2000, "batch": 128, "epochs": 1},
    ),
    units=lambda config: _sentiment.units(config, encoder=False),
    run=_sentiment.run,
    conclude=conclude,
    cost=_sentiment.cost,
)  # fmt: skip
