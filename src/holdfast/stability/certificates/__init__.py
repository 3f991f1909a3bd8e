"""Certificates: what the recurrent weights of a model promise, at rest and along data.

Recurrences come from `holdfast.recurrences`. `_lyapunov.py` analyses a matrix, `_scope.py` tells whether a nonlinear
recurrence contracts, from which states a promise holds and what has to be said beside it, `_memory_bound.py` holds the bounds
of StableSSM, `_selective_steps.py` the decays of recurrences whose steps depend on the input, `_along.py` exponents along
data and what a recurrence does that does not rest; `_certificate.py` puts them together.
"""

from holdfast.stability.certificates._certificate import Certificate, certify
from holdfast.stability.certificates._memory_bound import memory_bound, weight_bound

__all__ = ["Certificate", "certify", "memory_bound", "weight_bound"]
