"""What the machine gives: memory traffic without arithmetic, and matrix products without a recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.kernels._common.rooflines import exponential_limit, triad
from holdfast_papers.benchmarks.case import Inputs, Results, Runner
from holdfast_papers.benchmarks.steps import training_step, truth_by

SCALE = 0.5


def stream(inputs: Inputs, *, fresh: bool = False) -> Runner:
    """STREAM triads over the eight arrays that a scan's training step moves.

    Forward reads a and b and writes h; backward reads a, h and the cotangent and writes the gradients of a and b. They
    are written to memory that is already there or, where `fresh`, to new tensors each time, as an operator of torch
    must: above 32 MB each, the system's page faults then rule.
    """
    a, b, cotangent = (inputs[name].flatten() for name in ("a", "b", "cotangent"))
    kept = [torch.empty_like(a) for _ in range(3)]

    def step() -> list[Tensor]:
        h, grad_a, grad_b = [torch.empty_like(a) for _ in range(3)] if fresh else kept
        triad(h, a, b, SCALE)
        triad(grad_a, a, h, SCALE)
        triad(grad_b, cotangent, cotangent, SCALE)  # the second reading comes from the first-level cache
        return [h, grad_a, grad_b]

    return Runner(step, _triads)


def stream_truth(inputs: Inputs) -> Results:
    """What the triads compute, in float64."""
    a, b, cotangent = (inputs[name].flatten().double() for name in ("a", "b", "cotangent"))
    h = a + SCALE * b
    return {"h": h, "a": a + SCALE * h, "b": cotangent + SCALE * cotangent}


def gemms(inputs: Inputs) -> Runner:
    """The six matrix products of an LRU's training step: y = (u b') c' without the recurrence between them."""
    return training_step(_project, _projections(inputs))


def gemms_truth(inputs: Inputs) -> Results:
    """The same in float64."""
    return truth_by(_project)(_projections(inputs))


def gated_products(gates: int, inputs: Inputs) -> Runner:
    """The six matrix products of an LSTM's (4 gates) or GRU's (3) training step over all steps at once."""
    return training_step(_gate_sums, _gate_inputs(gates, inputs))


def gated_products_truth(gates: int, inputs: Inputs) -> Results:
    """The same in float64."""
    return truth_by(_gate_sums)(_gate_inputs(gates, inputs))


class _Recorder(TorchDispatchMode):
    """Keeps every matrix product that torch computes inside it, with its arguments."""

    PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm)

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func.overloadpacket in self.PRODUCTS:
            self.calls.append((func, tuple(x.detach() if isinstance(x, Tensor) else x for x in args), given))
        return func(*args, **given)


def own_products(build: Callable[[Inputs], Runner], inputs: Inputs) -> Runner:
    """The matrix products that one step of a runner asks torch for, forward and backward, and nothing between them."""
    calls = _recorded(build, inputs)

    @torch.no_grad()
    def step() -> list[Tensor]:
        return [run(*args, **named) for run, args, named in calls]

    return Runner(step, _numbered)


def own_products_truth(build: Callable[[Inputs], Runner], inputs: Inputs) -> Results:
    """The same in float64."""
    calls = _recorded(build, inputs)
    wide = ([x.double() if isinstance(x, Tensor) else x for x in args] for _, args, _ in calls)
    return _numbered([run(*args, **named) for (run, _, named), args in zip(calls, wide, strict=True)])


def _recorded(build: Callable[[Inputs], Runner], inputs: Inputs) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    runner = build(inputs)
    with _Recorder() as recorder:
        runner.step()
    return recorder.calls


def _numbered(outputs: list[Tensor]) -> Results:
    return {str(i): x for i, x in enumerate(outputs)}


def exponentials(inputs: Inputs) -> Runner:
    """One exponential and one multiply-add for each state and step of a selective scan, in registers."""
    batch, time, _ = inputs["u"].shape
    states = batch * inputs["A"].numel()
    return Runner(lambda: exponential_limit(states, time), lambda given: {"positive": torch.tensor(float(given > 0))})


def exponentials_truth(inputs: Inputs) -> Results:
    """That the sum of all states is positive: their inputs are."""
    return {"positive": torch.tensor(1.0, dtype=torch.float64)}


def _gate_sums(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor) -> Tensor:
    return x @ w_ih.T + h @ w_hh.T


def _gate_inputs(gates: int, inputs: Inputs) -> Inputs:
    h, w_ih, w_hh = inputs["cotangent"], inputs["weight_ih_l0"], inputs["weight_hh_l0"]
    return {"x": inputs["x"], "h": h, "w_ih": w_ih, "w_hh": w_hh, "cotangent": h.repeat(1, 1, gates)}


def _project(u: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (u @ b.T) @ c.T


def _projections(inputs: Inputs) -> Inputs:
    return {name: inputs[name] for name in ("u", "b", "c", "cotangent")}


def _triads(given: Any) -> Results:
    return dict(zip(("h", "a", "b"), given, strict=True))
