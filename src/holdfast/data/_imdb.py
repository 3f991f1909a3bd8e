"""IMDB reviews, or any folder of positive and negative texts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from holdfast._arguments import checked
from holdfast.data._base import Split
from holdfast.data._download import missing, set_folder
from holdfast.data._draws import shuffled
from holdfast.data._files import Archive, find_files, read_text
from holdfast.data._reviews import SPLIT_SEED, ReviewTask, Unit, decoded
from holdfast.errors import ArgumentError, DamagedResultError

ARCHIVE = Archive(
    "aclImdb_v1.tar.gz",
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    84_125_825,
    1 << 28,
    ("https://ai.stanford.edu/~amaas/data/sentiment/",),
    "aclImdb",
    r"(?:train|test)/(?:pos|neg)/\d+_\d+\.txt",
)


@checked
def imdb_task(
    folder: str | None = None,
    *,
    unit: Unit = "word",
    length: int = 512,
    vocabulary: int = 20_000,
    valid: int = 2500,
    download: bool = True,
) -> ReviewTask:
    """The IMDB reviews (Maas et al., 2011), or any folder with train/pos, train/neg, test/pos, test/neg and text files in them.

    Args:
        folder: where these four are; None: `imdb/` in the data root.
        unit: "word", or "byte" as in Long Range Arena.
        length: longest review in steps; the rest of longer ones is dropped.
        vocabulary: number of tokens for words.
        valid: number of training reviews held out for validation, always the same ones; 0: none.
        download: whether the set may be downloaded where it is missing.
    """
    names = ("train/neg", "train/pos", "test/neg", "test/pos")
    base = Path(folder) if folder else find_files(set_folder("imdb"), names, ARCHIVE, download=download, part=False)
    if not all(os.path.isdir(base / name) for name in names):
        raise missing(base, names, ARCHIVE.mirrors[0] + ARCHIVE.name, "which are folders of text files")
    train, train_labels, train_sum = _read_folder(base / "train")
    test, test_labels, test_sum = _read_folder(base / "test")
    if not 0 <= valid < len(train):
        raise ArgumentError(
            f"valid must be from 0 to {len(train) - 1:,}, so that training reviews are left; got {valid:,}"
        )
    order = shuffled(len(train), SPLIT_SEED, "validation")
    rows: dict[Split, Tensor] = {"train": order[valid:]}
    if valid:
        rows["valid"] = order[:valid]
    parts: dict[Split, tuple[Sequence[str], Tensor]] = {
        split: ([train[row] for row in found.tolist()], train_labels[found]) for split, found in rows.items()
    }
    parts["test"] = (test, test_labels)
    title = "IMDB reviews" if len(train) == len(test) == 25_000 else f"reviews in {base}"
    return ReviewTask(
        "imdb", parts, unit, length, vocabulary, title, {"sha256": {"train": train_sum, "test": test_sum}}
    )


def _read_folder(folder: Path) -> tuple[list[str], Tensor, str]:
    """Texts of neg/ and pos/ in the order of their names, their labels, and a checksum."""
    digest = hashlib.sha256()
    texts: list[str] = []
    counts = []
    for name in ("neg", "pos"):
        files = sorted((folder / name).glob("*.txt"))
        if not files:
            raise DamagedResultError(f"{folder / name} has no text file (*.txt); put the reviews there")
        for file in files:
            content, _ = read_text(file)
            digest.update(f"{len(content)} ".encode() + content)
            texts.append(decoded(content).replace("<br />", " "))
        counts.append(len(files))
    return texts, torch.tensor([0] * counts[0] + [1] * counts[1]), digest.hexdigest()
