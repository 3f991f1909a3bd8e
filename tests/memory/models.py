"""Small models whose memory is known, or that are broken in one known way."""

from collections import UserList

import torch
from torch import nn


class Linear(nn.Module):
    """h_k = lam h_{k-1} + B (x_k + drive), y_k = Re[C h_k] + bias, from h = 0; counts the steps it takes."""

    def __init__(self, lam, B, C, bias=0.0, drive=0.0):
        super().__init__()
        self.lam, self.B, self.C = (nn.Parameter(torch.as_tensor(w)) for w in (lam, B, C))
        self.bias, self.drive, self.steps = bias, drive, UserList()  # a list would be put back

    def run(self, x, h):
        out = []
        for t in range(x.shape[1]):
            h = h * self.lam + (x[:, t] + self.drive).to(self.B.dtype) @ self.B.mT
            out.append((h @ self.C.mT).real if self.C.is_complex() else h @ self.C.mT)
        self.steps.append(x.shape[0] * x.shape[1])
        return torch.stack(out, 1) + self.bias, h

    def forward(self, x):
        return self.run(x, torch.zeros(len(x), len(self.lam), dtype=self.lam.dtype))


class Resuming(Linear):
    """The same, going on from a state whose rows stand in its second dimension."""

    def forward(self, x, state=None):
        h = torch.zeros(len(x), len(self.lam), dtype=self.lam.dtype) if state is None else state[0]
        y, h = self.run(x, h)
        return y, h.unsqueeze(0)


def random_linear(inputs, outputs=1, modes=5, seed=0, slowest=0.9, kind=Linear, **constants):
    generator = torch.Generator().manual_seed(seed)
    lam = torch.rand(modes, generator=generator, dtype=torch.float64) * 2 * slowest - slowest
    B = torch.randn(modes, inputs, generator=generator, dtype=torch.float64)
    C = torch.randn(outputs, modes, generator=generator, dtype=torch.float64)
    return kind(lam, B, C, **constants)


class Integrator(nn.Module):
    """y_k = x_0 + ... + x_k: memory 1 for ever, and no rest on a constant input."""

    def forward(self, x):
        return x.cumsum(1)


class BatchMixing(nn.Module):
    """Subtracts the mean over the batch."""

    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class Clock(nn.Module):
    """Ignores its input's level and never rests: y_k = sin k + x_k."""

    def forward(self, x):
        k = torch.arange(x.shape[1], dtype=x.dtype).view(1, -1, 1)
        return torch.sin(k) + x


class Remembering(nn.Module):
    """Keeps its last state between calls, and rewrites a buffer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros(1))
        self.state = None

    def forward(self, x):
        self.calls += 1
        previous = 0.0 if self.state is None else self.state
        y = self.weight * x.cumsum(1) + previous
        self.state = y[:1, -1:]
        return y


class Bump(nn.Module):
    """y_k = x_k exp(-4 (x_k - 3)^2): the sup of |y|/|x| is 1, at x = 3, between the amplitudes 1 and 10."""

    def forward(self, x):
        return x * torch.exp(-4 * (x - 3) ** 2)


class CausalTransformer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True)
        self.inner, self.lift = nn.TransformerEncoder(layer, 2), nn.Linear(1, width)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.inner(self.lift(x), mask=mask, is_causal=True)
