"""holdfast: measure, stabilize and design memory in recurrent sequence models."""

from importlib import metadata

from holdfast import approximate, data, decay, kernels, laws, memory, nn, parameterizations, stability, training
from holdfast.approximate import ExponentialSum, fit_exponential_sum
from holdfast.decay import DecayFit, TaskStudy, fit_decay, study_task
from holdfast.diagnosis import Comparison, Diagnosis, compare, diagnose
from holdfast.errors import HoldfastError
from holdfast.memory import MemoryCurve, check_properties, memory_function, repeated_input_memory
from holdfast.nn import accelerate, recurrences
from holdfast.stability import (
    Certificate,
    GradientMonitor,
    PerturbationCurve,
    StabilityVerdict,
    assess_stability,
    certify,
    gradient_scale,
    kernel_perturbation_error,
    parameter_groups,
    perturbation_error,
    recurrent_rate,
    stabilize,
)

__version__ = metadata.version("holdfast")

__all__ = [
    "Certificate",
    "Comparison",
    "DecayFit",
    "Diagnosis",
    "ExponentialSum",
    "GradientMonitor",
    "HoldfastError",
    "MemoryCurve",
    "PerturbationCurve",
    "StabilityVerdict",
    "TaskStudy",
    "accelerate",
    "approximate",
    "assess_stability",
    "certify",
    "check_properties",
    "compare",
    "data",
    "decay",
    "diagnose",
    "fit_decay",
    "fit_exponential_sum",
    "gradient_scale",
    "kernel_perturbation_error",
    "kernels",
    "laws",
    "memory",
    "memory_function",
    "nn",
    "parameter_groups",
    "parameterizations",
    "perturbation_error",
    "recurrences",
    "recurrent_rate",
    "repeated_input_memory",
    "stability",
    "stabilize",
    "study_task",
    "training",
]
