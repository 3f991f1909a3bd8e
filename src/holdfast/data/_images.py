"""Images as sequences: of pixels, of pixels in a fixed random order, or of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.data._draws import shuffled
from holdfast.errors import ArgumentError, DamagedResultError

Order = Literal["pixel", "permuted", "row"]
Scale = Literal["unit", "standard"]
CLASSES = 10
_VALID_SEED = 0  # which training images are held out never changes, so that results can be compared


@dataclass(frozen=True, eq=False)
class ImageSet:
    """What an image set has: bytes, classes, where from, and which part of it.

    Args:
        train: training images as bytes (count, height, width, colours).
        train_labels: their classes (count,).
        test: test images.
        test_labels: their classes.
        name: as in `load_task`.
        title: of the set, as people write it.
        mean: of the training pixels in [0, 1], one for each colour.
        deviation: their standard deviations.
        sha256: checksums of the files by their names.
        part: which part of the set this is, in words; empty where it is all of it.
    """

    train: UInt8[Tensor, "count height width colours"]
    train_labels: Int64[Tensor, " count"]
    test: UInt8[Tensor, "others height width colours"]
    test_labels: Int64[Tensor, " others"]
    name: str
    title: str
    mean: Sequence[float]
    deviation: Sequence[float]
    sha256: dict[str, str]
    part: str = ""


class ImageTask(AbstractTask):
    """The class of an image that is read as a sequence; the images stay in RAM as bytes.

    Args:
        images: the set.
        order: "pixel" (row after row, the colours as features), "permuted" (pixels in one random order for all images), or
            "row" (one row per step).
        scale: "unit" gives pixels in [0, 1], "standard" with the set's mean 0 and deviation 1 for each colour.
        valid: training images held out for validation, always the same ones; 0: none.
        permutation_seed: of the order of pixels, for "permuted" only; None is 0.
    """

    def __init__(self, images: ImageSet, order: Order, scale: Scale, valid: int, permutation_seed: int | None) -> None:
        if not 0 <= valid < len(images.train):
            raise ArgumentError(
                f"{images.name}: valid must be from 0 to {len(images.train) - 1:,}, so that training images are left; "
                f"got {valid:,}"
            )
        if order == "permuted":
            permutation_seed = permutation_seed or 0
        elif permutation_seed is not None:
            raise ArgumentError(
                f"{images.name}: permutation_seed is used only with order='permuted', got {order=}; leave it out"
            )
        self._set, self.order, self.scale, self.permutation_seed = images, order, scale, permutation_seed
        shuffle = shuffled(len(images.train), _VALID_SEED, "validation")
        # sorted: neighbours in a batch then lie near each other in memory, and without validation the file's order stays
        self._rows = {"train": shuffle[valid:].sort().values, "valid": shuffle[:valid].sort().values}
        self._labels = {"train": images.train_labels, "test": images.test_labels}
        self._steps = {"train": self._as_steps(images.train), "test": self._as_steps(images.test)}
        self._scale_by = _scale(images, scale, self._steps["train"].shape[2])
        sizes: dict[Split, int | None] = {"train": len(images.train) - valid}
        sizes |= {"valid": valid} if valid else {}
        sizes |= {"test": len(images.test)}
        length, features = self._steps["train"].shape[1:]
        super().__init__(images.name, "classify", Space("features", features), Space("classes", CLASSES), length, sizes)

    def _as_steps(self, images: UInt8[Tensor, "count height width colours"]) -> UInt8[Tensor, "count time features"]:
        if self.order == "row":
            return images.flatten(2)
        pixels = images.flatten(1, 2)
        if self.permutation_seed is None:
            return pixels
        return pixels[:, shuffled(pixels.shape[1], self.permutation_seed, "pixels")]

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        source = "test" if split == "test" else "train"
        rows = indices if split == "test" else self._rows[split][indices]
        mean, deviation = self._scale_by
        pixels = self._steps[source][rows].float().div_(255)
        if self.scale == "standard":
            pixels.sub_(mean).div_(deviation)
        return Batch(pixels, self._labels[source][rows])

    def describe(self) -> str:
        sizes = ", ".join(f"{size:,} {split}" for split, size in self._sizes.items())
        part = f", part: {self._set.part}" if self._set.part else ""
        return f"{self._set.title} by {self.order}, {sizes} images of {self.length:,} steps{part}"

    def identity(self) -> dict[str, Any]:
        return {
            "task": self.name, "order": self.order, "scale": self.scale, "permutation_seed": self.permutation_seed,
            "features": self.inputs.size, "sizes": dict(self._sizes), "sha256": self._set.sha256, "part": self._set.part,
        }  # fmt: skip


def _scale(images: ImageSet, scale: Scale, features: int) -> tuple[Tensor, Tensor]:
    mean, deviation = torch.tensor(images.mean), torch.tensor(images.deviation)
    return mean.repeat(features // len(mean)), deviation.repeat(features // len(mean))


def check_labels(labels: Tensor, where: str) -> Int64[Tensor, " count"]:
    """The labels as int64; refuses one that is not a class."""
    if len(labels) and int(labels.max()) >= CLASSES:
        place = int((labels >= CLASSES).nonzero()[0])
        raise DamagedResultError(
            f"{where}: expected labels from 0 to {CLASSES - 1}, got {int(labels[place])} at image {place}; the file is damaged "
            "or of another data set: replace it"
        )
    return labels.long()
