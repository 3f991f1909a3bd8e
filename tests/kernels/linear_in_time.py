"""Counts the elements that a training step of each layer moves on torch's own paths; prints [layer, exponent] lines.

The exponent is that of elements against steps between two lengths: work, not time. Run with HOLDFAST_NATIVE=off.
"""

import json
import math
import sys

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holdfast import nn


class Elements(TorchDispatchMode):
    """Elements that operators read and write; views are free."""

    moved = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        outs = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        if outs and not any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
            self.moved += sum(x.numel() for x in (*outs, *tree_leaves((args, kwargs))) if isinstance(x, Tensor))
        return out


WIDTH = 4
LAYERS = {
    "DiagonalSSM": lambda: nn.DiagonalSSM(WIDTH, WIDTH),
    "LRU": lambda: nn.LRU(WIDTH, WIDTH),
    "S4D": lambda: nn.S4D(WIDTH, 2),
    "SelectiveSSM": lambda: nn.SelectiveSSM(WIDTH, 2),
    "Mamba": lambda: nn.Mamba(WIDTH, 2),
    "Mamba2": lambda: nn.Mamba2(WIDTH, 2, head_size=4),
    "LinearRNN": lambda: nn.LinearRNN(WIDTH, WIDTH),
    "LinearRNN diagonal": lambda: nn.LinearRNN(WIDTH, WIDTH, structure="diagonal"),
    "LinearRNN with dt": lambda: nn.LinearRNN(WIDTH, WIDTH, time="continuous"),
    "ContinuousRNN": lambda: nn.ContinuousRNN(WIDTH, WIDTH),
    "ContinuousGRU": lambda: nn.ContinuousGRU(WIDTH, WIDTH),
    "MinGRU": lambda: nn.MinGRU(WIDTH, WIDTH),
    "MinLSTM": lambda: nn.MinLSTM(WIDTH, WIDTH),
    "RGLRU": lambda: nn.RGLRU(WIDTH, WIDTH),
}


def elements(name, time):
    """Elements moved by forward and backward over `time` steps, with lengths."""
    torch.manual_seed(0)
    layer, x = LAYERS[name](), torch.randn(1, time, WIDTH, requires_grad=True)
    dt = {"dt": torch.full((1, time), 0.1)} if "dt" in name else {}
    count = Elements()
    with count:
        y, _ = layer(x, lengths=torch.tensor([time - 1]), **dt)
        y.sum().backward()
    return count.moved


if __name__ == "__main__":
    torch.set_num_threads(1)
    short, long = map(int, sys.argv[1:3])
    for layer in LAYERS:
        exponent = math.log(elements(layer, long) / elements(layer, short)) / math.log(long / short)
        print(json.dumps([layer, exponent]), flush=True)  # noqa: T201 - read by test_linear_in_time.py
