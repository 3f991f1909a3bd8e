"""Handwritten digits as sequences of 784 pixels: MNIST's test images, or scikit-learn's digits in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from holdfast.data import MissingDataError, mnist
from holdfast.data._download import set_folder
from holdfast.data._mnist import FILES
from holdfast_papers.experiments.base import Config, Unit
from holdfast_papers.pages import Note

Source = Literal["mnist", "digits"]
SIDE = 28
MOSAIC_IMAGES = 4  # images in a mosaic
LENGTH = SIDE * SIDE
KNOWN, NEIGHBOURS = 10_000, 5


def source(config: Config) -> Source:
    """Where a unit's images come from: `digits` only if MNIST is missing and the preset need not download it.

    It is part of a unit's config, so that units run with the stand-in run again once MNIST is there.
    """
    folder = set_folder("mnist")
    there = all((folder / file.name).is_file() for file in FILES["test"])
    return "mnist" if there or config["download"] else "digits"


def sequences(which: Source, count: int) -> Float64[Tensor, "count 784"]:
    """The first `count` images, pixels in [0, 1] row after row."""
    if which == "mnist":
        return mnist("test").sequences(torch.float64)[:count]
    return small_digits()[0][:count]


def small_digits() -> tuple[Float64[Tensor, "count 784"], Int64[Tensor, " count"]]:
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDataError(
            "this preset needs MNIST, or scikit-learn for its digits instead of it, and neither is on this machine: pip "
            "install scikit-learn, or run with --preset standard, which downloads MNIST"
        ) from error
    digits = load_digits()
    small = torch.from_numpy(np.asarray(digits.images)) / 16
    # 8 x 8 pixels drawn 3 x 3 each, and MNIST's empty border: the same 784 steps
    large = small.repeat_interleave(3, 1).repeat_interleave(3, 2)
    return torch.nn.functional.pad(large, (2, 2, 2, 2)).flatten(1), torch.from_numpy(np.asarray(digits.target)).long()


@dataclass(frozen=True, eq=False)
class Reader:
    """A fixed classifier: each image is the digit that most of its NEIGHBOURS nearest known images are.

    `known` are MNIST's first 10,000 training images (or the digits after the first `count`), `labels` the true digits of the
    images that are read.
    """

    known: Float64[Tensor, "known 784"]
    digits: Int64[Tensor, " known"]
    labels: Int64[Tensor, " count"]

    @classmethod
    def of(cls, which: Source, count: int) -> Reader:
        """The reader of the first `count` images."""
        if which == "mnist":
            train, test = mnist("train"), mnist("test")
            return cls(train.sequences(torch.float64)[:KNOWN], train.labels[:KNOWN], test.labels[:count])
        images, labels = small_digits()
        return cls(images[count:], labels[count:], labels[:count])

    def share_read(self, images: Float64[Tensor, "count 784"]) -> float:
        """The share of images, in the order of `labels`, whose digit is read correctly."""
        nearest = torch.cdist(images, self.known).topk(NEIGHBOURS, largest=False).indices
        votes = torch.nn.functional.one_hot(self.digits[nearest], 10).sum(1)
        return float((votes.argmax(1) == self.labels).double().mean())


def notes(units: Sequence[Unit]) -> list[str | Note]:
    """What a reader must know about the images."""
    if all(unit.config["images"] == "mnist" for unit in units):
        return ["Images: test set of MNIST, in the order of its file."]
    text = (
        "MNIST was not on this machine and the quick preset does not download: scikit-learn's 8 x 8 digits, scaled up to "
        "28 x 28, stand in for it."
    )
    return [Note("other data", text)]


def mosaic(images: np.ndarray) -> np.ndarray:
    """Four images (4, 784) as one square picture, clipped to [0, 1]."""
    tiles = images.reshape(2, 2, SIDE, SIDE)
    return np.clip(tiles.transpose(0, 2, 1, 3).reshape(2 * SIDE, 2 * SIDE), 0, 1)
