"""Random numbers that are a function of (seed, name, index): any sample of a generated set can be made on its own.

SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): the k-th number of a sample is
mix(key + k G), G the golden ratio in 64 bits, and key a mix of seed, name and index. Nothing is drawn one by one, so a batch
costs some passes over its array.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from holdfast.data._base import Split

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def bits(seed: int, name: str, indices: Tensor, count: int) -> np.ndarray:
    """`count` numbers of 64 random bits for each index (indices, count), as uint64; `name` tells streams apart."""
    # hashed, so that seeds 0 and 1, or two streams of one seed, begin far apart
    key = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little")
    samples = _mix(indices.numpy().astype(np.uint64) * _GOLDEN + np.uint64(key))
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return _mix(samples[:, None] + steps)


def _mix(z: np.ndarray) -> np.ndarray:
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def uniform(seed: int, name: str, indices: Tensor, count: int) -> Tensor:
    """Uniform in (0, 1), neither end included, in float64 (indices, count)."""
    # 53 bits, as many as a float64 has, and half of the last one: 0 and 1, whose logarithms are infinite, never come
    whole = bits(seed, name, indices, count) >> np.uint64(11)
    return torch.from_numpy((whole.astype(np.float64) + 0.5) * 2.0**-53)


def normal(seed: int, name: str, indices: Tensor, count: int) -> Tensor:
    """Standard normal in float64 (indices, count), by the inverse of the distribution function."""
    return uniform(seed, name, indices, count).mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2))


def below(limit: int, seed: int, name: str, indices: Tensor, count: int) -> Tensor:
    """Whole numbers from 0 to `limit` - 1 in int64 (indices, count); for limits under 2^20 uniform to 1 in 4,000."""
    # the high bits of a product (Lemire, 2019): no division, and a bias below limit / 2^32
    high = bits(seed, name, indices, count) >> np.uint64(32)
    return torch.from_numpy((high * np.uint64(limit) >> np.uint64(32)).astype(np.int64))


def shuffled(count: int, seed: int, name: str) -> Tensor:
    """The numbers 0 to `count` - 1 in an order that seed and name fix, on every machine."""
    keys = bits(seed, name, torch.arange(count), 1)[:, 0]
    return torch.from_numpy(np.argsort(keys, kind="stable"))


def generated_sizes(train: int | None, valid: int, test: int) -> dict[Split, int | None]:
    """Sizes of the splits of a generated set: train endless where None, valid and test left out where 0."""
    sizes: dict[Split, int | None] = {"train": train}
    sizes |= {"valid": valid} if valid else {}
    sizes |= {"test": test} if test else {}
    return sizes
