"""The linear recurrent unit in torch operations on any device: two matrix products around the chunked scan."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.kernels.lru._reference import LRUCall
from holdfast.kernels.scan import scan


def lru_chunked(call: LRUCall) -> tuple[Tensor, Tensor]:
    """What `lru_reference` gives; differentiable, also twice."""
    u, lam_re, lam_im, b, c, d, h0, lengths, reverse = call
    states = lam_re.shape[0]
    x = u @ b.T
    if lam_im is None:
        h, last = scan(lam_re, x, h0, lengths=lengths, reverse=reverse, backend="chunked")
    else:
        # planar numbers become complex ones only here, around the scan: the products stay real
        begin = None if h0 is None else torch.complex(h0[:, :states], h0[:, states:])
        steps = torch.complex(x[..., :states], x[..., states:])
        lam = torch.complex(lam_re, lam_im)
        z, z_last = scan(lam, steps, begin, lengths=lengths, reverse=reverse, backend="chunked")
        h, last = torch.cat((z.real, z.imag), -1), torch.cat((z_last.real, z_last.imag), -1)
    y = h @ c.T
    if d is not None:
        skip = d * u
        if lengths is not None:
            inside = torch.arange(u.shape[1], device=u.device) < lengths.unsqueeze(-1)
            skip = torch.where(inside.unsqueeze(-1), skip, torch.zeros_like(skip))
        y = y + skip
    return y, last
