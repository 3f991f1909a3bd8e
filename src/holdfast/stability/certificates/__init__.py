"""Certificates: what the recurrent weights of a model promise, without running it on data.

`recurrences.py` finds the recurrences of a model, `lyapunov.py` analyses a matrix, `equilibria.py` finds and
linearises the equilibria of a nonlinear one, `contracting.py` tells whether it contracts, `scope.py` whether a
promise holds from every state, `memory_bound.py` holds the bounds of StableSSM, `selective_steps.py` the decays of
recurrences whose steps depend on the input, `remarks.py` what has to be said, `spectrum.py` the figure, `certificate.py` puts
them together.
"""

from holdfast.stability.certificates.certificate import Certificate, certify
from holdfast.stability.certificates.memory_bound import memory_bound, weight_bound

__all__ = ["Certificate", "certify", "memory_bound", "weight_bound"]
