"""Training of the same 4-layer stack with only the recurrent layer exchanged: forward, backward and AdamW."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast.nn import LRU, S4D, SequenceModel
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, Results, Runner, Shape
from holdfast_papers.benchmarks.peers.stacks import FFTS4D, S5Layer, exchange
from holdfast_papers.benchmarks.steps import generator

GROUP = "stack"
# (B, T, D, N), then the goals against s5-pytorch's layer and an FFT S4D layer
# At T = 8192 the stack without any recurrence takes 0.77 (LRU) and 0.72 (S4D) of the time: a recurrence for nothing would
# reach 3.1 and 6.0; the goals are 70% of that.
GOALS: dict[Shape, tuple[float, float]] = {(64, 784, 64, 64): (3.5, 2.8), (4, 8192, 128, 16): (2.2, 4.2)}
QUICK: tuple[Shape, ...] = ()
DEPTH = 4
CHECKED = 128  # time steps of the check in float64


class Bypass(nn.Module):
    """No recurrence at all: what norms, gates and projections cost alone."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor, state: None = None, **how: object) -> tuple[Tensor, None]:
        """The input itself."""
        return x, None


def cases() -> list[Case]:
    """LRU against S5 and S4D against the FFT S4D, each in the stack, at both shapes."""
    return [case for shape, goals in GOALS.items() for case in at(shape, *goals)]


def at(shape: Shape, goal_s5: float, goal_fft: float) -> tuple[Case, Case]:
    """Both cases at one shape, with the goals against s5-pytorch's layer and an FFT S4D layer."""
    _, time, width, state = shape
    bypass = _contender("stack without recurrence", "roofline", lambda: Bypass(width), width)
    s5 = _contender("s5-pytorch", "peer", lambda: S5Layer(width, state), width, ("s5",))
    fft = _contender("FFT S4D", "torch", lambda: FFTS4D(width, state), width)
    return (
        _case(shape, "lru", lambda: LRU(width, state), [
            Match(s5, f"4-layer stack, T = {time}: LRU against s5-pytorch's layer", goal_s5),
            Match(bypass, "share of the LRU stack that is not recurrence"),
        ]),
        _case(shape, "s4d", lambda: S4D(width, state), [
            Match(fft, f"4-layer stack, T = {time}: S4D against an FFT S4D layer", goal_fft),
            Match(bypass, "share of the S4D stack that is not recurrence"),
        ]),
    )  # fmt: skip


def make_inputs(shape: Shape) -> Inputs:
    """White noise in, one number per step as in sequential MNIST, and a target of the same shape."""
    batch, time, _, _ = shape
    x, target = torch.randn(2, batch, time, 1, generator=generator())
    return {"x": x, "target": target}


def _model(layer: Callable[[], nn.Module], width: int) -> SequenceModel:
    torch.manual_seed(0)
    return exchange(SequenceModel(1, width, depth=DEPTH), layer)


def _widened(model: nn.Module) -> nn.Module:
    """The model in float64; Module.double() leaves complex weights as they are."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.complex128 if parameter.is_complex() else torch.float64)
    return model


def _contender(
    name: str, kind: str, layer: Callable[[], nn.Module], width: int, modules: tuple[str, ...] = ()
) -> Contender:
    def build(inputs: Inputs) -> Runner:
        model = _model(layer, width)
        # the step size leaves the weights where they are, so that every round computes the same
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-12, weight_decay=0.0)

        def step() -> Tensor:
            optimizer.zero_grad()
            y, _ = model(inputs["x"])
            nn.functional.mse_loss(y, inputs["target"]).backward()
            optimizer.step()
            return y

        return Runner(step, lambda y: {"y": y.detach()})

    def truth(inputs: Inputs) -> Results:
        with torch.no_grad():
            y, _ = _widened(_model(layer, width))(inputs["x"].double())
        return {"y": y}

    return Contender(name, kind, build, modules, truth=truth, checked_steps=CHECKED)  # type: ignore[arg-type]


def _case(shape: Shape, label: str, layer: Callable[[], nn.Module], matches: list[Match]) -> Case:
    ours = _contender(f"holdfast {label}", "ours", layer, shape[2])
    assert ours.truth is not None
    return Case(f"{GROUP}-{label}", shape, lambda: make_inputs(shape), ours.truth, ours, tuple(matches))
