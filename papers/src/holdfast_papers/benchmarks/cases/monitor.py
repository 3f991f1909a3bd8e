"""What GradientMonitor costs: a training step of a stack with it, over the same step without."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from holdfast.nn import SequenceModel
from holdfast.stability import GradientMonitor
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Kind, Match, Results, Runner, Shape
from holdfast_papers.benchmarks.steps import generator

GROUP = "monitor"
SHAPES: tuple[Shape, ...] = ((16, 256, 64, 64),)
QUICK: tuple[Shape, ...] = ()
DEPTH = 4


def cases() -> list[Case]:
    """A 4-layer stack with an LRU, and with a dense recurrence, whose margin takes eigenvalues."""
    return [_case(shape, layer) for shape in SHAPES for layer in ("lru", "linear")]


def _case(shape: Shape, layer: str) -> Case:
    _, _, width, state = shape

    def model() -> nn.Module:
        torch.manual_seed(0)
        return SequenceModel(width, width, depth=DEPTH, layer=layer, state_size=state)

    def inputs() -> Inputs:
        x, target = torch.randn(2, *shape[:3], generator=generator())
        return {"x": x, "target": target}

    def truth(given: Inputs) -> Results:
        with torch.no_grad():
            return {"y": model().double()(given["x"].double())[0]}

    def contender(name: str, kind: Kind, *, watched: bool) -> Contender:
        return Contender(name, kind, lambda given: _runner(model(), given, watched=watched))

    ours = contender("step with GradientMonitor", "ours", watched=True)
    plain = contender("step without", "roofline", watched=False)
    row = f"training step of a 4-layer stack ({layer}) with GradientMonitor over one without"
    return Case(f"{GROUP}-{layer}", shape, inputs, truth, ours, (Match(plain, row, 1.03, "at most"),))


def _runner(model: nn.Module, given: Inputs, *, watched: bool) -> Runner:
    # the step size leaves the weights where they are, so that every round computes the same
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-12, weight_decay=0.0)
    # entered for each step alone: its hook would see the other contender's optimizer too
    monitor: AbstractContextManager[object] = GradientMonitor(model) if watched else nullcontext()

    def step() -> Tensor:
        optimizer.zero_grad()
        y, _ = model(given["x"])
        nn.functional.mse_loss(y, given["target"]).backward()
        with monitor:
            optimizer.step()
        return y

    return Runner(step, lambda y: {"y": y.detach()})
