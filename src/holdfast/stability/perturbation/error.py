"""perturbation_error: how far a model drifts from its target when its weights move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from holdfast._arguments import as_generator, checked
from holdfast.errors import ArgumentError
from holdfast.memory import ModelError
from holdfast.memory.checks import refuse_unrepeatable
from holdfast.memory.preserve import undisturbed
from holdfast.memory.subject import MISTAKES, tolerance_of
from holdfast.stability.perturbation.balls import Norm, select_weights
from holdfast.stability.perturbation.curve import PerturbationCurve, as_radii
from holdfast.stability.perturbation.evaluate import Data, check_targets, run_once
from holdfast.stability.perturbation.methods import choose
from holdfast.stability.perturbation.metrics import MetricName, get_metric
from holdfast.stability.perturbation.options import Ball, Metric, Search, SearchName, as_search
from holdfast.stability.perturbation.problem import SearchProblem
from holdfast.stability.perturbation.search import centre_error, run_search


@checked
def perturbation_error(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    radii: Sequence[float] | np.ndarray | Tensor,
    *,
    metric: MetricName | Metric = "sup",
    norm: Norm | Ball = "spectral",
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
    except MISTAKES as error:
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
        raise ArgumentError(f"relative=True needs real inputs (batch, time, ...), got {inputs.dtype}, {inputs.shape=}")
    by_sequence = inputs.transpose(0, 1) if time_first else inputs
    size = by_sequence.abs().flatten(1).amax(-1)
    if not bool((size > 0).all()):
        raise ArgumentError("relative=True divides by the largest |x| of each sequence; one of them is all zeros")
    return 1 / size
