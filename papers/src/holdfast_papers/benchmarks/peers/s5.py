"""s5-pytorch: its `apply_ssm`, an associative scan in torch over complex64, mapped over the batch as its S5 layer does.

Given discrete eigenvalues directly, so that its discretization is not on the clock.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast_papers.benchmarks.case import Inputs, Runner
from holdfast_papers.benchmarks.peers.optional import load
from holdfast_papers.benchmarks.steps import training_step


def s5(inputs: Inputs) -> Runner:
    """h_t = lam h_{t-1} + B u_t, y = Re(C h) + d u, from the real pairs of our kernel."""
    apply_ssm = load("s5.s5_model").apply_ssm

    def forward(u: Tensor, lam_re: Tensor, lam_im: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        n = lam_re.shape[0]
        lam = torch.complex(lam_re, lam_im)
        b_complex = torch.complex(b[:n], b[n:])
        c_complex = torch.complex(c[:, :n], -c[:, n:])
        return torch.vmap(lambda row: apply_ssm(lam, b_complex, c_complex, d, row)[0])(u)

    return training_step(forward, inputs)
