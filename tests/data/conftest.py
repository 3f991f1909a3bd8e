"""A data root with a small set of each kind."""

import hashlib

import numpy as np
import pytest
from small_sets import SENTENCES, cifar_records, write_imdb, write_mnist

from holdfast.data import _text as text
from holdfast.data._download import DataFile


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The folder that HOLDFAST_DATA names; nothing in it can be downloaded."""
    root = tmp_path / "root"
    for name in ("mnist", "cifar10", "wikitext-2", "wikitext-103", "shakespeare", "movie-reviews", "imdb"):
        (root / name).mkdir(parents=True)
    monkeypatch.setenv("HOLDFAST_DATA", str(root))
    write_mnist(root / "mnist", monkeypatch)
    (root / "cifar10" / "data_batch_1.bin").write_bytes(cifar_records(8, 1).tobytes())
    (root / "cifar10" / "test_batch.bin").write_bytes(cifar_records(3, 2).tobytes())
    for name in ("wikitext-2", "wikitext-103"):
        for split, words in (("train", "a b a <unk> c\n"), ("valid", "a c b\n"), ("test", "b z\n")):
            (root / name / f"wiki.{split}.tokens").write_text(words * 9)
    content = ("To be, or not to be: that is the question.\n" * 20).encode()
    (root / "shakespeare" / "input.txt").write_bytes(content)
    shakespeare = DataFile("input.txt", hashlib.sha256(content).hexdigest(), len(content), ("",))
    monkeypatch.setattr(text, "SHAKESPEARE", shakespeare)
    for kind, first in (("pos", 0), ("neg", 1)):
        lines = [f"{SENTENCES[first + 2 * (k % 2)]} {k}" for k in range(10)]
        (root / "movie-reviews" / f"rt-polarity.{kind}").write_text("\n".join(lines) + "\n")
    write_imdb(root / "imdb")
    (root / "series.csv").write_text(
        "time,load,heat\n" + "".join(f"{t},{np.sin(t):.6f},{np.cos(t):.6f}\n" for t in range(60))
    )
    return root
