"""WikiText-2 and WikiText-103 by words."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.data._base import Split
from holdfast.data._download import missing, set_folder
from holdfast.data._files import Archive, checksum, cut, find_files
from holdfast.data._text import TokenTask
from holdfast.errors import DamagedResultError

MIRRORS = ("https://wikitext.smerity.com/", "https://s3.amazonaws.com/research.metamind.io/wikitext/")
FILES: dict[Split, str] = {"train": "wiki.train.tokens", "valid": "wiki.valid.tokens", "test": "wiki.test.tokens"}
_WANTED = r"wiki\.(?:train|valid|test)\.tokens"
ARCHIVES = {
    "wikitext-2": Archive(
        "wikitext-2-v1.zip",
        "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        1 << 23,
        1 << 24,
        MIRRORS,
        "wikitext-2",
        _WANTED,
    ),
    "wikitext-103": Archive(
        "wikitext-103-v1.zip",
        "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
        1 << 28,
        1 << 30,
        MIRRORS,
        "wikitext-103",
        _WANTED,
    ),
}
UNKNOWN, END = b"<unk>", b"<eos>"
_CHUNK_BYTES = 1 << 24


@checked
def wikitext_task(
    name: Literal["wikitext-2", "wikitext-103"] = "wikitext-2",
    *,
    length: int = 256,
    vocabulary: int | None = None,
    part: bool = True,
    download: bool = True,
) -> TokenTask:
    """The next word of WikiText; a line's end is the word <eos>, and words that training does not have are <unk>.

    Read from a folder of that name in the data root. Where the training file is missing, the validation file takes its
    place: its first nine tenths train, the last tenth validates, and `describe()` says so.

    Args:
        name: "wikitext-2" or "wikitext-103".
        length: steps of a window.
        vocabulary: only that many words, the most frequent in training, the others are <unk>; None: all.
        part: whether some of the files will do; otherwise all are downloaded.
        download: whether missing files may be downloaded.
    """
    positive(length=length, vocabulary=vocabulary)
    archive = ARCHIVES[name]
    folder = find_files(set_folder(name), tuple(FILES.values()), archive, download=download, part=part)
    there = {split: folder / file for split, file in FILES.items() if os.path.isfile(folder / file)}
    if "train" not in there and "valid" not in there:
        why = "and neither of the files to train on exists"
        raise missing(folder, tuple(FILES.values()), archive.mirrors[0] + archive.name, why)
    # the vocabulary is that of training: words that only the test has stay unknown
    first: Split = "train" if "train" in there else "valid"
    ids, words = _number(there[first], vocabulary)
    tokens: dict[Split, Tensor] = {first: ids} | {
        split: _numbers(path, words) for split, path in there.items() if split != first
    }
    parts = ""
    if first == "valid":
        parts = f"no {FILES['train']}: nine tenths of {FILES['valid']} train, the last tenth validates"
        tokens = cut(tokens.pop("valid"), 0.1, 0.0) | tokens
    elif len(there) < len(FILES):
        parts = f"only {', '.join(there)}"
    facts = {"sha256": {path.name: checksum(path) for path in there.values()}, "part": parts}
    title = f"{name} by words, part: {parts}" if parts else f"{name} by words"
    return TokenTask(name, tokens, len(words), length, title, facts)


wikitext_2_task = partial(wikitext_task, "wikitext-2")
wikitext_103_task = partial(wikitext_task, "wikitext-103")


def _number(path: Path, most: int | None) -> tuple[Tensor, dict[bytes, int]]:
    """Ids of the words of a training text, numbered by first occurrence after <unk>, and the ids by word."""
    ids: defaultdict[bytes, int] = defaultdict()
    ids.default_factory = ids.__len__
    ids[UNKNOWN]
    # a defaultdict numbers new words in C: 3 million words per second, half a minute for WikiText-103
    tokens = np.concatenate([np.fromiter(map(ids.__getitem__, words), np.int32, len(words)) for words in _words(path)])
    if most is None or most >= len(ids):
        return torch.from_numpy(tokens), dict(ids)
    counts = np.bincount(tokens, minlength=len(ids))
    counts[0] = counts.max() + 1  # <unk> stays 0
    kept = np.argsort(-counts, kind="stable")[:most]
    number = np.zeros(len(ids), dtype=np.int32)
    number[kept] = np.arange(most)
    names = np.array(list(ids), dtype=object)[kept]
    return torch.from_numpy(number[tokens]), {word: place for place, word in enumerate(names)}


def _numbers(path: Path, ids: dict[bytes, int]) -> Tensor:
    """Ids of the words of a text that is not trained on."""
    return torch.from_numpy(
        np.concatenate([np.fromiter(map(ids.get, words, repeat(0)), np.int32, len(words)) for words in _words(path)])
    )


def _words(path: Path) -> Iterator[list[bytes]]:
    """The words of a file, some megabytes of whole lines at a time."""
    with open(path, "rb") as file:
        empty = True
        while lines := file.readlines(_CHUNK_BYTES):
            words = b"".join(lines).replace(b"\n", b" " + END + b" ").split()
            empty = False
            yield words
    if empty:
        raise DamagedResultError(f"{path} is empty; delete it and run again")
