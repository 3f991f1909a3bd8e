"""Exact memory of linear models: from their weights, or from one of holdfast's own layers."""

from holdfast.memory.closed_form._kernel import Kernel, dense, diagonal, lru, s4d, two_layer
from holdfast.memory.closed_form._layers import of_layer, step_eigenvalues

__all__ = ["Kernel", "dense", "diagonal", "lru", "of_layer", "s4d", "step_eigenvalues", "two_layer"]
