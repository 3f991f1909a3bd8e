"""The linear recurrent unit in torch operations on any device: two matrix products around the chunked scan."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from holdfast.kernels.lru._reference import LRUCall
from holdfast.kernels.scan import scan
from holdfast.kernels.scan._gpu import scan_gpu


def lru_chunked(
    call: LRUCall, resets: Tensor | None = None, backend: Literal["chunked", "triton"] = "chunked"
) -> tuple[Tensor, Tensor]:
    """What `lru_reference` gives, `backend` of the scan between the products; differentiable, also twice.

    Resets, bool (batch, time), and inputs u in half precision are for "triton" alone, whose scan takes them as they are.
    """
    u, lam_re, lam_im, b, c, d, h0, lengths, reverse = call
    states = lam_re.shape[0]
    x = u @ b.to(u.dtype).T
    if backend == "triton":
        lam = (lam_re if lam_im is None else torch.cat((lam_re, lam_im))).view(1, 1, -1)
        h, last = scan_gpu(lam, x, h0, lengths=lengths, resets=resets, reverse=reverse, planar=lam_im is not None)
    elif lam_im is None:
        h, last = scan(lam_re, x, h0, lengths=lengths, reverse=reverse, backend="chunked")
    else:
        # planar numbers become complex ones only here, around the scan: the products stay real
        begin = None if h0 is None else torch.complex(h0[:, :states], h0[:, states:])
        steps = torch.complex(x[..., :states], x[..., states:])
        lam = torch.complex(lam_re, lam_im)
        z, z_last = scan(lam, steps, begin, lengths=lengths, reverse=reverse, backend="chunked")
        h, last = torch.cat((z.real, z.imag), -1), torch.cat((z_last.real, z_last.imag), -1)
    y = h @ c.to(h.dtype).T
    d = None if d is None else d.to(u.dtype)
    if d is not None and lengths is None:
        y = torch.addcmul(y, d, u)
    elif d is not None:
        assert lengths is not None
        inside = torch.arange(u.shape[1], device=u.device) < lengths.unsqueeze(-1)
        y = y + torch.where(inside.unsqueeze(-1), d * u, u.new_zeros(()))
    return y, last
