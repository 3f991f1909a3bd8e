"""Exponential sums and the universal approximators made of state-space layers (ssm, Sec. 3).

Sums: `fit.py` holds the public function, `sums.py` what it gives and `sum_layer.py` the layer that has it as kernel.
`target.py` reads what is to be fitted, `problem.py` poses it on times that `grid.py` chooses; `linear.py` (fixed
rates), `quadrature.py`, `nonlinear.py` (free rates), `minimax.py` with `alternation.py` (best in the sup norm) and
`pencil.py` (complex modes) solve it. Constructions, one file each: `elementwise.py` (with `sigmoids.py`),
`convolution.py`, `kolmogorov_arnold.py` (with `inner_function.py` and `staircase.py`), `volterra.py` (with `series.py`,
`separate.py`, `products.py`), `mlp.py`. They are put together as `network.py` says; `export.py` saves a layer.
"""

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
