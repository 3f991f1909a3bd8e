"""Whether memory survives perturbation: gradient scales, error curves, certificates."""

from holdfast.stability.gradient_scale import gradient_scale

__all__ = ["gradient_scale"]
