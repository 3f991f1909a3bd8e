"""How perturbed copies of a model are evaluated: the fastest way that fits it, checked at the centre."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.errors import ArgumentError, unknown_name
from holdfast.nn import AbstractRecurrent
from holdfast.nn._views.cells import Unrolled, cell_of
from holdfast.nn.precision import HALF
from holdfast.stability.perturbation.evaluate import AbstractEvaluator, Data, Loop, Stacked, Vmap
from holdfast.stability.perturbation.folded import Folded, FoldedRNN, OneByOne
from holdfast.stability.perturbation.impulse import Impulse

Method = Literal["auto", "impulse", "folded", "kernel", "vmap", "loop"]
METHODS = ("auto", "impulse", "folded", "kernel", "vmap", "loop")
# batch times state up to which steps of all draws together beat fused runs one by one; at 8192 they take 3 to 6 times
# as long, since torch's own gates are fused and stay in the cache
MAX_SMALL_STATE = 256


class UnrolledVmap(AbstractEvaluator):
    """`Vmap` of a recurrent module written as a loop over time."""

    how = "vmap"

    def __init__(self, module: Unrolled, data: Data, limit: float) -> None:
        super().__init__(limit)
        self.inner = Vmap(module, data, limit)
        # all weights of one row of the recurrent matrices: gates times layers times directions
        self.width = sum(p.shape[0] for p in module.parameters() if p.ndim == 2)

    @property
    def bytes_each(self) -> float:
        positions = self.inner.data.inputs.numel() // self.inner.data.inputs.shape[-1]
        return 4.0 * positions * self.width

    def _errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        return self.inner._errors({f"inner.{name}": value for name, value in stacked.items()})


def choose(
    model: nn.Module, data: Data, weights: Mapping[str, Tensor], method: Method, limit: float
) -> tuple[AbstractEvaluator, str]:
    """The evaluator and why it was chosen; "auto" takes the fastest that reproduces the model's own error."""
    if method not in METHODS:
        raise unknown_name("evaluation", method, METHODS)
    loop = Loop(model, data, limit)
    if method == "loop":
        return loop, "asked for"
    found = _candidate(model, data, limit, method)
    if isinstance(found, str):
        if method != "auto":
            raise ArgumentError(f"evaluation={method!r} does not fit this model: {found}; use evaluation='auto'")
        return loop, found
    evaluator, reason = found
    fault = _fault(evaluator, loop, weights)
    if fault and method != "auto":
        raise ArgumentError(f"evaluation={method!r} does not work for this model: {fault}; use evaluation='auto'")
    return (loop, f"{evaluator.how} {fault}") if fault else (evaluator, reason)


def _candidate(model: nn.Module, data: Data, limit: float, method: Method) -> tuple[AbstractEvaluator, str] | str:
    """The evaluator of that method and what it does; for "auto" the fastest that is known for such a model, or a reason."""
    name = type(model).__name__
    plain = not (model._forward_hooks or model._forward_pre_hooks)
    known = plain and data.inputs.ndim == 3 and data.targets.ndim == 3 and data.inputs.is_floating_point()
    if known and not data.time_first and isinstance(model, AbstractRecurrent):
        found = _of_layer(model, data, limit, method)
        if found is not None:
            return found
    if method in ("impulse", "folded"):
        return f"{name} with inputs of shape {tuple(data.inputs.shape)} has no {method} form"
    if known and isinstance(model, nn.RNNBase):
        return _of_torch(model, data, limit, method)
    if method == "kernel":
        return f"{name} is not a torch.nn.RNN"
    if any(isinstance(m, nn.RNNBase) or getattr(m, "fused", False) for m in model.modules()):
        return "the model holds recurrent layers whose fused kernels have no batching rule"
    return Vmap(model, data, limit), "vectorised over draws"


def _of_layer(
    model: AbstractRecurrent, data: Data, limit: float, method: Method
) -> tuple[AbstractEvaluator, str] | None:
    if model.backward_layer is not None or next(model.parameters()).dtype in HALF:
        return None  # of both directions, or of 16 bits, there is no such form
    name = type(model).__name__
    with torch.no_grad():
        system, network = model.linear_system(), model.rate_network()
    if system is not None and system.linear and method in ("auto", "impulse"):
        reason = f"{name} is linear and time-invariant: impulse responses and one product"
        return Impulse(model, system, data, limit), reason
    if method not in ("auto", "folded"):
        return None
    if system is not None and system.reads_only_real_modes:
        return Folded(model, system, data, limit), f"perturbations are channels of {name}'s scan"
    if network is not None and (method == "folded" or _is_small(data, model.state_size)):
        return FoldedRNN(model, network, data, limit), f"perturbations are a batch of {name}'s matrix products"
    return None


def _of_torch(model: nn.RNNBase, data: Data, limit: float, method: Method) -> tuple[AbstractEvaluator, str] | str:
    name = f"torch.nn.{type(model).__name__}"
    if cell_of(model) is None:
        return f"{name} with projections has no form that is vectorised"
    small = _is_small(data, model.hidden_size)
    if isinstance(model, nn.RNN) and (method == "kernel" or (method == "auto" and not small)):
        return OneByOne(model, data, limit), f"{name} by our own kernel, one run for each perturbation"
    if method == "kernel":
        return f"{name} is not a torch.nn.RNN"
    if method == "vmap" or small:
        return UnrolledVmap(Unrolled(model), data, limit), f"{name} as a loop over time, vectorised over draws"
    return f"{name} runs fused, and faster one by one than vectorised over draws"


def _is_small(data: Data, state: int) -> bool:
    batch = data.inputs.shape[1 if data.time_first else 0]
    return batch * state <= MAX_SMALL_STATE


def _fault(evaluator: AbstractEvaluator, loop: Loop, weights: Mapping[str, Tensor]) -> str:
    """Empty where the evaluator's error at a slightly moved centre is that of the model itself."""
    # not the centre itself: with the model's own outputs as targets its error is rounding alone
    moved = {name: (w * (1 + 1e-3) + 1e-4).unsqueeze(0) for name, w in weights.items()}
    try:
        found = evaluator.errors(moved)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return f"failed: {str(error).splitlines()[0][:120]}"
    expected = loop.errors(moved)
    scale = float(expected.max())
    dtype = loop.data.targets.dtype
    eps = torch.finfo(dtype if dtype.is_floating_point else torch.float32).eps
    size = float(loop.data.targets.abs().max()) if loop.data.targets.numel() else 0.0
    # sums over the state and over time in another order: a few hundred roundings of outputs of that size
    allowed = 1e3 * eps * max(scale, size, size**2)
    if not torch.isfinite(expected).all():
        return "" if torch.equal(torch.isfinite(found), torch.isfinite(expected)) else "differs from the model"
    difference = float((found - expected).abs().max())
    return "" if difference <= allowed else f"differs from the model's own error by {difference:.2g}"
