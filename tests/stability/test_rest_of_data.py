"""A model that tells no input size rests on zeros of the shape of its data."""

import math

import pytest
import torch
from torch import nn

from holdfast.stability import certify


class Front(nn.Module):
    """A convolution over the features of a step, which tells no number of them, before a GRU."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 3)
        self.gru = nn.GRU(8, 6, batch_first=True)
        nn.init.constant_(self.conv.bias, 2.0)

    def read(self, x):
        rows, steps, size = x.shape
        return self.conv(x.reshape(rows * steps, 1, size)).reshape(rows, steps, -1)

    def forward(self, x):
        return self.gru(self.read(x))[0]


def test_the_time_constant_is_that_where_zeros_of_its_data_leave_it():
    torch.manual_seed(0)
    model = Front().double()
    found = certify(model, inputs=torch.randn(1, 64, 6, dtype=torch.float64))
    u = model.read(torch.zeros(1, 1, 6, dtype=torch.float64)).detach()
    with torch.no_grad():
        _, h = model.gru(u.expand(1, 3000, -1).contiguous())
    step = torch.autograd.functional.jacobian(lambda s: model.gru(u, s)[1].flatten(), h).reshape(6, 6)
    radius = float(torch.linalg.eigvals(step).abs().max())
    # the equilibrium is found to 1e-9, its eigenvalues to less than a millionth
    assert found.time_constant == pytest.approx(-1 / math.log(radius), rel=1e-5)
    assert not any("could not be run" in note for note in found.notes)
