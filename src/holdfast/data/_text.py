"""Text: any file as windows of tokens, words or bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.data._download import DataFile, read_file, set_folder
from holdfast.data._files import cut, read_text
from holdfast.errors import ArgumentError, DamagedResultError

SHAKESPEARE = DataFile(
    "input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    1_115_394,
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",),
)


class TokenTask(AbstractTask):
    """The next token at each step of a text, which is cut into windows that do not overlap.

    Sample i of a split has the tokens i length to (i + 1) length, the last one only as a target. What is left at the end of a
    split is dropped.

    Args:
        name: as in `load_task`.
        tokens: token ids of each split, in any whole-number dtype.
        vocabulary: number of different tokens.
        length: steps of a window.
        title: what the text is, in words.
        facts: what else makes the batches what they are, as JSON values.
    """

    def __init__(
        self,
        name: str,
        tokens: Mapping[Split, Shaped[Tensor, " tokens"]],
        vocabulary: int,
        length: int,
        title: str,
        facts: Mapping[str, Any],
    ) -> None:
        short = [split for split, ids in tokens.items() if len(ids) <= length]
        if short:
            raise ArgumentError(
                f"{name}: expected at least {length + 1:,} tokens in the split {short[0]!r} (a window of length {length:,} and "
                f"its next token), got {len(tokens[short[0]]):,}; choose a smaller length or a longer text"
            )
        # views of the text: windows share its memory, and each holds the first token of the next as its last target
        self._windows = {split: ids.unfold(0, length + 1, length) for split, ids in tokens.items()}
        self._counts = {split: len(ids) for split, ids in tokens.items()}
        self.title, self._facts = title, dict(facts)
        space = Space("tokens", vocabulary)
        super().__init__(name, "predict", space, space, length, {split: len(w) for split, w in self._windows.items()})

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        tokens = self._windows[split][indices].long()
        return Batch(tokens[:, :-1], tokens[:, 1:])

    def describe(self) -> str:
        counts = ", ".join(f"{count:,} {split}" for split, count in self._counts.items())
        return f"{self.title}, vocabulary {self.inputs.size:,}, tokens: {counts}, windows of {self.length:,}"

    def identity(self) -> dict[str, Any]:
        return {
            "task": self.name, "length": self.length, "vocabulary": self.inputs.size, "tokens": dict(self._counts),
            **self._facts,
        }  # fmt: skip


@checked
def text_task(
    file: str | None = None,
    *,
    unit: Literal["character", "byte"] = "character",
    length: int = 256,
    valid: float = 0.05,
    test: float = 0.05,
    download: bool = True,
) -> TokenTask:
    """The next character or byte of a plain text: the start is for training, what follows for validation and test.

    Characters are those of the whole text, in the order of their code points; bytes are always 256.

    Args:
        file: a text file in UTF-8, of any kind for bytes; None: the 1.1 MB of Shakespeare used for character models.
        unit: "character" or "byte".
        length: steps of a window.
        valid: share of the text for validation; 0: none.
        test: share of the text for the test, at its end; 0: none.
        download: whether Shakespeare's text may be downloaded where it is missing.
    """
    positive(length=length)
    if file is None:
        content = read_file(set_folder("shakespeare"), SHAKESPEARE, download=download, needed=(SHAKESPEARE,))
        title, checksum = "Shakespeare", SHAKESPEARE.sha256
    else:
        content, checksum = read_text(Path(file))
        title = Path(file).name
    ids, vocabulary = _bytes(content) if unit == "byte" else _characters(content, title)
    facts = {"sha256": checksum, "unit": unit}
    return TokenTask("text", cut(torch.from_numpy(ids), valid, test), vocabulary, length, f"{title} by {unit}", facts)


def _bytes(content: bytes) -> tuple[np.ndarray, int]:
    # a copy: a tensor on read-only memory would warn
    return np.frombuffer(bytearray(content), dtype=np.uint8), 256


def _characters(content: bytes, title: str) -> tuple[np.ndarray, int]:
    try:
        points = np.frombuffer(content.decode("utf-8").encode("utf-32-le"), dtype=np.uint32)
    except UnicodeDecodeError as error:
        raise DamagedResultError(
            f"{title} is not UTF-8 at byte {error.start:,}; save it as UTF-8, or read it with unit='byte'"
        ) from None
    # a table over code points: np.unique with its inverse would sort the whole text
    used = np.zeros(int(points.max()) + 1, dtype=bool)
    used[points] = True
    number = np.cumsum(used) - 1
    if not used.any():
        raise ArgumentError(f"{title} must hold text, got an empty file")
    return number[points].astype(np.int32), int(used.sum())
