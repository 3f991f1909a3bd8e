"""Exponential sums, and layers that have one as their kernel (ssm, Sec. 3).

`fit.py` holds the public function, `sums.py` what it returns and `sum_layer.py` the layer that has it as kernel.
`target.py` reads what is to be fitted, `problem.py` poses it on times that `grid.py` chooses; `linear.py` (fixed
rates), `quadrature.py`, `nonlinear.py` (free rates), `minimax.py` with `alternation.py` (best in the sup norm) and
`pencil.py` (complex modes) solve it. `export.py` saves a layer.
"""

from holdfast.approximate.export import load_layer, save_layer
from holdfast.approximate.fit import METHODS, Convergence, Method, convergence, fit_exponential_sum
from holdfast.approximate.sums import ExponentialSum

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
