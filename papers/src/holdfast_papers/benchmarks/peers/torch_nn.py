"""torch's own recurrent modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast_papers.benchmarks.case import Inputs, Results, Runner
from holdfast_papers.benchmarks.steps import generator


def rnn(inputs: Inputs) -> Runner:
    """torch.nn.RNN with our weights; its second bias is 0, and has the first one's gradient."""
    x = inputs["x"].clone().requires_grad_()
    state, features = inputs["u"].shape
    module = nn.RNN(features, state, batch_first=True)
    theirs = {"w": "weight_hh_l0", "u": "weight_ih_l0", "b": "bias_ih_l0"}
    weights = {theirs[name]: inputs[name] for name in theirs}
    module.load_state_dict({**weights, "bias_hh_l0": torch.zeros(state)})
    inner = _module_step(module, x, inputs["cotangent"])

    def read(given: Any) -> Results:
        results = inner.read(given)
        return {name: results[theirs.get(name, name)] for name in ("y", *inputs) if name != "cotangent"}

    return Runner(inner.step, read)


def gated(
    kind: type[nn.LSTM] | type[nn.GRU], width: int, source: str
) -> tuple[Callable[[Inputs], Runner], Callable[[Inputs], Results]]:
    """An LSTM or a GRU of `width` hidden units over the input called `source`, and its own truth in float64."""

    def build(inputs: Inputs) -> Runner:
        return make(inputs, torch.float32)

    def truth(inputs: Inputs) -> Results:
        runner = make(inputs, torch.float64)
        return runner.read(runner.step())

    def make(inputs: Inputs, dtype: torch.dtype) -> Runner:
        numbers = generator()
        batch, time, features = inputs[source].shape
        module = kind(features, width, batch_first=True)
        with torch.no_grad():
            for weight in module.parameters():
                weight.uniform_(-(width**-0.5), width**-0.5, generator=numbers)
        cotangent = torch.randn(batch, time, width, generator=numbers).to(dtype)
        return _module_step(module.to(dtype), inputs[source].to(dtype, copy=True).requires_grad_(), cotangent)

    return build, truth


def _module_step(module: nn.RNNBase, x: Tensor, cotangent: Tensor) -> Runner:
    names = ["x", *(name for name, _ in module.named_parameters())]
    leaves = (x, *module.parameters())

    def step() -> tuple[Tensor, tuple[Tensor, ...]]:
        y = module(x)[0]
        return y, torch.autograd.grad(y, leaves, cotangent)

    def read(given: tuple[Tensor, tuple[Tensor, ...]]) -> Results:
        y, gradients = given
        return {"y": y.detach(), **dict(zip(names, gradients, strict=True))}

    return Runner(step, read)
