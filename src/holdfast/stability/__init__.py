"""Whether memory survives perturbation: error curves and verdict, certificates, gradient scales, stable weights.

`perturbation/` moves the weights and measures, `_verdict.py` judges a family of such curves by their radii, `_study.py`
does both for a model at hand. `certificates/` reads promises off the weights. All of them read a model's recurrences from
`holdfast.recurrences`. `stabilize.py` changes parameterizations (`_plans.py`: how one weight is changed; `_checkpoints.py`:
how the result is saved and loaded). `_bounds.py` has what StableSSM proves of errors and gradients and the gradient scale
of a parameterization, `_design.py` makes one to a wanted scale, `monitor/` watches gradients in training. `exponents.py`
tells how fast nearby states part (`_recurrence_exponents.py`: of states that a model keeps to itself). `_reach.py` tells
how fast a memory can be learned (`_movement.py`: how far weights have to move for it; `_safe_step.py`: how far they may in
one step), and `_groups.py` makes groups for optimizers of that. `_bits.py` tells how many bits the recurrent weights need,
`_activation_class.py` which activations "Inverse Approximation Theory" is about.
"""

from holdfast.stability._activation_class import ActivationClass, classify_activation
from holdfast.stability._bits import BitBudget, bit_budget
from holdfast.stability._bounds import gradient_bound, gradient_scale, kernel_error_bound
from holdfast.stability._checkpoints import plain_state_dict
from holdfast.stability._design import design_parameterization
from holdfast.stability._groups import parameter_groups
from holdfast.stability._reach import RecurrenceReach, RecurrentRate, reach, recurrent_rate
from holdfast.stability._study import StabilityStudy, study_stability
from holdfast.stability._verdict import StabilityVerdict, assess_stability
from holdfast.stability.certificates import Certificate, certify, memory_bound, weight_bound
from holdfast.stability.exponents import LyapunovSpectrum, lyapunov_spectrum
from holdfast.stability.monitor import Alarm, DivergenceGuard, DivergenceWarning, GradientHistory, GradientMonitor
from holdfast.stability.perturbation import (
    Ball,
    Metric,
    PerturbationCurve,
    Search,
    kernel_perturbation_error,
    perturbation_error,
)
from holdfast.stability.stabilize import Stabilized, stabilize

__all__ = [
    "ActivationClass",
    "Alarm",
    "Ball",
    "BitBudget",
    "Certificate",
    "DivergenceGuard",
    "DivergenceWarning",
    "GradientHistory",
    "GradientMonitor",
    "LyapunovSpectrum",
    "Metric",
    "PerturbationCurve",
    "RecurrenceReach",
    "RecurrentRate",
    "Search",
    "StabilityStudy",
    "StabilityVerdict",
    "Stabilized",
    "assess_stability",
    "bit_budget",
    "certify",
    "classify_activation",
    "design_parameterization",
    "gradient_bound",
    "gradient_scale",
    "kernel_error_bound",
    "kernel_perturbation_error",
    "lyapunov_spectrum",
    "memory_bound",
    "parameter_groups",
    "perturbation_error",
    "plain_state_dict",
    "reach",
    "recurrent_rate",
    "stabilize",
    "study_stability",
    "weight_bound",
]
