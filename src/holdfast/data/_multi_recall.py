"""Associative recall with many queries in a sequence."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.data._draws import below, bits, generated_sizes, uniform
from holdfast.errors import ArgumentError


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
        train: number of training samples; None: without end.
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
                f"{pairs} pairs need a length of at least {4 * pairs} and a vocabulary of {2 * pairs + 2} to {(1 << 20) - 1:,}"
                f", got length {length} and vocabulary {vocabulary}"
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
            taken = (chosen[:, :place] == drawn[:, None]).any(1)
            chosen[:, place] = drawn.masked_fill(taken, last)
        order = bits(self.seed, f"{name} order", indices, self.pairs).argsort(1)
        return chosen.gather(1, torch.from_numpy(order))

    def _slots(self, split: Split, indices: Tensor) -> Int64[Tensor, "batch pairs"]:
        """Draws without putting back are the highest of log p + Gumbel noise (Vieira, 2014)."""
        count = (self.length - 2 * self.pairs) // 2
        logs = (self.power - 1) * torch.arange(1, count + 1, dtype=torch.float64).log()
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
