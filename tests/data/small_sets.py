"""Small sets in their own file formats."""

import gzip
import hashlib
import struct

import numpy as np

from holdfast.data._download import DataFile
from holdfast.data._mnist import FILES

SENTENCES = ["a fine film .", "dull , and too long", "it's good", "bad bad bad"]


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def images(count, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(count, 28, 28)), rng.integers(10, size=count)


def cifar_records(count, seed):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.integers(10, size=(count, 1)), rng.integers(256, size=(count, 3072))], 1).astype(
        np.uint8
    )


def write_mnist(folder, monkeypatch):
    for split, prefix, count in (("train", "train", 12), ("test", "t10k", 5)):
        files = []
        for array, name in zip(images(count, count), ("images-idx3", "labels-idx1"), strict=True):
            content = idx(array)
            files.append(
                DataFile(f"{prefix}-{name}-ubyte.gz", hashlib.sha256(content).hexdigest(), len(content), ("",))
            )
            (folder / files[-1].name).write_bytes(gzip.compress(content))
        monkeypatch.setitem(FILES, split, tuple(files))


def write_imdb(folder):
    for split in ("train", "test"):
        for name, texts in (("neg", SENTENCES[1::2]), ("pos", SENTENCES[::2])):
            (folder / split / name).mkdir(parents=True)
            for number, found in enumerate(texts):
                (folder / split / name / f"{number}_7.txt").write_text(f"{found}<br />{split}")
