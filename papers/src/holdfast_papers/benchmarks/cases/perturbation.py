"""630 perturbed evaluations, 21 radii by 30 draws, against the usual loop: load_state_dict, run, compare.

The loop runs our own layer, native scan included, so that nothing but the way of perturbing differs; a second one runs the
same weights step by step in Python, as the papers' code does. With a nonlinear readout both have to compute
630 x B x T x N values of the activation, which leaves a factor of some 5.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.nn import DiagonalSSM
from holdfast.nn._activations import ACTIVATIONS
from holdfast.stability import perturbation_error
from holdfast.stability.perturbation._balls import select_weights
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, Results, Runner, Shape
from holdfast_papers.benchmarks.steps import generator

GROUP = "perturbation"
SHAPES: tuple[Shape, ...] = ((128, 32, 1, 64), (128, 256, 1, 64))
QUICK: tuple[Shape, ...] = ()
RADII = 1e-3 * 2 ** (np.arange(21) / 2)
DRAWS = 30
CHECKED = 32  # time steps of the check in float64
Make = Callable[[Shape], nn.Module]


class StepByStep(nn.Module):
    """A DiagonalSSM as a loop over time in plain torch."""

    def __init__(self, layer: DiagonalSSM) -> None:
        super().__init__()
        self.w, self.U, self.b, self.C = layer.w, layer.U, layer.b, layer.C
        self.parameterization = layer.parameterization
        self.activation = ACTIVATIONS[layer.activation]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Exact for inputs that are held over each step of length 1."""
        lam = self.parameterization(self.w)
        factor, gain = torch.exp(lam), torch.expm1(lam) / lam
        h = x.new_zeros(len(x), len(lam))
        outputs = []
        for x_t in x.unbind(1):
            h = factor * h + gain * functional.linear(x_t, self.U, self.b)
            outputs.append(functional.linear(self.activation(h), self.C))
        return torch.stack(outputs, dim=1), h


def cases() -> list[Case]:
    """A linear and a nonlinear diagonal state-space model of ours, and torch's RNN, at both lengths."""
    return [case for shape in SHAPES for case in at(shape)]


def at(shape: Shape) -> tuple[Case, Case, Case]:
    """The three models at one shape."""
    return (
        _case(shape, "linear", _linear, "a linear DiagonalSSM", 30.0),
        _case(shape, "tanh", _tanh, "a tanh DiagonalSSM", 2.0),
        _case(shape, "rnn", _rnn, "torch.nn.RNN", 2.0),
    )


def _linear(shape: Shape) -> nn.Module:
    return DiagonalSSM(shape[2], shape[3], activation="identity")


def _tanh(shape: Shape) -> nn.Module:
    return DiagonalSSM(shape[2], shape[3])


def _rnn(shape: Shape) -> nn.Module:
    return nn.RNN(shape[2], shape[3], batch_first=True)


def _case(shape: Shape, label: str, make: Make, described: str, goal: float) -> Case:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return make(shape)

    def inputs() -> Inputs:
        x = torch.randn(shape[:3], generator=generator())
        return {"x": x, "target": _output(model(), x)}

    def truth(given: Inputs) -> Results:
        own = model()
        return {"errors": _loop(own, own, given, torch.float64)}

    def build(given: Inputs) -> Runner:
        own = model()
        return Runner(
            lambda: perturbation_error(own, given["x"], given["target"], RADII, draws=DRAWS),
            lambda curve: {"errors": torch.from_numpy(curve.draws)},
        )

    def build_loop(given: Inputs) -> Runner:
        own = model()
        return Runner(lambda: _loop(own, own, given, torch.float32), lambda errors: {"errors": errors})

    def build_steps(given: Inputs) -> Runner:
        layer = model()
        assert isinstance(layer, DiagonalSSM)
        steps = StepByStep(layer)
        return Runner(lambda: _loop(steps, layer, given, torch.float32), lambda errors: {"errors": errors})

    ours = Contender("holdfast.perturbation_error", "ours", build, truth=truth, checked_steps=CHECKED)
    loop = Contender("load_state_dict loop", "torch", build_loop, truth=truth, checked_steps=CHECKED)
    row = f"630 perturbed evaluations of {described}, T = {shape[1]}"
    matches = [Match(loop, row, goal)]
    if make is not _rnn:
        steps = Contender("loop over draws and time", "torch", build_steps, truth=truth, checked_steps=CHECKED)
        matches.append(Match(steps, f"{row}, step by step"))
    return Case(f"{GROUP}-{label}", shape, inputs, truth, ours, tuple(matches))


@torch.no_grad()
def _loop(model: nn.Module, layer: nn.Module, given: Inputs, dtype: torch.dtype) -> Tensor:
    """The sup errors, (radii, draws), of the perturbations of `layer`, one run of `model` with the same weights each."""
    weights = select_weights(layer, "all", "spectral")
    draws = torch.Generator().manual_seed(0)
    units = {w.name: w.ball.draw(w.value, DRAWS, draws, "ball").to(w.value) for w in weights}
    centre = {w.name: w.value.clone() for w in weights}
    model, x, target = model.to(dtype), given["x"].to(dtype), given["target"].to(dtype)
    whole = {name: value.clone() if isinstance(value, Tensor) else value for name, value in model.state_dict().items()}
    errors = []
    for beta in RADII.tolist():
        for i in range(DRAWS):
            moved = {name: value + beta * units[name][i] for name, value in centre.items()}
            model.load_state_dict(whole | moved)
            errors.append((_output(model, x) - target).abs().max())
    model.load_state_dict(whole)
    return torch.stack(errors).reshape(len(RADII), DRAWS)


@torch.no_grad()
def _output(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)[0]
