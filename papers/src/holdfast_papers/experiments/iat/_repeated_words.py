"""What the memory curves of repeated words say: ratios by model, seed and word, their figure and their table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers.experiments.base import Unit
from holdfast_papers.experiments.iat._sentiment import WORDS
from holdfast_papers.pages import Note, Table

EARLY, LATE = 40, 160  # copies between which the tail of the memory is compared
SPANS = ((2, 20), (EARLY, LATE))  # those of the table
FLOOR = 1e-5  # of M(1): what float32 resolves of a score; smaller values count as this
MIN_ACCURACY = 0.7  # test accuracy below which a model decides nothing
NOT_AT_HAND = Note(
    "other data",
    "IMDB's reviews and a fine-tuned BERT, which the paper used, are not at hand: the sentences are those of the sentence "
    "polarity set (film reviews too, one sentence each), the encoder is all-MiniLM-L6-v2, all of its weights fine-tuned here "
    "and read at its first token. The score is the difference of the two classes' logits; memory at n is its change from n to "
    "n + 1 copies.",
)
MADE_UP = (
    "The sentence polarity set is not on this machine: made-up sentences of forty words stand in for it, and nothing is "
    "decided."
)


@dataclass(frozen=True)
class Judged:
    """One model with one seed.

    Args:
        model: its name.
        seed: its seed.
        accuracy: on test sentences.
        curves: memory by word, at 1, 2, ... copies.
    """

    model: str
    seed: int
    accuracy: float
    curves: Mapping[str, np.ndarray]

    def memory(self, word: str, copies: int) -> float:
        """M(copies), at least FLOOR of M(1).

        Args:
            word: the word.
            copies: of it.
        """
        curve = self.curves[word]
        return float(max(curve[copies - 1], FLOOR * curve[0], np.finfo(float).tiny))

    def ratio(self, word: str, early: int = EARLY, late: int = LATE) -> float:
        """M(late) / M(early): the share of the memory of a word that is left.

        Args:
            word: the word.
            early: copies of it.
            late: more copies of it.
        """
        return self.memory(word, late) / self.memory(word, early)

    def forgotten(self, word: str, copies: int) -> bool:
        """Whether the memory is at the floor at so many copies: it may be any smaller.

        Args:
            word: the word.
            copies: of it.
        """
        return bool(self.curves[word][copies - 1] <= FLOOR * self.curves[word][0])


def judged(units: Iterable[Unit]) -> list[Judged]:
    """Every model and seed of the units."""
    return [
        Judged(
            u.config["model"], u.config.get("seed", k), float(accuracy), {w: u.arrays[f"memory.{w}"][k] for w in WORDS}
        )
        for u in units
        for k, accuracy in enumerate(u.arrays["accuracy"])
    ]


def undecided(units: Sequence[Unit], judged: Sequence[Judged]) -> str:
    """Why nothing can be decided; empty where it can."""
    if any(u.config["sentences"] != "polarity" for u in units):
        return MADE_UP
    weak = sorted({j.model for j in judged if j.accuracy < MIN_ACCURACY})
    if (EARLY, LATE) not in spans(judged):
        return f"{LATE + 1} copies are needed."
    return f"Test accuracy below {MIN_ACCURACY:.0%}: {', '.join(weak)}." if weak else ""


def notes(units: Sequence[Unit]) -> list[str | Note]:
    """What a reader must know about the data."""
    known = [bool(u.arrays["known.ha"]) for u in units if "known.ha" in u.arrays]
    said: list[str | Note] = [NOT_AT_HAND]
    if not all(known):
        said.append("'ha' is too rare for the LSTMs' vocabulary: they read it as an unknown word.")
    if any(u.config["sentences"] != "polarity" for u in units):
        said.append(Note("other data", MADE_UP))
    return said


def figure(judged: Sequence[Judged], caption: str) -> Figure:
    """A panel for each model: memory by number of copies, the median over the seeds and their range."""
    panels = []
    for model in dict.fromkeys(j.model for j in judged):
        lines = []
        for k, word in enumerate(WORDS):
            curves = np.array([j.curves[word] for j in judged if j.model == model])
            x = np.arange(1, curves.shape[1] + 1)
            lines.append(Line(word, x, np.median(curves, 0), curves.min(0), curves.max(0), colour=k))
        panels.append(Panel(model, Axis("copies of the word"), Axis("memory of the score", log=True), lines))
    return Figure("memory", caption, panels)


def spans(judged: Sequence[Judged]) -> list[tuple[int, int]]:
    """The pairs of copies between which memory is compared, as far as the curves go."""
    known = min(len(curve) for j in judged for curve in j.curves.values())
    return [(early, late) for early, late in SPANS if late <= known]


def table(judged: Sequence[Judged]) -> Table:
    """Accuracy, and the shares M(20)/M(2) and M(160)/M(40) by model, seed and word."""
    columns = [(word, early, late) for early, late in spans(judged) for word in WORDS]
    rows: list[list[str | float]] = [
        [j.model, j.seed, j.accuracy, *(j.ratio(*column) for column in columns)] for j in judged
    ]
    heads = ("model", "seed", "test accuracy", *(f"M({late})/M({early}), {word}" for word, early, late in columns))
    return Table(
        "ratios",
        "How much of its memory at fewer copies of a word a model keeps at more: M(more) / M(fewer).",
        heads,
        rows,
    )
