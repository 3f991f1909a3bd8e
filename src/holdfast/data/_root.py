"""The folder that holds the data sets, and which sets are in it."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import ArgumentError

ENVIRONMENT = "HOLDFAST_DATA"

# a set is there when every one of its files or folders is; a part that can be trained on counts
SETS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    ),
    "cifar10": ("data_batch_1.bin", "test_batch.bin"),
    "wikitext-2": ("wiki.valid.tokens", "wiki.test.tokens"),
    "wikitext-103": ("wiki.valid.tokens", "wiki.test.tokens"),
    "shakespeare": ("input.txt",),
    "movie-reviews": ("rt-polarity.pos", "rt-polarity.neg"),
    "imdb": ("train/pos", "train/neg", "test/pos", "test/neg"),
}


def data_root() -> Path:
    """The folder named by HOLDFAST_DATA, else holdfast/data in the user's cache folder, which need not exist yet."""
    named = os.environ.get(ENVIRONMENT)
    if not named:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "data"
    if not os.path.isdir(named):
        raise ArgumentError(f"{ENVIRONMENT}={named} is not a folder; create it or unset the variable")
    return Path(named)


def find_sets() -> dict[str, bool]:
    """For each known set, whether all of its files are in the data root."""
    root = data_root()
    return {name: all((root / name / file).exists() for file in files) for name, files in SETS.items()}
