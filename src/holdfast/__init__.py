"""holdfast: memory in recurrent sequence models, measured, kept stable and built to last."""

from importlib import metadata

from holdfast import (
    approximate,
    decay,
    diagnosis,
    experiments,
    kernels,
    laws,
    memory,
    nn,
    parameterizations,
    reconstruct,
    training,
)
from holdfast.approximate import ExponentialSum, fit_exponential_sum
from holdfast.decay import DecayFit, KernelFit, MemoryStudy, fit_decay, fit_kernel, study_memory
from holdfast.diagnosis import Diagnosis, diagnose
from holdfast.errors import HoldfastError
from holdfast.memory import (
    MemoryCapacity,
    MemoryCurve,
    ReceptiveField,
    check_properties,
    memory_capacity,
    memory_function,
    receptive_field,
    repeated_input_memory,
)
from holdfast.nn import recurrences
from holdfast.nn._views.groups import parameter_groups
from holdfast.nn.acceleration import Acceleration, accelerate
from holdfast.results import Claim, Provenance, Result
from holdfast.stability import (
    BitBudget,
    Certificate,
    GradientMonitor,
    LyapunovSpectrum,
    PerturbationCurve,
    StabilityStudy,
    StabilityVerdict,
    assess_stability,
    bit_budget,
    certify,
    design_parameterization,
    gradient_scale,
    kernel_perturbation_error,
    lyapunov_spectrum,
    perturbation_error,
    stabilize,
    study_stability,
)

__version__ = metadata.version("holdfast")

__all__ = [
    "Acceleration",
    "BitBudget",
    "Certificate",
    "Claim",
    "DecayFit",
    "Diagnosis",
    "ExponentialSum",
    "GradientMonitor",
    "HoldfastError",
    "KernelFit",
    "LyapunovSpectrum",
    "MemoryCapacity",
    "MemoryCurve",
    "MemoryStudy",
    "PerturbationCurve",
    "Provenance",
    "ReceptiveField",
    "Result",
    "StabilityStudy",
    "StabilityVerdict",
    "accelerate",
    "approximate",
    "assess_stability",
    "bit_budget",
    "certify",
    "check_properties",
    "decay",
    "design_parameterization",
    "diagnose",
    "diagnosis",
    "experiments",
    "fit_decay",
    "fit_exponential_sum",
    "fit_kernel",
    "gradient_scale",
    "kernel_perturbation_error",
    "kernels",
    "laws",
    "lyapunov_spectrum",
    "memory",
    "memory_capacity",
    "memory_function",
    "nn",
    "parameter_groups",
    "parameterizations",
    "perturbation_error",
    "receptive_field",
    "reconstruct",
    "recurrences",
    "repeated_input_memory",
    "stabilize",
    "study_memory",
    "study_stability",
    "training",
]
