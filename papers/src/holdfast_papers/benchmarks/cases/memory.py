"""What measuring costs: the memory function of a 4-layer stack over the same number of plain forward passes."""

from __future__ import annotations

import torch

from holdfast.memory import InputSearch, memory_function
from holdfast.nn import SequenceModel
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, Results, Runner, Shape
from holdfast_papers.benchmarks.steps import generator

GROUP = "probes"
SHAPE: Shape = (64, 10_000, 64, 64)  # probes, horizon, width, state size
GOAL = 1.3
QUICK: tuple[Shape, ...] = ()
DEPTH = 4
CHECKED = 128  # time steps of the check in float64
REST = 65_536  # steps after which the float64 stack stands still on zero input


def cases() -> list[Case]:
    """64 Heaviside probes of 10,000 steps in one call."""
    ours = Contender("memory_function", "ours", _probes, truth=_probes_truth, checked_steps=CHECKED)
    plain = Contender("plain forward passes", "roofline", _passes, truth=_passes_truth, checked_steps=CHECKED)
    match = Match(plain, "memory function over as many plain forward passes", GOAL, "at most")
    return [Case(GROUP, SHAPE, lambda: make_inputs(SHAPE), _probes_truth, ours, (match,))]


def make_inputs(shape: Shape) -> Inputs:
    """Sign vectors, each held for the whole time: the Heaviside probes themselves, for both contenders."""
    rows, time, width, _ = shape
    signs = torch.randn(rows, 1, width, generator=generator()).sign()
    return {"x": signs.expand(-1, time, -1).contiguous()}


def _model() -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(SHAPE[2], SHAPE[2], depth=DEPTH, state_size=SHAPE[3]).eval()


def _probes(inputs: Inputs) -> Runner:
    model, x = _model(), inputs["x"]

    def step() -> Results:
        search = InputSearch(candidates=x[:, 0])
        curve = memory_function(model, input_size=x.shape[2], horizon=x.shape[1] - 1, search=search)
        return {"memory": torch.from_numpy(curve.values)}

    return Runner(step, lambda results: results)


def _probes_truth(inputs: Inputs) -> Results:
    """The largest |y_k - y_(k-1)| over probes and outputs, written out; all x have size 1."""
    model, x = _model().double(), inputs["x"].double()
    with torch.no_grad():
        rest, state = model(torch.zeros(1, REST, x.shape[2], dtype=torch.float64))
        y, _ = model(x, tuple(one.expand(len(x), *one.shape[1:]).contiguous() for one in state))
        return {"memory": torch.diff(y, dim=1, prepend=rest[:, -1:].expand(len(x), -1, -1)).abs().amax((0, 2))}


def _passes(inputs: Inputs) -> Runner:
    model, x = _model(), inputs["x"]

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(x)[0]

    return Runner(step, lambda y: {"y": y})


def _passes_truth(inputs: Inputs) -> Results:
    with torch.no_grad():
        return {"y": _model().double()(inputs["x"].double())[0]}
