"""The user's own tensors as a task."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from holdfast._arguments import checked
from holdfast.data._base import AbstractTask, Batch, Kind, Space, Split
from holdfast.errors import ArgumentError, DtypeError, ShapeError


class ArrayTask(AbstractTask):
    """Tensors, numpy arrays or lists as a task, in RAM: `ArrayTask((x, y), test=(x_test, y_test))`.

    Inputs are real (samples, time, features) or (samples, time), or token ids (samples, time). Whole-number targets
    (samples,) are classes, (samples, time) tokens. Real targets are values at each step (samples, time, features), or one
    for each sequence, asked for at its end: (samples,), (samples, features) or (samples, 1, features).

    Args:
        train: inputs and targets, and lengths (samples,) as a third where sequences are padded.
        valid: the same for the validation split; None: there is none.
        test: the same for the test split; None: there is none.
        kind: "classify", "regress" or "predict"; None: as the targets say.
        classes: number of classes or tokens; None: the largest that occurs, plus 1.
        name: what to call it in results.
    """

    @checked
    def __init__(
        self,
        train: Sequence[Any],
        valid: Sequence[Any] | None = None,
        test: Sequence[Any] | None = None,
        *,
        kind: Kind | None = None,
        classes: int | None = None,
        name: str = "arrays",
    ) -> None:
        given: dict[Split, Sequence[Any] | None] = {"train": train, "valid": valid, "test": test}
        parts = {split: _read_split(split, part) for split, part in given.items() if part is not None}
        self._parts = parts
        kind = kind or _kind_of(parts["train"].targets)
        spaces = [_spaces(split, part, kind, classes) for split, part in parts.items()]
        inputs, outputs = _widest([i for i, _ in spaces]), _widest([o for _, o in spaces])
        if inputs.kind == "tokens" and kind == "predict":
            # a model that predicts tokens has one vocabulary for what it reads and what it gives
            inputs = outputs = _widest([inputs, outputs])
        length = max(part.inputs.shape[1] for part in parts.values())
        super().__init__(name, kind, inputs, outputs, length, {split: len(part) for split, part in parts.items()})

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        part = self._parts[split]
        inputs, targets = part.inputs[indices], part.targets[indices]
        lengths = None if part.lengths is None else part.lengths[indices]
        inputs = inputs.long() if self.inputs.kind == "tokens" else inputs.float()
        if self.kind != "regress":
            return Batch(inputs, targets.long(), lengths)
        if targets.shape[1] == inputs.shape[1]:
            return Batch(inputs, targets.float(), lengths)
        # one value per sequence counts at its last step only; expand, as the other steps' copies are never read
        steps = torch.arange(inputs.shape[1])
        last = torch.full_like(indices, inputs.shape[1]) if lengths is None else lengths
        return Batch(inputs, targets.float().expand(-1, len(steps), -1), lengths, steps == last[:, None] - 1)

    def describe(self) -> str:
        sizes = ", ".join(f"{len(part):,} {split}" for split, part in self._parts.items())
        return f"{self.name}: own arrays, {sizes}, {self.length:,} steps"

    def identity(self) -> dict[str, Any]:
        return {"task": "arrays", "name": self.name, "kind": self.kind, "sha256": self._checksum}

    @cached_property
    def _checksum(self) -> str:
        digest = hashlib.sha256()
        for split, part in self._parts.items():
            for tensor in (part.inputs, part.targets, part.lengths):
                if tensor is not None:
                    digest.update(f"{split} {tensor.dtype} {tuple(tensor.shape)}".encode())
                    digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()


class _Part:
    """The tensors of one split: targets of regression are (samples, time, features) or (samples, 1, features)."""

    def __init__(self, inputs: Tensor, targets: Tensor, lengths: Tensor | None) -> None:
        self.inputs, self.targets, self.lengths = inputs, targets, lengths

    def __len__(self) -> int:
        return len(self.inputs)


def _read_split(split: str, given: Sequence[Any]) -> _Part:
    if len(given) not in (2, 3):
        raise ArgumentError(f"{split} must be (inputs, targets) or (inputs, targets, lengths), got {len(given)} items")
    inputs, targets = (_tensor(split, part, what) for part, what in zip(given, ("inputs", "targets"), strict=False))
    if inputs.ndim not in (2, 3) or 0 in inputs.shape:
        raise ShapeError(
            f"{split}: inputs must be (samples, time, features) or (samples, time), none empty; got {tuple(inputs.shape)}"
        )
    if targets.ndim == 0 or len(targets) != len(inputs):
        raise ShapeError(
            f"{split}: expected one target for each of {len(inputs)} inputs, got targets of shape {tuple(targets.shape)}"
        )
    # whole numbers of two dimensions are tokens, real ones a single feature
    if inputs.ndim == 2 and inputs.is_floating_point():
        inputs = inputs[..., None]
    if targets.is_floating_point():
        targets = _steps(split, targets, inputs.shape[1])
    lengths = None if len(given) == 2 or given[2] is None else _lengths(split, given[2], inputs)
    return _Part(inputs, targets, lengths)


def _tensor(split: str, given: Any, what: str) -> Tensor:
    try:
        tensor = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DtypeError(f"{split}: {what} must be a tensor, an array or nested lists of numbers ({error})") from None
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise DtypeError(f"{split}: {what} must be real or whole numbers, got {tensor.dtype}")
    if tensor.is_floating_point():
        tensor = tensor.float()
        if not bool(tensor.isfinite().all()):
            where = (~tensor.isfinite()).nonzero()[0].tolist()
            raise ArgumentError(
                f"{split}: {what} must be finite in float32, got {float(tensor[tuple(where)])} at {where}; remove or fill "
                "such values"
            )
    return tensor


def _steps(split: str, targets: Tensor, length: int) -> Tensor:
    if targets.ndim == 3 and targets.shape[1] in (1, length) and targets.shape[2] > 0:
        return targets
    if targets.ndim == 1:
        return targets[:, None, None]
    if targets.ndim == 2 and targets.shape[1] not in (0, length):
        return targets[:, None]
    raise ShapeError(
        f"{split}: real targets must be (samples, {length}, features) for values at each step, or (samples, 1, features) for "
        f"values at the end, got {tuple(targets.shape)}"
    )


def _lengths(split: str, given: Any, inputs: Tensor) -> Tensor:
    lengths = torch.as_tensor(given).detach().cpu()
    if lengths.is_floating_point() or lengths.shape != inputs.shape[:1]:
        raise ShapeError(f"{split}: lengths must be {len(inputs)} whole numbers, got {tuple(lengths.shape)}")
    if int(lengths.min()) < 1 or int(lengths.max()) > inputs.shape[1]:
        raise ArgumentError(
            f"{split}: lengths must be 1 to {inputs.shape[1]}, got {int(lengths.min())} to {int(lengths.max())}"
        )
    return lengths.long()


def _kind_of(targets: Tensor) -> Kind:
    if targets.is_floating_point():
        return "regress"
    return "classify" if targets.ndim == 1 else "predict"


def _spaces(split: str, part: _Part, kind: Kind, classes: int | None) -> tuple[Space, Space]:
    """Input and output space of one split, its targets checked."""
    tokens = part.inputs.ndim == 2
    inputs = Space("tokens", _count(split, "inputs", part.inputs, None)) if tokens else _features(part.inputs)
    if kind == "regress":
        if not part.targets.is_floating_point():
            raise DtypeError(f"{split}: regress needs real targets, got {part.targets.dtype}; call .float() on them")
        return inputs, _features(part.targets)
    wanted = part.inputs.shape[:1] if kind == "classify" else part.inputs.shape[:2]
    if part.targets.is_floating_point() or part.targets.shape != wanted:
        raise ShapeError(
            f"{split}: {kind} needs whole-number targets of shape {tuple(wanted)}, got {part.targets.dtype} "
            f"{tuple(part.targets.shape)}"
        )
    return inputs, Space("classes" if kind == "classify" else "tokens", _count(split, "targets", part.targets, classes))


def _features(values: Tensor) -> Space:
    return Space("features", values.shape[-1])


def _count(split: str, what: str, ids: Tensor, most: int | None) -> int:
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or (most is not None and high >= most):
        raise ArgumentError(
            f"{split}: {what} must be 0 to {'...' if most is None else most - 1}, got {low} to {high}; number the "
            "classes from 0" + ("" if most is None else f", or give classes={high + 1}")
        )
    return high + 1 if most is None else most


def _widest(spaces: list[Space]) -> Space:
    if len({space.kind for space in spaces}) > 1 or (spaces[0].kind == "features" and len(set(spaces)) > 1):
        raise ShapeError(
            f"expected inputs and targets of one kind and size in every split, got "
            f"{', '.join(f'{s.size} {s.kind}' for s in spaces)}"
        )
    return max(spaces, key=lambda space: space.size)
