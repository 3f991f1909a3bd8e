"""RWKV-4's attention over time as two scans.

With decay w and bonus u, and k, v at each step, the output is

    o_t = (n + e^(u + k_t) v_t) / (d + e^(u + k_t)),  then  n <- e^-w n + e^k_t v_t,  d <- e^-w d + e^k_t.

n and d are kept as multiples of e^m, m_t = max(m_{t-1} - w, k_t), so that nothing overflows. That maximum is m_t =
max_{i <= t}(k_i + i w) - t w, a running maximum over all of time at once; factors and inputs of the two recurrences
follow from it, and `holdfast.kernels.scan` does the rest. No result depends on m, so it needs no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.kernels import scan

NEVER = -1e38  # m before the first step, as transformers has it


def wkv(
    decay: Tensor, bonus: Tensor, k: Tensor, v: Tensor, state: tuple[Tensor, Tensor, Tensor] | None
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Outputs (batch, time, channels) in float32 or better, and the state (n, d, m) after the last step.

    Args:
        decay: w > 0 (channels,).
        bonus: u (channels,).
        k: keys (batch, time, channels).
        v: values, shaped like k.
        state: n, d and m before the first step, (batch, channels) each; None is nothing seen.
    """
    dtype = torch.promote_types(k.dtype, torch.float32)
    k, v, decay, bonus = (x.to(dtype) for x in (k, v, decay, bonus))
    if state is None:
        zeros = k.new_zeros(k.shape[0], k.shape[2])
        state = (zeros, zeros, zeros + NEVER)
    n, d, m = (x.to(dtype) for x in state)
    with torch.no_grad():
        peak = _maxima(decay, k, m)
        before = torch.cat((m.unsqueeze(1), peak[:, :-1]), 1)
    factor, gained = torch.exp(before - peak - decay), torch.exp(k - peak)
    both = torch.cat((gained * v, gained), -1)
    states, last = scan(torch.cat((factor, factor), -1), both, torch.cat((n, d), -1))
    old_n, old_d = torch.cat((torch.cat((n, d), -1).unsqueeze(1), states[:, :-1]), 1).chunk(2, -1)
    # e^(u + k - m) over what is kept, both divided by the larger one
    ahead = bonus + k - before
    now, kept = torch.exp(ahead.clamp(max=0)), torch.exp(-ahead.clamp(min=0))
    y = torch.addcmul(now * v, kept, old_n) / torch.addcmul(now, kept, old_d)
    n, d = last.chunk(2, -1)
    return y, (n, d, peak[:, -1])


def _maxima(decay: Tensor, k: Tensor, m: Tensor) -> Tensor:
    """m after each step; in float64, where t w keeps its digits over any length."""
    passed = decay.double() * torch.arange(1, k.shape[1] + 1, device=k.device, dtype=torch.float64).unsqueeze(-1)
    running = torch.cummax(k.double() + passed, 1).values
    return (torch.maximum(running, m.double().unsqueeze(1)) - passed).to(k.dtype)
