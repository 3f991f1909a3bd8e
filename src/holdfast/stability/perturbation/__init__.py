"""Perturbation errors: how far a model, or a sum of exponentials, drifts from its target when its weights move.

`error.py` and `kernel_error.py` hold the two public functions, `curve.py` what they give. Both put weights in
`balls.py` and look for the sup by `search.py`, which asks an evaluator for the errors of many perturbed copies at
once: `evaluate.py` (any module, by the norms of `metrics.py`), `folded.py` and `impulse.py` (our layers, through
`systems.py`); `methods.py` chooses.
"""

from holdfast.stability.perturbation.curve import PerturbationCurve
from holdfast.stability.perturbation.error import perturbation_error
from holdfast.stability.perturbation.kernel_error import kernel_perturbation_error

__all__ = ["PerturbationCurve", "kernel_perturbation_error", "perturbation_error"]
