"""Whether memory survives perturbation: error curves and verdict, certificates, gradient scales, stable weights."""

from holdfast.stability.certificates import Certificate, certify, memory_bound, weight_bound
from holdfast.stability.design import design_parameterization
from holdfast.stability.gradient_scale import gradient_scale
from holdfast.stability.monitor import DivergenceWarning, GradientHistory, GradientMonitor
from holdfast.stability.perturbation import PerturbationCurve, kernel_perturbation_error, perturbation_error
from holdfast.stability.stabilize import Stabilized, stabilize
from holdfast.stability.verdict import StabilityVerdict, assess_stability

__all__ = [
    "Certificate",
    "DivergenceWarning",
    "GradientHistory",
    "GradientMonitor",
    "PerturbationCurve",
    "StabilityVerdict",
    "Stabilized",
    "assess_stability",
    "certify",
    "design_parameterization",
    "gradient_scale",
    "kernel_perturbation_error",
    "memory_bound",
    "perturbation_error",
    "stabilize",
    "weight_bound",
]
