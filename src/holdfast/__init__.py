"""holdfast: memory in recurrent sequence models, measured, kept stable and built to last."""

from importlib import metadata

from holdfast import kernels, laws, nn, parameterizations
from holdfast.errors import HoldfastError
from holdfast.nn.recurrent import parameter_groups
from holdfast.results import Claim, Provenance, Result
from holdfast.stability import gradient_scale, stabilize

__version__ = metadata.version("holdfast")

__all__ = [
    "Claim",
    "HoldfastError",
    "Provenance",
    "Result",
    "gradient_scale",
    "kernels",
    "laws",
    "nn",
    "parameter_groups",
    "parameterizations",
    "stabilize",
]
