"""MNIST from its four IDX files, with the official split."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from holdfast._arguments import checked
from holdfast.data._download import DataFile, read_file, set_folder
from holdfast.data._images import ImageSet, ImageTask, Order, Scale, check_labels
from holdfast.errors import DamagedResultError, unknown_name

Split = Literal["train", "test"]

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
# SHA-256 and size of the unpacked files, images then labels
FILES: dict[Split, tuple[DataFile, DataFile]] = {
    "train": (
        DataFile(
            "train-images-idx3-ubyte.gz",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            47_040_016,
            MIRRORS,
        ),
        DataFile(
            "train-labels-idx1-ubyte.gz",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            60_008,
            MIRRORS,
        ),
    ),
    "test": (
        DataFile(
            "t10k-images-idx3-ubyte.gz",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            7_840_016,
            MIRRORS,
        ),
        DataFile(
            "t10k-labels-idx1-ubyte.gz",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            10_008,
            MIRRORS,
        ),
    ),
}


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Grey images as bytes, a class for each, and the source.

    Args:
        images: (count, height, width), 0 to 255.
        labels: the class of each image (count,).
        source: the source, in words.
    """

    images: UInt8[Tensor, "count height width"]
    labels: Int64[Tensor, " count"]
    source: str

    def sequences(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "count time"]:
        """Each image as one sequence of pixels in [0, 1], row after row: (count, height width).

        Args:
            dtype: of the result.
        """
        return self.images.flatten(1).to(dtype) / 255


@checked
def mnist(split: Split = "train", *, download: bool = True) -> LabelledImages:
    """The 60,000 training or 10,000 test images of MNIST, 28 x 28, in the order of the files.

    Read from `mnist/` in the folder that HOLDFAST_DATA names, else in the user's cache folder; missing files are
    downloaded there first. Each file is checked against its SHA-256.

    Args:
        split: "train" or "test".
        download: whether missing files may be downloaded.

    Returns:
        the images as bytes (count, 28, 28), their labels 0 to 9 (count,), and the source in words. The training split
        needs `train-images-idx3-ubyte.gz` and `train-labels-idx1-ubyte.gz`, the test split `t10k-images-idx3-ubyte.gz`
        and `t10k-labels-idx1-ubyte.gz`.

    Raises:
        UnknownNameError: an unknown split.
        ArgumentError: HOLDFAST_DATA names no folder.
        MissingDataError: files that are missing, and may not or could not be downloaded.
        DamagedResultError: a file that is not complete or whose checksum differs.
    """
    if split not in FILES:
        raise unknown_name("split of MNIST", split, FILES)
    folder = set_folder("mnist")
    needed = FILES[split]
    images, labels = (read_idx(read_file(folder, f, download=download, needed=needed), f.name) for f in needed)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DamagedResultError(
            f"{folder}: expected images and one label for each, got shapes {tuple(images.shape)} in {needed[0].name} and "
            f"{tuple(labels.shape)} in {needed[1].name}; delete both files and run again"
        )
    return LabelledImages(
        images, check_labels(labels, needed[1].name), f"{len(images):,} {split} images of MNIST in {folder}"
    )


@checked
def mnist_task(
    *,
    order: Order = "pixel",
    scale: Scale = "unit",
    valid: int = 5000,
    permutation_seed: int | None = None,
    download: bool = True,
) -> ImageTask:
    """MNIST's digits as sequences of 784 pixels or 28 rows, the official test images, some training images held out.

    Args:
        order: "pixel", "permuted" (one random order of the pixels for all images) or "row".
        scale: "unit" gives pixels in [0, 1], "standard" with mean 0 and deviation 1.
        valid: number of training images held out for validation, always the same ones; 0: none.
        permutation_seed: of the order of pixels, for "permuted" only; None is 0.
        download: whether missing files may be downloaded.
    """
    train, test = (mnist(split, download=download) for split in FILES)
    images = ImageSet(
        train.images[..., None], train.labels, test.images[..., None], test.labels,
        name="mnist", title="MNIST", mean=(0.1307,), deviation=(0.3081,),
        sha256={file.name: file.sha256 for files in FILES.values() for file in files},
    )  # fmt: skip
    return ImageTask(images, order, scale, valid, permutation_seed)


def read_idx(content: bytes, name: str) -> UInt8[Tensor, "*any"]:
    """The array of an IDX file of unsigned bytes: 2 zero bytes, type 8, number of dimensions, sizes, then the bytes."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DamagedResultError(
            f"{name}: expected an IDX file of unsigned bytes, got one that begins with {content[:4]!r}; delete it and run again"
        )
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DamagedResultError(f"{name} ends within its header, after {len(content)} bytes; delete it and run again")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    # before memory is asked for: sizes in headers are not trusted
    if len(content) - start != math.prod(shape):
        raise DamagedResultError(
            f"{name}: expected {math.prod(shape):,} bytes for the shape {shape} of its header, got "
            f"{len(content) - start:,}; delete it and run again"
        )
    # bytearray: a tensor on read-only memory would warn
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(shape)
