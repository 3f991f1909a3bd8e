"""Associative recall: which value got after this key?"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.data._draws import below, bits, generated_sizes
from holdfast.errors import ArgumentError


class RecallTask(AbstractTask):
    """Associative recall as in H3, Hyena and S5 (stable, Table 4): pairs of key and value, then a key, asked for its value.

    Of a vocabulary of V tokens the last two are special: V - 2 is "." (never drawn, kept so that V counts as in that line)
    and V - 1 is "=>". Of the V - 2 others the first half, rounded down, are keys, the rest are values. For each sequence
    every key is given a value, independently and uniformly. Then length // 2 times a key is drawn uniformly and written with
    its value; "=>" follows, and a key drawn uniformly among those that occurred; the answer is its value. With n = length // 2
    the tokens are k1 v1 ... kn vn => k, the 2 n + 2 inputs, and at each step the target is the token that follows.

    In training every step counts, the unpredictable keys too, as in that line: its best accuracy is then about one half. In
    valid and test only the last step counts, the answer.

    Args:
        length: tokens of the pairs; a sequence has 2 more.
        vocabulary: number of tokens with the two special ones.
        train: number of training samples; None: without end.
        valid: number of validation samples; 0: no such split.
        test: number of test samples; 0: no such split.
        seed: of the sequences.
    """

    @checked
    def __init__(
        self,
        length: int = 20,
        vocabulary: int = 10,
        *,
        train: int | None = None,
        valid: int = 512,
        test: int = 512,
        seed: int = 0,
    ) -> None:
        positive(train=train)
        if length < 2 or not 4 <= vocabulary < 1 << 20:
            raise ArgumentError(
                f"recall needs length >= 2 and a vocabulary of 4 to {(1 << 20) - 1:,}, got length {length} and "
                f"vocabulary {vocabulary}"
            )
        self.seed, self._pairs = seed, length // 2
        tokens = Space("tokens", vocabulary)
        sizes = generated_sizes(train, valid, test)
        super().__init__("recall", "predict", tokens, tokens, 2 * self._pairs + 2, sizes)

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        plain = self.inputs.size - 2
        keys = plain // 2
        value_of = keys + below(plain - keys, self.seed, f"{split} values", indices, keys)
        drawn = below(keys, self.seed, f"{split} keys", indices, self._pairs)
        asked = self._asked(split, indices, drawn, keys)
        pairs = torch.stack((drawn, value_of.gather(1, drawn)), 2).flatten(1)
        end = torch.cat((torch.full_like(asked, plain + 1), asked, value_of.gather(1, asked)), 1)
        tokens = torch.cat((pairs, end), 1)
        mask = None
        if split != "train":
            mask = torch.zeros(len(indices), self.length, dtype=torch.bool)
            mask[:, -1] = True
        return Batch(tokens[:, :-1], tokens[:, 1:], mask=mask)

    def _asked(self, split: Split, indices: Tensor, drawn: Tensor, keys: int) -> Int64[Tensor, "batch 1"]:
        """One key for each row, uniform among those that occurred: the one with the highest random number."""
        chance = torch.from_numpy(bits(self.seed, f"{split} asked", indices, keys).astype("int64") >> 1)
        occurred = torch.zeros(len(indices), keys, dtype=torch.bool).scatter_(1, drawn, True)
        return chance.masked_fill(~occurred, torch.iinfo(torch.int64).min).argmax(1, keepdim=True)

    def describe(self) -> str:
        return f"associative recall: {self._pairs:,} pairs, vocabulary {self.inputs.size}, {self.length:,} steps"

    def identity(self) -> dict[str, Any]:
        return {
            "task": self.name, "pairs": self._pairs, "vocabulary": self.inputs.size, "seed": self.seed,
            "sizes": dict(self._sizes),
        }  # fmt: skip
