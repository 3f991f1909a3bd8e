"""Text as windows of tokens: at each step the next token is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Int64, Shaped
from torch import Tensor

from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.errors import ArgumentError


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
                f"{name}: the split {short[0]!r} has {len(tokens[short[0]]):,} tokens, too few for one window of length "
                f"{length:,} and its next token; choose a smaller length or a longer text"
            )
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
