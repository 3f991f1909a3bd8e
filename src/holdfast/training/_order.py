"""Which examples make up a batch: a function of seed and step alone, so that a position is a number."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from holdfast.errors import ArgumentError


def mixed(*numbers: int) -> int:
    """A seed made of several numbers, such that neighbours have nothing in common."""
    text = ":".join(str(number) for number in numbers)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Order:
    """Batches of one split for training: a new permutation in every epoch, or ever new numbers where it is endless.

    Args:
        size: number of examples; None where they are generated without end.
        batch: examples a step; what is left over at the end of an epoch is dropped.
        seed: of the permutations.
    """

    def __init__(self, size: int | None, batch: int, seed: int) -> None:
        if size is not None and size < batch:
            raise ArgumentError(
                f"the split 'train' holds {size} examples, fewer than one batch of {batch}; "
                f"{'make run.batch smaller' if size else 'it is empty: check the data'}"
            )
        self.size, self.batch, self.seed = size, batch, seed
        self._epoch, self._permutation = -1, torch.empty(0, dtype=torch.int64)

    @property
    def steps_per_epoch(self) -> int | None:
        """Whole batches in the split; None where it is endless."""
        return None if self.size is None else self.size // self.batch

    def indices(self, step: int) -> Tensor:
        """The examples of a step."""
        if self.steps_per_epoch is None:
            return torch.arange(step * self.batch, (step + 1) * self.batch)
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mixed(self.seed, epoch))
            assert self.size is not None
            self._epoch, self._permutation = epoch, torch.randperm(self.size, generator=generator)
        return self._permutation[place * self.batch : (place + 1) * self.batch]
