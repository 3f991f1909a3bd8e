"""CIFAR-10 from its binary version: 1 label byte and 3,072 pixel bytes (red, green, blue plane) a record."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from holdfast._arguments import checked
from holdfast.data._download import missing, set_folder
from holdfast.data._files import Archive, checksum, find_files
from holdfast.data._images import ImageSet, ImageTask, Order, Scale, check_labels
from holdfast.errors import DamagedResultError

RECORD_BYTES = 1 + 3 * 32 * 32
RECORDS_PER_FILE = 10_000  # records of a whole file
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
ARCHIVE = Archive(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170_052_171,
    6 * RECORDS_PER_FILE * RECORD_BYTES,
    ("https://www.cs.toronto.edu/~kriz/",),
    "cifar-10-batches-bin",
    r"(?:data_batch_[1-5]|test_batch)\.bin",
)


@checked
def cifar10_task(
    *,
    order: Order = "pixel",
    scale: Scale = "unit",
    grey: bool = False,
    valid: int = 5000,
    permutation_seed: int | None = None,
    part: bool = True,
    download: bool = True,
) -> ImageTask:
    """CIFAR-10 as sequences of 1,024 pixels with 3 colours, or of 32 rows; the official split, some images held out.

    Read from `cifar10/` in the data root. Where only some of the six files lie there they are used, and `describe()` says so.

    Args:
        order: "pixel", "permuted" (one random order of the pixels for all images) or "row".
        scale: "unit" gives pixels in [0, 1], "standard" with mean 0 and deviation 1 for each colour.
        grey: one brightness (ITU-R 601) instead of three colours.
        valid: number of training images held out for validation, always the same ones; 0: none.
        permutation_seed: of the order of pixels, for "permuted" only; None is 0.
        part: whether some of the files will do; otherwise all are downloaded.
        download: whether missing files may be downloaded.
    """
    folder = find_files(set_folder("cifar10"), (*TRAIN, TEST), ARCHIVE, download=download, part=part)
    names = [name for name in TRAIN if os.path.isfile(folder / name)]
    if not names or not os.path.isfile(folder / TEST):
        raise missing(folder, (*TRAIN, TEST), ARCHIVE.mirrors[0] + ARCHIVE.name, "and both train and test are needed")
    batches = [read_batch(folder / name) for name in (*names, TEST)]
    pixels = [_brightness(found) if grey else found for found, _ in batches]
    images = ImageSet(
        torch.cat(pixels[:-1]), torch.cat([labels for _, labels in batches[:-1]]), pixels[-1], batches[-1][1],
        name="cifar10", title="CIFAR-10, grey," if grey else "CIFAR-10",
        mean=(0.4809,) if grey else (0.4914, 0.4822, 0.4465), deviation=(0.2392,) if grey else (0.2470, 0.2435, 0.2616),
        sha256={name: checksum(folder / name) for name in (*names, TEST)},
        part=_part(sum(len(p) for p in pixels[:-1]), len(pixels[-1])),
    )  # fmt: skip
    return ImageTask(images, order, scale, valid, permutation_seed)


def read_batch(path: Path) -> tuple[UInt8[Tensor, "count 32 32 3"], Int64[Tensor, " count"]]:
    """Images and labels of one file; refuses a size that is not a whole number of records."""
    size = path.stat().st_size
    if size == 0 or size % RECORD_BYTES or size > RECORDS_PER_FILE * RECORD_BYTES:
        raise DamagedResultError(
            f"{path}: expected {RECORD_BYTES:,} bytes for each of 1 to {RECORDS_PER_FILE:,} images, got {size:,} bytes, so "
            "it is truncated or another file; delete it and run again"
        )
    records = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).view(-1, RECORD_BYTES)
    labels = check_labels(records[:, 0], str(path))
    return records[:, 1:].reshape(-1, 3, 32, 32).permute(0, 2, 3, 1).contiguous(), labels


def _brightness(images: UInt8[Tensor, "count 32 32 3"]) -> UInt8[Tensor, "count 32 32 1"]:
    red, green, blue = images.to(torch.int32).unbind(3)
    return ((red * 19595 + green * 38470 + blue * 7471 + (1 << 15)) >> 16).to(torch.uint8)[..., None]


def _part(train: int, test: int) -> str:
    parts = []
    if train < 5 * RECORDS_PER_FILE:
        parts.append(f"{train:,} of {5 * RECORDS_PER_FILE:,} training images")
    if test < RECORDS_PER_FILE:
        parts.append(f"{test:,} of {RECORDS_PER_FILE:,} test images")
    return " and ".join(parts)
