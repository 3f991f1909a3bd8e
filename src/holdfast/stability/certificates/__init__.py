"""Certificates: what the recurrent weights of a model promise, without running it on data.

Recurrences come from `holdfast.recurrences`. `lyapunov.py` analyses a matrix, `contracting.py` tells whether a nonlinear
recurrence contracts, `scope.py` whether a
promise holds from every state, `memory_bound.py` holds the bounds of StableSSM, `selective_steps.py` the decays of
recurrences whose steps depend on the input, `remarks.py` what has to be said, `spectrum.py` the figure, `certificate.py` puts
them together.
"""

from holdfast.stability.certificates.certificate import Certificate, certify
from holdfast.stability.certificates.memory_bound import memory_bound, weight_bound

__all__ = ["Certificate", "certify", "memory_bound", "weight_bound"]
