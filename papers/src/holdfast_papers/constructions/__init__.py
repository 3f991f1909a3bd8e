"""Universal approximators made of state-space layers (ssm, Sec. 3), one file each, with their errors.

`elementwise.py` (with `sigmoids.py`), `convolution.py`, `kolmogorov_arnold.py` (with `inner_function.py` and
`staircase.py`), `volterra.py` (with `series.py`, `separate.py`, `products.py`), `mlp.py`. They are put together as
`network.py` says.
"""

from holdfast_papers.constructions.convolution import convolution
from holdfast_papers.constructions.elementwise import elementwise
from holdfast_papers.constructions.kolmogorov_arnold import kolmogorov_arnold
from holdfast_papers.constructions.mlp import mlp_as_ssm
from holdfast_papers.constructions.network import ByChannel, Chain, Construction, Pointwise
from holdfast_papers.constructions.volterra import volterra

__all__ = [
    "ByChannel",
    "Chain",
    "Construction",
    "Pointwise",
    "convolution",
    "elementwise",
    "kolmogorov_arnold",
    "mlp_as_ssm",
    "volterra",
]
