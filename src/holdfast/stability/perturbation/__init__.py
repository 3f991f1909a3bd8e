"""Perturbation errors: how far a model, or a sum of exponentials, drifts from its target when its weights move.

`_error.py` and `_kernel_error.py` hold the two public functions, `_options.py` what can be said to them and the search
problem that it makes, `_curve.py` what they give and its radius. Both put weights in `_balls.py` and look for the sup by
`_search.py` and `_modes.py`; these ask an evaluator for the errors of many perturbed copies at once: `_evaluate.py` (any
module), `_folded.py` (our nonlinear layers) and `_impulse.py` (linear ones).
"""

from holdfast.stability.perturbation._curve import PerturbationCurve
from holdfast.stability.perturbation._error import perturbation_error
from holdfast.stability.perturbation._kernel_error import kernel_perturbation_error
from holdfast.stability.perturbation._options import Ball, Metric, Search

__all__ = ["Ball", "Metric", "PerturbationCurve", "Search", "kernel_perturbation_error", "perturbation_error"]
