"""What a data set is to a training loop: splits, shapes, and batches that can be made again from their indices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from holdfast.errors import ArgumentError, DtypeError, unknown_name

Split = Literal["train", "valid", "test"]
Kind = Literal["classify", "regress", "predict"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


@dataclass(frozen=True)
class Space:
    """What a model is given at each step, or what it is asked for.

    Args:
        kind: "features" are `size` real numbers, "tokens" and "classes" whole numbers from 0 to `size` - 1.
        size: number of features, tokens or classes.
    """

    kind: Literal["features", "tokens", "classes"]
    size: int


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples of a task.

    Args:
        inputs: real (batch, time, features), or token ids (batch, time) in int64.
        targets: classify: the class of each sequence (batch,); predict: the token asked for at each step (batch, time);
            regress: real values at each step (batch, time, features).
        lengths: true number of steps of each sequence (batch,) where they differ; what follows in a row is padding.
        mask: the steps (batch, time) whose targets count; None: all of them, up to `lengths`.
    """

    inputs: Tensor
    targets: Tensor
    lengths: Int64[Tensor, " batch"] | None = None
    mask: Bool[Tensor, "batch time"] | None = None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same batch on `device`; `non_blocking` as in `Tensor.to`."""

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=non_blocking)

        return Batch(
            self.inputs.to(device, non_blocking=non_blocking),
            self.targets.to(device, non_blocking=non_blocking),
            move(self.lengths),
            move(self.mask),
        )

    @property
    def tokens(self) -> int:
        """Number of steps in the batch without padding."""
        if self.lengths is None:
            return self.inputs.shape[0] * self.inputs.shape[1]
        return int(self.lengths.sum())

    def __len__(self) -> int:
        return self.inputs.shape[0]


class AbstractTask(ABC):
    """A data set with what is asked of it.

    A batch is a function of (split, indices) alone: the same indices give the same numbers in any process, at any time
    and in any order. A loop that keeps its position among the indices can therefore continue exactly where it stopped.

    Args:
        name: short name, as in `load_task`.
        kind: "classify" (one class per sequence), "regress" (real values at each step), "predict" (a token at each step).
        inputs: what the model is given at each step.
        outputs: what it is asked for: classes, tokens, or real features.
        length: steps of a sequence, of the longest one where they differ.
        sizes: number of samples of each split, in the order train, valid, test; None is endless, made from the index.
    """

    def __init__(
        self, name: str, kind: Kind, inputs: Space, outputs: Space, length: int, sizes: dict[Split, int | None]
    ) -> None:
        # an empty split would end a run at its first evaluation, after hours of training
        empty = [split for split, size in sizes.items() if size is not None and size < 1]
        if empty:
            raise ArgumentError(
                f"{name}: the split {empty[0]!r} has no samples; give it more data, shorten the sequences, or leave it out"
            )
        self.name = name
        self.kind = kind
        self.inputs = inputs
        self.outputs = outputs
        self.length = length
        self._sizes = {split: sizes[split] for split in SPLITS if split in sizes}

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that there are, in the order train, valid, test."""
        return tuple(self._sizes)

    def size(self, split: Split) -> int | None:
        """Number of samples of `split`; None if samples are generated endlessly."""
        if split not in self._sizes:
            raise unknown_name(f"split of {self.name}", split, self._sizes)
        return self._sizes[split]

    def batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        """The samples of `split` with these `indices`, from 0 to size - 1, in their order."""
        size = self.size(split)
        if indices.dtype != torch.int64 or indices.ndim != 1 or len(indices) == 0:
            raise DtypeError(
                f"{self.name}: indices must be int64 of shape (samples,), at least one, got {indices.dtype} of shape "
                f"{tuple(indices.shape)}"
            )
        # a negative index would silently count from the end
        low, high = (int(bound) for bound in indices.aminmax())
        if low < 0 or (size is not None and high >= size):
            most = "" if size is None else f" and < {size}"
            raise ArgumentError(f"{self.name}: indices of {split} must be >= 0{most}, got {low} to {high}")
        return self._batch(split, indices)

    @abstractmethod
    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch: ...

    @abstractmethod
    def describe(self) -> str:
        """One or two lines: what the data are, and which part of the set where files are missing."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Name, options and checksums as JSON values: equal where, and only where, batches are equal."""
