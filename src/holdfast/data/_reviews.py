"""Texts that are positive or negative, as padded sequences of words or bytes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from holdfast._arguments import positive
from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.errors import ArgumentError

Unit = Literal["word", "byte"]
UNKNOWN = 1  # 0 is padding
SPLIT_SEED = 0  # which reviews are held out never changes, so that results can be compared
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[^\w\s]")


class ReviewTask(AbstractTask):
    """Negative (0) or positive (1), for a text as a sequence of words or bytes; shorter ones are padded with 0.

    Words are lower-case words and single punctuation marks, numbered from 2 by how frequent they are in training; 1 is any
    other word. Bytes b are b + 1. The tokens of all texts lie in RAM one after another.

    Args:
        name: as in `load_task`.
        texts: texts and their labels for each split.
        unit: "word" or "byte".
        length: longest text in steps; the rest of longer ones is dropped.
        vocabulary: number of tokens for words, with padding and unknown ones.
        title: what the texts are, in words.
        facts: what else makes the batches what they are, as JSON values.
    """

    def __init__(
        self,
        name: str,
        texts: Mapping[Split, tuple[Sequence[str], Int64[Tensor, " texts"]]],
        unit: Unit,
        length: int,
        vocabulary: int,
        title: str,
        facts: Mapping[str, Any],
    ) -> None:
        positive(length=length)
        if vocabulary < 3:
            raise ArgumentError(f"{name}: vocabulary must be at least 3 (padding, unknown, one word), got {vocabulary}")
        self.unit, self.title, self._facts = unit, title, dict(facts)
        self._words = _vocabulary(texts["train"][0], vocabulary) if unit == "word" else {}
        self._parts = {
            split: (*_flat(found, unit, self._words, length), labels) for split, (found, labels) in texts.items()
        }
        size = len(self._words) + 2 if unit == "word" else 257
        longest = max(int(counts.max()) for _, _, counts, _ in self._parts.values())
        sizes: dict[Split, int | None] = {split: len(labels) for split, (_, labels) in texts.items()}
        super().__init__(name, "classify", Space("tokens", size), Space("classes", 2), longest, sizes)

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        tokens, starts, counts, labels = self._parts[split]
        lengths = counts[indices]
        steps = torch.arange(int(lengths.max()))
        inside = steps < lengths[:, None]
        # past a text's end lies the next one, or nothing: clamped here, set to 0 by `inside`
        places = (starts[indices, None] + steps).clamp_(max=len(tokens) - 1)
        return Batch(tokens[places].long() * inside, labels[indices], lengths)

    def ids(self, text: str) -> list[int]:
        """The tokens of any `text`, whole, as a model of this task reads it."""
        return _flat([text], self.unit, self._words, len(text.encode()) + 1)[0].tolist()

    def describe(self) -> str:
        sizes = ", ".join(f"{size:,} {split}" for split, size in self._sizes.items())
        return f"{self.title} by {self.unit}s, {sizes}, vocabulary {self.inputs.size:,}, at most {self.length:,} steps"

    def identity(self) -> dict[str, Any]:
        return {
            "task": self.name, "unit": self.unit, "length": self.length, "vocabulary": self.inputs.size,
            "sizes": dict(self._sizes), **self._facts,
        }  # fmt: skip


def decoded(content: bytes) -> str:
    """UTF-8, or else Windows' latin letters, in which the original polarity files are."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _vocabulary(texts: Sequence[str], most: int) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text.lower()))
    return {word: place + 2 for place, (word, _) in enumerate(counts.most_common(most - 2))}


def _flat(texts: Sequence[str], unit: Unit, words: Mapping[str, int], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of all texts one after another, where each begins, and how many it has."""
    if unit == "byte":
        pieces = [np.frombuffer(text.encode()[:most], np.uint8).astype(np.int32) + 1 for text in texts]
    else:
        pieces = [
            np.array([words.get(word, UNKNOWN) for word in _WORD.findall(text.lower())[:most]] or [UNKNOWN], np.int32)
            for text in texts
        ]
    counts = torch.tensor([len(piece) for piece in pieces])
    return torch.from_numpy(np.concatenate(pieces)), counts.cumsum(0) - counts, counts
