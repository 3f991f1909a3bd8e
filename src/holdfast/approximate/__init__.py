"""Exponential sums, and layers that have one as their kernel (ssm, Sec. 3).

`_fit.py` holds the public function, `_sums.py` what it returns and `_sum_layer.py` the layer that has it as kernel, and its
file. `_target.py` reads what is to be fitted, `_problem.py` poses it on times that fit its modes; `_linear.py` (fixed rates),
`_nonlinear.py` (free rates), `_minimax.py` with `_alternation.py` (best in the sup norm) and `_pencil.py` (complex modes)
solve it.
"""

from holdfast.approximate._fit import METHODS, Convergence, Method, convergence, fit_exponential_sum
from holdfast.approximate._sum_layer import load_layer, save_layer
from holdfast.approximate._sums import ExponentialSum

__all__ = [
    "METHODS",
    "Convergence",
    "ExponentialSum",
    "Method",
    "convergence",
    "fit_exponential_sum",
    "load_layer",
    "save_layer",
]
