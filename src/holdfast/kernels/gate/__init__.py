"""A gated residual: what stands between the recurrent layers of a stack."""

from __future__ import annotations

from holdfast.kernels.gate._op import gate
from holdfast.kernels.gate._reference import gate_reference

__all__ = ["gate", "gate_reference"]
