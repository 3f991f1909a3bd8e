"""Compares what a contender computed with the float64 truth, before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast_papers.benchmarks.case import Results


@dataclass(frozen=True)
class Check:
    """The error of every result as a share of the truth's largest entry; `fault` is empty where all are small."""

    errors: Mapping[str, float]
    fault: str

    @property
    def worst(self) -> float:
        """The largest error."""
        return max(self.errors.values(), default=0.0)


def compare(results: Results, truth: Results, tolerance: float) -> Check:
    """Compares every output and gradient by name, shape and value; a missing gradient or a NaN is a fault."""
    if set(results) != set(truth):
        return Check({}, f"gives {_names(results)} where the truth has {_names(truth)}")
    for name, expected in truth.items():
        if results[name].shape != expected.shape:
            shapes = f"{tuple(results[name].shape)} where the truth has {tuple(expected.shape)}"
            return Check({}, f"{name} has shape {shapes}")
    errors = {name: _error(results[name], expected) for name, expected in truth.items()}
    bad = [f"{name} {error:.1e}" for name, error in errors.items() if not error <= tolerance]
    fault = f"differs from the float64 truth: {', '.join(bad)} (allowed {tolerance:.1e})" if bad else ""
    return Check(errors, fault)


def _error(value: Tensor, expected: Tensor) -> float:
    difference = float((value.double() - expected).abs().max()) if expected.numel() else 0.0
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    if not torch.isfinite(torch.tensor([difference, scale])).all():
        return float("inf")
    return difference / scale if scale else difference


def _names(results: Results) -> str:
    return ", ".join(sorted(results)) or "nothing"
