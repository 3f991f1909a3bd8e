"""A gated residual: what stands between the recurrent layers of a stack."""

from __future__ import annotations

from holdfast.kernels.gate.op import gate
from holdfast.kernels.gate.reference import gate_reference

__all__ = ["gate", "gate_reference"]
