"""The teacher of rates-rule: a layer LRU, trained to tell the next pixel of MNIST's digits at 14 x 14 from those before."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from holdfast.nn import LRU

STEPS, BATCH, LR = 200, 16, 0.01
MAX_LAGS = 512


@functools.cache
def teacher_kernel() -> tuple[Tensor, float]:
    """Its impulse response without the part of the same step, and its slowest time constant, in steps."""
    from holdfast_papers.experiments.rates._tasks import pixels

    images, _, _ = pixels("mnist")
    torch.manual_seed(0)
    layer = LRU(1, 16)
    optimizer = torch.optim.AdamW(layer.parameters(), LR, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        x = images[torch.randint(len(images), (BATCH,), generator=generator)].unsqueeze(-1)
        loss = (layer(x[:, :-1])[0] - x[:, 1:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        slowest = float(layer.eigenvalues().abs().double().max())
        impulse = torch.zeros(1, MAX_LAGS, 1)
        impulse[0, 0] = 1.0
        response = layer(impulse)[0][0, :, 0].double()
    response[0] = 0.0  # the direct way through D remembers nothing
    return response, 1 / -torch.log(torch.tensor(slowest, dtype=torch.float64)).item()
