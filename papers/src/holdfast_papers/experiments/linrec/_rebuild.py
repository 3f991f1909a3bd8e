"""Images rebuilt from the last state of a linear recurrence: what the figures on MNIST share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Complex128, Float64
from torch import Tensor

from holdfast_papers import reconstruct
from holdfast_papers.experiments._paired import Decision, steps
from holdfast_papers.reconstruct.decoder import Form

NEGLIGIBLE = 1e-9  # relative errors below it are all "none"


def rebuild(
    images: Float64[Tensor, "count time"],
    lam: Complex128[Tensor, " modes"],
    form: Form,
    shown: int = 0,
    judge: Callable[[Tensor], float] | None = None,
) -> dict[str, np.ndarray]:
    """Error of u = V^+ x_L over all images and by pixel, numerical rank, condition of V^H V, and the first few images.

    `noise` is the error for white noise instead of the images. The condition is inf where rounding hides the smallest
    singular value, as it is with fewer modes than pixels. `read` is what `judge` says of the rebuilt images.
    """
    states = reconstruct.encode(images, lam)
    decode = reconstruct.decoder(lam, images.shape[1], form=form)
    found = reconstruct.Reconstruction(decode(states), decode.rank, decode.unknowns, decode.condition, decode.status)
    # inputs without margins, strokes or any other structure, through the same inverse
    noise = torch.randn(100, images.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unstructured = (decode(reconstruct.encode(noise, lam)) - noise).norm() / noise.norm()
    return {
        "error": np.array(found.error(images)),
        "noise": np.array(float(unstructured)),
        "by_time": found.error_by_time(images).numpy(),
        "size": np.array(float((images**2).mean().sqrt())),
        "rank": np.array(found.rank),
        "condition": np.array(found.condition if found.rank == found.unknowns else math.inf),
        "shown": found.values[:shown].numpy(),
        **({"read": np.array(judge(found.values))} if judge else {}),
    }


def reach(arrays: Mapping[str, np.ndarray]) -> int:
    """How many of the latest pixels are rebuilt: up to the first whose error passes half the pixels' own size."""
    lost = np.flatnonzero(arrays["by_time"][::-1] > 0.5 * float(arrays["size"]))
    return int(lost[0]) if len(lost) else len(arrays["by_time"])


def falls(levels: Sequence[Sequence[float]], *more: Sequence[Sequence[float]]) -> Decision:
    """Whether errors fall from each level to the next, draw by draw; steps from rounding to rounding say nothing.

    Args:
        levels: the errors of each level, one per draw.
        more: other rows of levels, judged with the first.
    """
    pairs = [pair for row in (levels, *more) for pair in itertools.pairwise(np.maximum(row, NEGLIGIBLE))]
    return steps([(a, b) for a, b in pairs if _tells(a, b)], factor=True)


def _tells(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two levels can differ: not where both are rounding in every draw, or both infinite."""
    return not ((a <= NEGLIGIBLE) & (b <= NEGLIGIBLE)).all() and not (np.isinf(a) & np.isinf(b)).all()
