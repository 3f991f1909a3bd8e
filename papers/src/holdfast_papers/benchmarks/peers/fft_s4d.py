"""S4D as the state-spaces layer computes it: the whole kernel by a Vandermonde product, then a convolution by FFT."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def fft_s4d(
    u: Float[Tensor, "batch time features"],
    dt: Float[Tensor, " features"],
    lam_re: Float[Tensor, "features modes"],
    lam_im: Float[Tensor, "features modes"],
    c_re: Float[Tensor, "features modes"],
    c_im: Float[Tensor, "features modes"],
    d: Float[Tensor, " features"],
) -> Float[Tensor, "batch time features"]:
    """y = K * u + d u with K_l = 2 Re sum_n C_n (exp(dt A_n) - 1) / A_n exp(dt A_n l).

    Source: "On the Parameterization and Initialization of Diagonal State Space Models", section 3.1 and its Listing 1
    (zero-order hold). The convolution is over (batch, features, time) at length 2 T, as in that layer, which is given
    and returns (batch, time, features).

    Also the truth of the S4D cases in float64, where the loop over time would take minutes and gigabytes; the two agree
    to 1e-10, gradients included (papers/tests/benchmarks/test_peers.py).
    """
    time = u.shape[1]
    a = torch.complex(lam_re, lam_im)
    step = a * dt[:, None]
    c = torch.complex(c_re, c_im) * torch.expm1(step) / a
    powers = torch.exp(step[..., None] * torch.arange(time, dtype=u.dtype))
    kernel = 2 * torch.einsum("fn,fnt->ft", c, powers).real
    x = u.transpose(1, 2)
    spectrum = torch.fft.rfft(x, n=2 * time) * torch.fft.rfft(kernel, n=2 * time)
    y = torch.fft.irfft(spectrum, n=2 * time)[..., :time] + d[:, None] * x
    return y.transpose(1, 2)


def fft_s4d_bytes(batch: int, time: int, features: int, modes: int) -> int:
    """Peak memory of its training step: the powers, their argument, their gradients, and five spectra of length 2 T."""
    return 8 * time * features * (4 * modes + 5 * batch)
