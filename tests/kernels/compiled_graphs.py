"""Traces layers with torch.compile as on a GPU; prints [layer, graphs, names of the nodes] as JSON lines.

The meta device is taken for one where Triton runs: graphs are traced there as on a GPU, and nothing is computed.
"""

import json
import warnings

import torch

from holdfast import nn
from holdfast.kernels._common import gpu

LAYERS = {
    "SelectiveSSM": lambda: nn.SelectiveSSM(8, 4),
    "Mamba": lambda: nn.Mamba(8, 4),
    "LRU": lambda: nn.LRU(8, 8),
}


def nothing_missing(device):
    """In the place of gpu.missing."""
    return ""


def always(device):
    """In the place of gpu.preferred."""
    return True


nothing_missing._dynamo_marked_constant = always._dynamo_marked_constant = True


def nodes(graph):
    """Names of all that a graph calls, those of its inner graphs included."""
    own = [str(node.target) for node in graph.graph.nodes if node.op in ("call_function", "call_method")]
    inner = [nodes(child) for child in graph.children() if isinstance(child, torch.fx.GraphModule)]
    return own + [name for names in inner for name in names]


def traced(layer):
    """The graphs of a training step at three lengths."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(nodes(graph))
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=keep, dynamic=True, fullgraph=True)
    for time in (128, 256, 1000):
        y, _ = compiled(torch.empty(2, time, 8, device="meta", requires_grad=True))
        y.sum().backward()
    return graphs


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    gpu.missing, gpu.preferred = nothing_missing, always
    for name, make in LAYERS.items():
        print(json.dumps([name, traced(make().to("meta"))]))  # noqa: T201 - read by test_triton.py
