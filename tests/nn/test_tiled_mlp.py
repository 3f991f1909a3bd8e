"""The MLP tile by tile is the MLP, gradients of both orders included."""

import pytest
import torch
from torch import nn

from holdfast.nn import _tiled_mlp as module
from holdfast.nn._tiled_mlp import tiled_mlp


def _mlp(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 12), nn.GELU(), nn.Linear(12, 4)).to(dtype)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "TILE_ROWS", 8)


@pytest.mark.parametrize("steps", [4, 5, 13])
def test_tiles_give_the_outputs_and_gradients_of_the_whole(steps, small):
    mlp = _mlp(torch.float64)
    x = torch.randn(3, steps, 4, dtype=torch.float64, requires_grad=True)
    inputs = (x, *mlp.parameters())
    pairs = []
    for y in (tiled_mlp(mlp, x), mlp(x)):
        pairs.append((y, *torch.autograd.grad(y.sin().sum(), inputs)))
    for tiled, whole in zip(*pairs, strict=True):
        torch.testing.assert_close(tiled, whole, rtol=1e-13, atol=1e-13)  # sums of 39 terms in another order


def test_a_second_gradient_goes_through_tiles(small):
    mlp = _mlp(torch.float64)
    x = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradgradcheck(lambda x: tiled_mlp(mlp, x), x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.func compiles its rules with torch.jit
def test_what_tiles_cannot_follow_takes_the_plain_way(small, monkeypatch):
    monkeypatch.setattr(module._Tiled, "apply", None)
    mlp = _mlp(torch.float32)
    x = torch.randn(20, 4)
    with torch.no_grad():
        assert tiled_mlp(mlp, x).shape == x.shape
    _, tangent = torch.func.jvp(lambda x: tiled_mlp(mlp, x), (x,), (x,))
    assert tangent.abs().sum() > 0
    assert torch.func.vmap(lambda x: tiled_mlp(mlp, x))(x).shape == x.shape
