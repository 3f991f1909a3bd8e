"""Whether memory survives perturbation: gradient scales, error curves, certificates, stable reparameterization."""

from holdfast.stability.gradient_scale import gradient_scale
from holdfast.stability.stabilize import Stabilized, stabilize

__all__ = ["Stabilized", "gradient_scale", "stabilize"]
