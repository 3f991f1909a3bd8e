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
from holdfast_papers.reconstruct.decoder import Form

NEGLIGIBLE = 1e-9  # relative errors below it are all "none"
SLACK = 1.02  # what random eigenvalues may move an average of few draws


def rebuild(
    images: Float64[Tensor, "count time"],
    lam: Complex128[Tensor, " modes"],
    form: Form,
    shown: int = 0,
    judge: Callable[[Tensor], float] | None = None,
) -> dict[str, np.ndarray]:
    """Error of u = V^+ x_L over all images and by pixel, numerical rank, condition of V^H V, and the first few images.

    `noise` is the error for white noise in place of the images. The condition is inf where rounding hides the smallest
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


def falls(values: Sequence[float]) -> bool:
    """Whether each value is at most the one before, up to the scatter of random draws."""
    return all(b <= SLACK * a or b < NEGLIGIBLE for a, b in itertools.pairwise(values))
