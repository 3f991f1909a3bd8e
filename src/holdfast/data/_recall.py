"""Associative recall: which value followed this key? Asked once at the end, or many times along a sequence."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.data._draws import below, bits, generated_sizes, uniform
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
        train: number of training samples; None: generated endlessly.
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
        # in training all steps count, as in the line of work that the task is from
        mask = None
        if split != "train":
            mask = torch.zeros(len(indices), self.length, dtype=torch.bool)
            mask[:, -1] = True
        return Batch(tokens[:, :-1], tokens[:, 1:], mask=mask)

    def _asked(self, split: Split, indices: Tensor, drawn: Tensor, keys: int) -> Int64[Tensor, "batch 1"]:
        """One key for each row, uniform among those that occurred: the one with the highest random number."""
        # one random number a key, 63 bits: a draw among those that occurred without a loop over rows
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


class MultiRecallTask(AbstractTask):
    """Multi-query associative recall (Arora et al., "Zoology", 2023): each key is asked for once, later on.

    Of a vocabulary of V tokens, 1 to V // 2 - 1 are keys and V // 2 to V - 1 are values. A sequence begins with `pairs`
    different keys, each followed by a value, all values different. Of the (length - 2 pairs) // 2 slots of two steps that
    follow, each key takes one, drawn without putting back with chances proportional to g^(power - 1) for slot g = 1, 2, ...;
    it stands on the slot's first step, where the target is its value. Every other step has a random token, or 0 if not
    `random_tokens`, and does not count.

    Args:
        length: steps of a sequence.
        vocabulary: number of tokens.
        pairs: keys in a sequence.
        power: 1 spreads the queries evenly; near 0 they come soon after the pairs.
        random_tokens: whether steps between the queries have random tokens.
        train: number of training samples; None: generated endlessly.
        valid: number of validation samples; 0: no such split.
        test: number of test samples; 0: no such split.
        seed: of the sequences.
    """

    @checked
    def __init__(
        self,
        length: int = 64,
        vocabulary: int = 256,
        pairs: int = 4,
        *,
        power: float = 0.01,
        random_tokens: bool = True,
        train: int | None = None,
        valid: int = 512,
        test: int = 512,
        seed: int = 0,
    ) -> None:
        positive(length=length, pairs=pairs, train=train)
        if 4 * pairs > length or pairs > vocabulary // 2 - 1 or vocabulary >= 1 << 20:
            raise ArgumentError(
                f"{pairs} pairs need length >= {4 * pairs} and a vocabulary of {2 * pairs + 2} to {(1 << 20) - 1:,}, got "
                f"length {length} and vocabulary {vocabulary}"
            )
        if not 0 < power < float("inf"):
            raise ArgumentError(f"power must be a finite number above 0, got {power!r}")
        self.seed, self.pairs, self.power, self.random_tokens = seed, pairs, power, random_tokens
        tokens = Space("tokens", vocabulary)
        super().__init__("multi-recall", "predict", tokens, tokens, length, generated_sizes(train, valid, test))

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        half = self.inputs.size // 2
        keys = 1 + self._different(f"{split} keys", indices, half - 1)
        values = half + self._different(f"{split} values", indices, self.inputs.size - half)
        at = 2 * self.pairs + 2 * self._slots(split, indices)
        if self.random_tokens:
            tokens = below(self.inputs.size, self.seed, f"{split} others", indices, self.length)
        else:
            tokens = torch.zeros(len(indices), self.length, dtype=torch.int64)
        tokens[:, : 2 * self.pairs] = torch.stack((keys, values), 2).flatten(1)
        tokens.scatter_(1, at, keys)
        targets = torch.zeros_like(tokens).scatter_(1, at, values)
        return Batch(tokens, targets, mask=torch.zeros_like(tokens, dtype=torch.bool).scatter_(1, at, True))

    def _different(self, name: str, indices: Tensor, among: int) -> Int64[Tensor, "batch pairs"]:
        """`pairs` different numbers below `among` for each row, in any order with the same chance (Floyd's method)."""
        draws = uniform(self.seed, name, indices, self.pairs)
        chosen = torch.empty(len(indices), self.pairs, dtype=torch.int64)
        for place in range(self.pairs):
            last = among - self.pairs + place
            drawn = (draws[:, place] * (last + 1)).long()
            # what is taken already is exchanged for `last`, which no earlier place could draw
            taken = (chosen[:, :place] == drawn[:, None]).any(1)
            chosen[:, place] = drawn.masked_fill(taken, last)
        # Floyd's sets are uniform, their order is not
        order = bits(self.seed, f"{name} order", indices, self.pairs).argsort(1)
        return chosen.gather(1, torch.from_numpy(order))

    def _slots(self, split: Split, indices: Tensor) -> Int64[Tensor, "batch pairs"]:
        """Draws without putting back are the highest of log p + Gumbel noise (Vieira, 2014)."""
        count = (self.length - 2 * self.pairs) // 2
        logs = (self.power - 1) * torch.arange(1, count + 1, dtype=torch.float64).log()
        # in float64: float32 draws collide among the tails that decide here
        gumbel = -(-uniform(self.seed, f"{split} slots", indices, count).log()).log()
        return (logs + gumbel).topk(self.pairs, 1).indices

    def describe(self) -> str:
        return (
            f"multi-query associative recall: {self.pairs} pairs, vocabulary {self.inputs.size}, {self.length:,} steps"
        )

    def identity(self) -> dict[str, Any]:
        return {
            "task": self.name, "length": self.length, "vocabulary": self.inputs.size, "pairs": self.pairs,
            "power": self.power, "random_tokens": self.random_tokens, "seed": self.seed, "sizes": dict(self._sizes),
        }  # fmt: skip
