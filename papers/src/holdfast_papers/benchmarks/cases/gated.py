"""torch's LSTM and GRU after `accelerate` against the modules as they were: training steps, and one step of a stream."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import holdfast
from holdfast.kernels.gated import gru_reference, lstm_reference
from holdfast.kernels.gated._reference import Weights
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, Results, Runner, Shape
from holdfast_papers.benchmarks.peers import rooflines
from holdfast_papers.benchmarks.steps import generator, truth_by

GROUP = "gated"
MODULES: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
GATES = {"lstm": 4, "gru": 3}
# (B, T, features, units), and what is to be reached against torch by an LSTM and by a GRU
GOALS: dict[Shape, dict[str, float]] = {
    (4, 8192, 128, 64): {"lstm": 2.0, "gru": 8.0},
    (4, 8192, 128, 16): {"lstm": 3.0, "gru": 16.0},
    (1, 2048, 32, 32): {"lstm": 4.0, "gru": 20.0},
    (128, 32, 64, 64): {"lstm": 1.3, "gru": 2.0},
    (64, 784, 64, 64): {"lstm": 1.3, "gru": 2.0},
    (64, 784, 64, 256): {"lstm": 1.0, "gru": 1.2},
}
QUICK: tuple[Shape, ...] = ()
STREAM: Shape = (1, 1, 64, 64)
STREAM_GOAL = 6.0
STREAM_STEPS = 16  # timed together: entering torch.no_grad() takes a quarter of a step, and a stream enters it once
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def cases() -> list[Case]:
    """Training steps of both kinds at every shape, then their streams."""
    return [_case(kind, shape) for kind in MODULES for shape in GOALS] + [stream_case(kind) for kind in MODULES]


def make_inputs(kind: str, shape: Shape) -> Inputs:
    """Weights as torch starts them: uniform within 1 / sqrt(units)."""
    batch, time, features, units = shape
    numbers = generator()

    def uniform(*size: int) -> Tensor:
        return (2 * torch.rand(size, generator=numbers) - 1) * units**-0.5

    rows = GATES[kind] * units
    weights = (uniform(rows, features), uniform(rows, units), uniform(rows), uniform(rows))
    return {
        "x": torch.randn(batch, time, features, generator=numbers),
        **dict(zip(WEIGHTS, weights, strict=True)),
        "cotangent": torch.randn(batch, time, units, generator=numbers),
    }


def _module(kind: str, inputs: Inputs, *, fast: bool) -> nn.RNNBase:
    units, features = inputs["weight_hh_l0"].shape[1], inputs["x"].shape[-1]
    module = MODULES[kind](features, units, batch_first=True)
    module.load_state_dict({name: inputs[name] for name in WEIGHTS})
    if fast:
        holdfast.accelerate(module)
    return module


def trained(kind: str, *, fast: bool) -> Callable[[Inputs], Runner]:
    """A training step of torch's module, accelerated or as it is."""

    def build(inputs: Inputs) -> Runner:
        module, x = _module(kind, inputs, fast=fast), inputs["x"].clone().requires_grad_()
        leaves = {"x": x, **dict(module.named_parameters())}

        def step() -> tuple[Tensor, tuple[Tensor, ...]]:
            y = module(x)[0]
            return y, torch.autograd.grad(y, tuple(leaves.values()), inputs["cotangent"])

        def read(given: tuple[Tensor, tuple[Tensor, ...]]) -> Results:
            return {"y": given[0].detach(), **dict(zip(leaves, given[1], strict=True))}

        return Runner(step, read)

    return build


def _reference(kind: str, x: Tensor, *weights: Tensor) -> Tensor:
    loop: Any = lstm_reference if kind == "lstm" else gru_reference
    return loop(x, Weights(*weights))[0]


def _case(kind: str, shape: Shape) -> Case:
    batch, time, features, units = shape
    at = f"{batch} x {time:,} x {features}, {units} units"
    name = MODULES[kind].__name__
    products = Contender(
        "bare products", "roofline", functools.partial(rooflines.gated_products, GATES[kind]),
        truth=functools.partial(rooflines.gated_products_truth, GATES[kind]),
    )  # fmt: skip
    torchs = Contender(f"torch.nn.{name}", "torch", trained(kind, fast=False))
    return Case(
        group=f"{GROUP}-{kind}",
        shape=shape,
        inputs=lambda: make_inputs(kind, shape),
        truth=truth_by(functools.partial(_reference, kind)),
        ours=Contender(f"accelerated {name}", "ours", trained(kind, fast=True)),
        matches=(
            Match(torchs, f"training step of an accelerated {name} against torch's, {at}", GOALS[shape][kind])
            if shape in GOALS
            else Match(torchs, f"training step of an accelerated {name} against torch's"),
            Match(products, f"training step of an accelerated {name} over its bare products", sense="at most"),
        ),
        memory=8 * 30 * batch * time * units,
    )


def stream_case(kind: str, shape: Shape = STREAM) -> Case:
    """One step of a stream: `stepper()` of the accelerated module against torch's module with a sequence of one step."""
    name = MODULES[kind].__name__

    def inputs() -> Inputs:
        drawn = dict(make_inputs(kind, shape))
        h, c = torch.randn(2, 1, shape[0], shape[3], generator=generator())
        del drawn["cotangent"]
        return {**drawn, "h": h, **({"c": c} if kind == "lstm" else {})}

    def truth(given: Inputs) -> Results:
        weights = tuple(given[name].double() for name in WEIGHTS)
        starts = [given[name].double()[0] for name in ("h", "c") if name in given]
        loop: Any = lstm_reference if kind == "lstm" else gru_reference
        y, *_ = loop(given["x"].double(), Weights(*weights), *starts)
        return {"y": y[:, 0]}

    row = f"a streamed step of {name}({shape[3]}) against torch's module, {STREAM_STEPS} in a row"
    return Case(
        group=f"{GROUP}-{kind}-stream",
        shape=shape,
        inputs=inputs,
        truth=truth,
        ours=Contender(f"{name} stepper", "ours", functools.partial(_streamed, kind)),
        matches=(
            Match(Contender(f"torch.nn.{name}", "torch", functools.partial(_torch_step, kind)), row, STREAM_GOAL),
        ),
    )


def _state(given: Inputs) -> Any:
    return (given["h"], given["c"]) if "c" in given else given["h"]


def _streamed(kind: str, given: Inputs) -> Runner:
    stepper: Any = _module(kind, given, fast=True).stepper()  # type: ignore[operator]
    return _stream(stepper, given["x"][:, 0].contiguous(), _state(given), lambda y: y)


def _torch_step(kind: str, given: Inputs) -> Runner:
    module = _module(kind, given, fast=False).eval()
    return _stream(module, given["x"], _state(given), lambda y: y[:, 0])


def _stream(module: Any, x: Tensor, start: Any, output: Callable[[Tensor], Tensor]) -> Runner:
    """Steps with the same input, each from the state that the one before left; the first output is checked."""

    @torch.no_grad()
    def steps() -> Tensor:
        first, state = module(x, start)
        for _ in range(STREAM_STEPS - 1):
            _, state = module(x, state)
        return first

    return Runner(steps, lambda y: {"y": output(y)})
