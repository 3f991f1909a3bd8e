"""Perturbation errors: how far a model, or a sum of exponentials, drifts from its target when its weights move.

`error.py` and `kernel_error.py` hold the two public functions, `options.py` what can be said to them, `curve.py` what they
give. Both put weights in `balls.py`, which makes a `problem.py`, and look for the sup by `search.py` and `modes.py`; these
ask an evaluator for the errors of many perturbed copies at once: `evaluate.py` (any module, by the norms of `metrics.py`),
`folded.py` and `impulse.py` (our layers, through `systems.py`); `methods.py` chooses.
"""

from holdfast.stability.perturbation.curve import PerturbationCurve
from holdfast.stability.perturbation.error import perturbation_error
from holdfast.stability.perturbation.kernel_error import kernel_perturbation_error
from holdfast.stability.perturbation.options import Ball, Metric, Search

__all__ = ["Ball", "Metric", "PerturbationCurve", "Search", "kernel_perturbation_error", "perturbation_error"]
