"""Exponential sums and the universal approximators made of state-space layers (ssm, Sec. 3)."""

from holdfast.approximate.convolution import convolution
from holdfast.approximate.elementwise import elementwise
from holdfast.approximate.export import load_layer, save_layer
from holdfast.approximate.fit import METHODS, Convergence, Method, convergence, fit_exponential_sum
from holdfast.approximate.kolmogorov_arnold import kolmogorov_arnold
from holdfast.approximate.mlp import mlp_as_ssm
from holdfast.approximate.network import ByChannel, Chain, Construction, Pointwise
from holdfast.approximate.sums import ExponentialSum
from holdfast.approximate.volterra import volterra

__all__ = [
    "METHODS",
    "ByChannel",
    "Chain",
    "Construction",
    "Convergence",
    "ExponentialSum",
    "Method",
    "Pointwise",
    "convergence",
    "convolution",
    "elementwise",
    "fit_exponential_sum",
    "kolmogorov_arnold",
    "load_layer",
    "mlp_as_ssm",
    "save_layer",
    "volterra",
]
