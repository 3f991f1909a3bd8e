"""Sentence polarity: is a sentence of a film review positive or negative?"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from holdfast._arguments import checked
from holdfast.data._base import Split
from holdfast.data._download import set_folder
from holdfast.data._draws import shuffled
from holdfast.data._files import Archive, find_files, read_text
from holdfast.data._reviews import SPLIT_SEED, ReviewTask, Unit, decoded

ARCHIVE = Archive(
    "rt-polaritydata.tar.gz",
    "a05befe52aafda71d458d188a1c54506a998b1308613ba76bbda2e5029409ce9",
    487_770,
    1 << 22,
    (
        "https://www.cs.cornell.edu/people/pabo/movie-review-data/",
        "https://storage.googleapis.com/seldon-datasets/sentence_polarity_v1/",
    ),
    "rt-polaritydata",
    r"rt-polarity\.(?:pos|neg)",
)


NAMES = ("rt-polarity.neg", "rt-polarity.pos")


@checked
def polarity_task(
    *, unit: Unit = "word", length: int = 64, vocabulary: int = 10_000, download: bool = True
) -> ReviewTask:
    """Sentence polarity v1.0 (Pang and Lee, 2005): 5,331 positive and 5,331 negative sentences of film reviews.

    The set has no official split: a fixed tenth each is held out for validation and test. Read from `movie-reviews/` in the
    data root.

    Args:
        unit: "word" or "byte".
        length: longest sentence in steps.
        vocabulary: number of tokens for words.
        download: whether missing files may be downloaded.
    """
    parts, facts = sentences(download=download)
    return ReviewTask("polarity", parts, unit, length, vocabulary, "sentence polarity", facts)


def sentences(
    *, download: bool = True
) -> tuple[dict[Split, tuple[list[str], Int64[Tensor, " texts"]]], dict[str, Any]]:
    """The sentences and labels of each split, as they are, and the checksums of their files.

    Args:
        download: whether missing files may be downloaded.
    """
    folder = find_files(set_folder("movie-reviews"), NAMES, ARCHIVE, download=download, part=False)
    files = [read_text(folder / name) for name in NAMES]
    lines = [[line for line in decoded(content).split("\n") if line.strip()] for content, _ in files]
    texts = [*lines[0], *lines[1]]
    labels = torch.tensor([0] * len(lines[0]) + [1] * len(lines[1]))
    # the files are sorted by label: a cut without shuffling would leave one class out
    order = shuffled(len(texts), SPLIT_SEED, "polarity")
    tenth = len(texts) // 10
    rows: dict[Split, Tensor] = {"train": order[2 * tenth :], "valid": order[:tenth], "test": order[tenth : 2 * tenth]}
    parts = {split: ([texts[row] for row in found.tolist()], labels[found]) for split, found in rows.items()}
    return parts, {"sha256": {name: digest for name, (_, digest) in zip(NAMES, files, strict=True)}}
