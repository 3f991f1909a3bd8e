"""A model as the target: a student is to learn what a teacher does."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.data._draws import generated_sizes, normal
from holdfast.errors import ArgumentError, ShapeError


class TeacherTask(AbstractTask):
    """Outputs at each step of a fixed model on white noise, which is drawn from (seed, split, index).

    The teacher is copied when the task is made, put into evaluation mode, and never changes afterwards.

    Args:
        teacher: any module that maps (batch, time, features) to (batch, time, outputs), or to a tuple that begins with it.
        features: inputs at each step.
        length: steps of a sequence.
        scale: standard deviation of the inputs.
        train: number of training samples; None: generated endlessly.
        valid: number of validation samples; 0: no such split.
        test: number of test samples; 0: no such split.
        seed: of the noise.
    """

    @checked
    def __init__(
        self,
        teacher: nn.Module,
        features: int = 1,
        length: int = 100,
        *,
        scale: float = 1.0,
        train: int | None = None,
        valid: int = 1024,
        test: int = 1024,
        seed: int = 0,
    ) -> None:
        positive(features=features, length=length, train=train)
        # a copy: targets must not move while the teacher is trained
        self._teacher = copy.deepcopy(teacher).cpu().eval().requires_grad_(False)
        self.seed, self.scale = seed, scale
        outputs = self._try_out(features, length)
        sizes = generated_sizes(train, valid, test)
        super().__init__("teacher", "regress", Space("features", features), Space("features", outputs), length, sizes)

    def _try_out(self, features: int, length: int) -> int:
        """Number of outputs of the teacher, which must be finite and the same twice."""
        x = (
            normal(self.seed, "trial", torch.arange(2), length * features).float().view(2, length, features)
            * self.scale
        )
        first, second = self._outputs(x), self._outputs(x)
        if first.ndim != 3 or first.shape[:2] != x.shape[:2]:
            raise ShapeError(
                f"teacher must map inputs of shape {tuple(x.shape)} to (2, {length}, outputs), got {tuple(first.shape)}"
            )
        if not bool(first.isfinite().all()):
            raise ArgumentError(
                f"expected finite outputs of the teacher, got NaN or infinity on white noise of scale {self.scale:g}; choose a "
                "stable teacher or a smaller scale"
            )
        if not torch.equal(first, second):
            raise ArgumentError(
                "the teacher returned different outputs for the same inputs; call teacher.eval(), or reset its state "
                "inside the function"
            )
        return first.shape[2]

    @torch.no_grad()
    def _outputs(self, x: Tensor) -> Tensor:
        outputs = self._teacher(x)
        return outputs[0] if isinstance(outputs, tuple) else outputs

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        draws = normal(self.seed, split, indices, self.length * self.inputs.size).mul_(self.scale)
        x = draws.float().view(-1, self.length, self.inputs.size)
        return Batch(x, self._outputs(x).float())

    def describe(self) -> str:
        return f"teacher {type(self._teacher).__name__} on {self.length:,} steps of white noise"

    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256(repr(self._teacher).encode())
        for name, value in sorted(self._teacher.state_dict().items()):
            digest.update(name.encode())
            if isinstance(value, Tensor):
                digest.update(value.contiguous().view(torch.uint8).numpy().data if value.numel() else b"")
            else:
                digest.update(repr(value).encode())
        return {
            "task": self.name, "teacher": digest.hexdigest(), "features": self.inputs.size, "length": self.length,
            "scale": self.scale, "seed": self.seed, "sizes": dict(self._sizes),
        }  # fmt: skip
