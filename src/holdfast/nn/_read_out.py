"""Read-outs in units of their modes' rates: a change of the free weight counts the same for every mode."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.errors import ArgumentError
from holdfast.nn._precision import widened
from holdfast.parameterizations import AbstractParameterization

ReadOut = Literal["plain", "scaled"]
MARK = "readout_is_scaled"  # buffer that keeps weights of one kind out of a layer of the other


def check_read_out(layer: nn.Module, readout: ReadOut) -> None:
    """Refuses what is neither; marks a layer whose C is scaled, so that a state dict of the other kind does not load."""
    if readout not in ("plain", "scaled"):
        raise ArgumentError(f"readout must be 'plain' or 'scaled', got {readout!r}")
    if readout == "scaled":
        layer.register_buffer(MARK, torch.ones(()))


def read_scale(f: AbstractParameterization, w: Tensor, modes: int) -> Tensor:
    """margin(f(w_i)) / sqrt(m): |f(w_i)| in continuous time, 1 - |f(w_i)| in discrete time, over the root of the modes.

    A mode c e^{f t} has the L1 norm |c| / |f|, so that a change of gamma in c_i = gamma_i |f(w_i)| / sqrt(m) by beta in the
    2-norm changes the kernel by at most sum_i |beta_i| / sqrt(m) <= beta in L1.

    Args:
        f: the parameterization of the rates.
        w: their free weights.
        modes: m, of one output.
    """
    return f._margin(widened(w)) / math.sqrt(modes)  # `margin` checks its arguments, which torch.compile cannot trace
