"""S4 as it begins: the modes of HiPPO-LegS and one step size, its readout fitted to a kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from holdfast.nn import S4D

RIDGE = 1e-3  # against weights of 1e4 on nearly dependent modes; the error of 64 states stays at 3% of the norm


def hippo_layer(kernel: Tensor, states: int, dt: float) -> S4D:
    """S4 with HiPPO-LegS modes and step dt; C and D by ridge regression of its impulse response on `kernel`.

    K_k = 2 Re sum_n C_n (e^{lam_n dt} - 1) / lam_n e^{lam_n dt k}, and D at k = 0.
    """
    layer = S4D(1, states, initialization="legs", dt_min=dt, dt_max=dt).double()
    with torch.no_grad():
        lam = layer.eigenvalues()[0].numpy()
        modes = 2 * np.expm1(lam * dt) / lam * np.exp(np.multiply.outer(np.arange(len(kernel)), lam * dt))
        first = np.eye(len(kernel))[:, :1]
        A = np.concatenate([modes.real, -modes.imag, first], axis=1)
        weights = np.linalg.solve(A.T @ A + RIDGE**2 * np.eye(A.shape[1]), A.T @ kernel.numpy())
        real, imaginary = np.split(weights[:-1], 2)
        layer.log_dt.fill_(np.log(dt))
        layer.C.copy_(torch.from_numpy(np.stack([real, imaginary], -1)))
        layer.D.copy_(torch.from_numpy(weights[-1:]))
    return layer


class RelativeFrequencies(nn.Module):
    """The same layer with its frequencies as (1 + shift) times what they are: a shift of beta moves each by that share."""

    def __init__(self, layer: S4D) -> None:
        super().__init__()
        assert layer.frequency is not None
        self.layer = layer
        self.shift = nn.Parameter(torch.zeros_like(layer.frequency))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, 1) to (batch, time, 1)."""
        assert self.layer.frequency is not None
        moved = {"frequency": self.layer.frequency * (1 + self.shift)}
        y, _ = functional_call(self.layer, moved, (x,))
        return y
