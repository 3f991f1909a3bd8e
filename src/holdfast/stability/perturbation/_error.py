"""perturbation_error: how far a model drifts from its target when its weights move, by the fastest way that fits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast._arguments import as_generator, checked
from holdfast.errors import ArgumentError, unknown_name
from holdfast.memory import ModelError
from holdfast.memory._checks import refuse_unrepeatable
from holdfast.memory._subject import INPUT_ERRORS, tolerance_of
from holdfast.memory.preserve import undisturbed
from holdfast.nn import AbstractRecurrent
from holdfast.nn._precision import HALF_DTYPES
from holdfast.nn._views.families.torch_modules import Unrolled, cell_of
from holdfast.stability.perturbation._balls import BallNorm, select_weights
from holdfast.stability.perturbation._curve import PerturbationCurve, as_radii
from holdfast.stability.perturbation._evaluate import (
    AbstractEvaluator,
    Data,
    LoopEvaluator,
    MetricName,
    Stacked,
    VmapEvaluator,
    check_targets,
    get_metric,
    run_once,
)
from holdfast.stability.perturbation._folded import Folded, FoldedRNN, OneByOne
from holdfast.stability.perturbation._impulse import Impulse
from holdfast.stability.perturbation._options import (
    Ball,
    EvaluationName,
    Metric,
    Search,
    SearchName,
    SearchProblem,
    as_search,
)
from holdfast.stability.perturbation._search import centre_error, run_search

EVALUATION_NAMES = ("auto", "impulse", "folded", "kernel", "vmap", "loop")
# batch times state up to which steps of all draws together beat fused runs one by one; at 8192 they take 3 to 6 times
# as long, since torch's own gates are fused and stay in the cache
MAX_SMALL_STATE = 256


@checked
def perturbation_error(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    radii: Sequence[float] | np.ndarray | Tensor,
    *,
    metric: MetricName | Metric = "sup",
    norm: BallNorm | Ball = "spectral",
    draws: int | None = None,
    search: SearchName | Search = "random",
) -> PerturbationCurve:
    """E(beta): the largest error of a model when its weights are perturbed by at most beta, for every beta in `radii`.

    E(beta) = sup over |theta~ - theta| <= beta of ||targets - model(inputs; theta~)||, where every weight moves in its
    own ball (iat, Def. 3.4; StableSSM, Def. 2.4). The sup is searched: the errors are lower bounds of it. What is not
    finite is +inf. The model, its mode, its gradients and the random states are left as they were.

    Args:
        model: any module that gives the same output for the same input; one that keeps a state between calls, or draws
            noise, is refused (NotRepeatableError).
        inputs: what the model is run on; floating-point inputs take the dtype of the weights.
        targets: what its outputs are compared with, shaped like them.
        radii: the beta, increasing and not negative.
        metric: norm of the error: "sup", "mean-square", "sobolev", or a `Metric` with dt, layout, and errors relative to
            the inputs.
        norm: norm of a perturbation: "spectral", "frobenius", "max-abs", or a `Ball` that also says which weights move.
        draws: number of random perturbations of a search by name; 30 if None.
        search: "random", "adversarial" or "modes", or a `Search` with its draws, restarts, steps and seed.

    Returns:
        a PerturbationCurve with E(beta) for each radius, and how it was computed.

    Raises:
        ShapeError: targets that are not shaped like the outputs.
        ModelError: a model that keeps a state or draws noise.

    Example:
        >>> import torch, holdfast
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.RNN(1, 4, batch_first=True), torch.randn(2, 20, 1)
        >>> curve = holdfast.perturbation_error(model, x, model(x)[0].detach(), [0.01, 0.1], draws=4)
        >>> bool(curve.errors[0] < curve.errors[1])
        True
    """
    betas = as_radii(radii)
    metric = Metric(metric) if isinstance(metric, str) else metric
    ball = Ball(norm) if isinstance(norm, str) else norm
    search = as_search(search, draws)
    inputs, targets = (in_dtype_of(model, x) for x in (inputs, targets))
    with undisturbed(model):
        weights = select_weights(model, ball.scope, ball.norm)
        with torch.no_grad():
            check_targets(first_run(model, inputs), targets)
        time_first = metric.layout == "time_first"
        scales = _sequence_weights(inputs, time_first) if metric.relative else None
        data = Data(inputs, targets, get_metric(metric.name, metric.dt or 1.0), scales, time_first)
        # chosen by what the model is, then held against the model's own error
        evaluator, reason = choose(
            model, data, {w.name: w.value for w in weights}, search.evaluation, search.memory_limit
        )
        centre = centre_error(evaluator, weights)
        problem = SearchProblem(weights, betas, evaluator, search.progress)
        worst = run_search(problem, search, centre, as_generator(search.seed))
    return PerturbationCurve(
        radii=betas,
        errors=worst.errors,
        centre=centre,
        draws=worst.draws,
        metric=f"{metric.name}, relative to inputs" if metric.relative else metric.name,
        norm=ball.norm,
        ball=search.where,
        search=search.method,
        scope=tuple(w.name for w in weights),
        method=evaluator.how,
        reason=reason,
        running_maximum=search.running_maximum,
        target_norm=data.target_norm(),
    )


def first_run(model: nn.Module, inputs: Tensor) -> Tensor:
    """The model's output; ModelError where it does not take the inputs, or gives another output the second time."""
    try:
        y, again = (run_once(model, {}, inputs).clone() for _ in range(2))
    except INPUT_ERRORS as error:
        raise ModelError(
            f"the model failed on the inputs, {inputs.dtype} of shape {tuple(inputs.shape)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    # a perturbed copy would differ by what the model keeps or draws: 0.27 at a radius of 1e-9 was seen
    refuse_unrepeatable(y, again, tolerance_of(y, torch.finfo(y.dtype).eps) if y.is_floating_point() else 0.0)
    return y


def in_dtype_of(model: nn.Module, x: Tensor) -> Tensor:
    """Numbers from numpy are float64 as a rule, and models float32; token ids stay what they are."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    return x if weight is None or not x.is_floating_point() else x.to(weight.dtype)


def _sequence_weights(inputs: Tensor, time_first: bool) -> Tensor:
    """One over the largest |x| of each sequence."""
    if not inputs.is_floating_point() or inputs.ndim < 2:
        raise ArgumentError(
            f"relative=True needs real inputs (batch, time, ...), got {inputs.dtype} of shape {tuple(inputs.shape)}; use "
            "relative=False"
        )
    by_sequence = inputs.transpose(0, 1) if time_first else inputs
    size = by_sequence.abs().flatten(1).amax(-1)
    if not bool((size > 0).all()):
        raise ArgumentError(
            "relative=True divides by the largest |x| of each sequence, got one of zeros only; remove it, or use relative=False"
        )
    return 1 / size


class UnrolledVmap(AbstractEvaluator):
    """`Vmap` of a recurrent module written as a loop over time."""

    how = "vmap"

    def __init__(self, module: Unrolled, data: Data, limit: float) -> None:
        super().__init__(limit)
        self.inner = VmapEvaluator(module, data, limit)
        # all weights of one row of the recurrent matrices: gates times layers times directions
        self.width = sum(p.shape[0] for p in module.parameters() if p.ndim == 2)

    @property
    def bytes_each(self) -> float:
        positions = self.inner.data.inputs.numel() // self.inner.data.inputs.shape[-1]
        return 4.0 * positions * self.width

    def _errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        return self.inner._errors({f"inner.{name}": value for name, value in stacked.items()})


def choose(
    model: nn.Module, data: Data, weights: Mapping[str, Tensor], method: EvaluationName, limit: float
) -> tuple[AbstractEvaluator, str]:
    """The evaluator and why it was chosen; "auto" takes the fastest that reproduces the model's own error."""
    if method not in EVALUATION_NAMES:
        raise unknown_name("evaluation", method, EVALUATION_NAMES)
    # the loop is right for every module: the others are checked against it
    loop = LoopEvaluator(model, data, limit)
    if method == "loop":
        return loop, "asked for"
    candidate = _candidate(model, data, limit, method)
    if isinstance(candidate, str):
        if method != "auto":
            raise ArgumentError(f"evaluation={method!r} does not fit this model: {candidate}; use evaluation='auto'")
        return loop, candidate
    evaluator, reason = candidate
    fault = _fault(evaluator, loop, weights)
    if fault and method != "auto":
        raise ArgumentError(f"evaluation={method!r} does not work for this model: {fault}; use evaluation='auto'")
    # "auto" may go back to the loop, and says so; a way that was asked for by name may not
    return (loop, f"{evaluator.how} {fault}") if fault else (evaluator, reason)


def _candidate(
    model: nn.Module, data: Data, limit: float, method: EvaluationName
) -> tuple[AbstractEvaluator, str] | str:
    """The evaluator of that method and what it does; for "auto" the fastest that is known for such a model, or a reason."""
    name = type(model).__name__
    # hooks see the module run: a closed form would leave them out
    plain = not (model._forward_hooks or model._forward_pre_hooks)
    known = plain and data.inputs.ndim == 3 and data.targets.ndim == 3 and data.inputs.is_floating_point()
    if known and not data.time_first and isinstance(model, AbstractRecurrent):
        fastest = _of_layer(model, data, limit, method)
        if fastest is not None:
            return fastest
    if method in ("impulse", "folded"):
        return f"{name} with inputs of shape {tuple(data.inputs.shape)} has no {method} form"
    if known and isinstance(model, nn.RNNBase):
        return _of_torch(model, data, limit, method)
    if method == "kernel":
        return f"{name} is not a torch.nn.RNN"
    if any(isinstance(m, nn.RNNBase) or getattr(m, "fused", False) for m in model.modules()):
        return "the model holds recurrent layers whose fused kernels have no batching rule"
    return VmapEvaluator(model, data, limit), "vectorized over draws"


def _of_layer(
    model: AbstractRecurrent, data: Data, limit: float, method: EvaluationName
) -> tuple[AbstractEvaluator, str] | None:
    if model.backward_layer is not None or next(model.parameters()).dtype in HALF_DTYPES:
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


def _of_torch(
    model: nn.RNNBase, data: Data, limit: float, method: EvaluationName
) -> tuple[AbstractEvaluator, str] | str:
    name = f"torch.nn.{type(model).__name__}"
    if cell_of(model) is None:
        return f"{name} with projections has no form that is vectorized"
    # small states leave the processor idle step by step; many draws at once fill it
    small = _is_small(data, model.hidden_size)
    if isinstance(model, nn.RNN) and (method == "kernel" or (method == "auto" and not small)):
        return OneByOne(model, data, limit), f"{name} by our own kernel, one run for each perturbation"
    if method == "kernel":
        return f"{name} is not a torch.nn.RNN"
    if method == "vmap" or small:
        return UnrolledVmap(Unrolled(model), data, limit), f"{name} as a loop over time, vectorized over draws"
    return f"{name} runs fused, and faster one by one than vectorized over draws"


def _is_small(data: Data, state: int) -> bool:
    batch = data.inputs.shape[1 if data.time_first else 0]
    return batch * state <= MAX_SMALL_STATE


def _fault(evaluator: AbstractEvaluator, loop: LoopEvaluator, weights: Mapping[str, Tensor]) -> str:
    """Empty where the evaluator's error at a slightly moved centre is that of the model itself."""
    # not the centre itself: with the model's own outputs as targets its error is rounding alone
    moved = {name: (w * (1 + 1e-3) + 1e-4).unsqueeze(0) for name, w in weights.items()}
    try:
        errors = evaluator.errors(moved)
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
        return "" if torch.equal(torch.isfinite(errors), torch.isfinite(expected)) else "differs from the model"
    difference = float((errors - expected).abs().max())
    return "" if difference <= allowed else f"differs from the model's own error by {difference:.2g}"
