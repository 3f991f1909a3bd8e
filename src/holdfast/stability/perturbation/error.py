"""perturbation_error: how far a model drifts from its target when its weights move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from holdfast._arguments import as_generator, checked
from holdfast.errors import ArgumentError
from holdfast.memory import ModelError
from holdfast.memory.preserve import undisturbed
from holdfast.memory.subject import MISTAKES
from holdfast.stability.perturbation.balls import Ball, Norm, Scope, select_weights
from holdfast.stability.perturbation.curve import PerturbationCurve, as_radii
from holdfast.stability.perturbation.evaluate import LIMIT, Data, check_targets, run_once
from holdfast.stability.perturbation.methods import Method, choose
from holdfast.stability.perturbation.metrics import MetricName, get_metric
from holdfast.stability.perturbation.search import Progress, Search, SearchProblem, centre_error, run_search


@checked
def perturbation_error(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    radii: Sequence[float] | np.ndarray | Tensor,
    *,
    metric: MetricName = "sup",
    norm: Norm = "spectral",
    ball: Ball = "ball",
    search: Search = "random",
    scope: Scope = "all",
    draws: int = 30,
    restarts: int = 3,
    steps: int = 20,
    running_maximum: bool = False,
    relative: bool = False,
    dt: float = 1.0,
    layout: Literal["batch_first", "time_first"] = "batch_first",
    method: Method = "auto",
    memory_limit: float = LIMIT,
    seed: int | torch.Generator = 0,
    progress: Progress | None = None,
) -> PerturbationCurve:
    """E(beta): the largest error of a model when its weights are perturbed by at most beta, for every beta in `radii`.

    E(beta) = sup over |theta~ - theta| <= beta of ||targets - model(inputs; theta~)||, where every weight moves in its
    own ball (iat, Def. 3.4; StableSSM, Def. 2.4). What is not finite is +inf. The model, its mode, its gradients and
    the random states are left as they were.

    Args:
        model: any module.
        inputs: what the model is run on; floating-point inputs take the dtype of the weights.
        targets: what its outputs are compared with, shaped like them.
        radii: the beta, increasing and not negative.
        metric: norm of the error: "sup" over sequences, times and outputs, "mean-square", or "sobolev" (iat, eq. 11).
        norm: norm of a perturbation. "spectral" is the largest singular value of a matrix, the 2-norm of a vector, and
            max-abs for the vector of a diagonal recurrence, which is diag(w); "frobenius" and "max-abs" are the same
            for all weights.
        ball: where random perturbations lie: uniform in the "ball", or of exactly norm beta ("sphere").
        search: how the sup is searched. "random" tries `draws` random perturbations, along the same directions at every
            radius. "adversarial" ascends by the gradient from the best of them and from other far points of the ball.
            "exact" takes the slow and the fast ends of all modes of diagonal recurrences. Always adversarial >= random
            >= E(0).
        scope: weights that move: "all", "recurrent", or names (or prefixes of names) of weights.
        draws: number of random perturbations.
        restarts: random starting points of the gradient ascent, beside the fixed ones.
        steps: steps of the gradient ascent.
        running_maximum: make a random curve monotone. The authors' code did so silently, with max-abs noise of size
            exactly beta (norm="max-abs", ball="sphere").
        relative: divide each sequence's error by its largest |x|, as the functional norm does.
        dt: time of one step, for the "sobolev" metric.
        layout: "batch_first", or "time_first" for models that take (time, batch, features).
        method: how perturbed models are run. "impulse": impulse responses and one matrix product, for linear layers of
            ours. "folded": all perturbations at once, as channels of a real diagonal layer's scan or in the matrix
            products of ContinuousRNN. "kernel": one run of our kernel for each perturbation, for torch.nn.RNN. "vmap":
            torch.func.vmap. "loop": one run for each perturbation, for any module. "auto" takes the fastest that
            reproduces the model, and the result says which and why.
        memory_limit: bytes held at a time, about, beyond one plain run of the model and 64 MB of random directions.
        seed: number or torch.Generator for the random perturbations.
        progress: called as `progress(done, total)` along the way.
    """
    betas = as_radii(radii)
    _check(search, draws, restarts, steps, memory_limit, running_maximum)
    inputs, targets = (in_dtype_of(model, x) for x in (inputs, targets))
    generator = as_generator(seed)
    with undisturbed(model):
        weights = select_weights(model, scope, norm)
        with torch.no_grad():
            check_targets(first_run(model, inputs), targets)
        scales = _weights_of(inputs, relative, layout)
        data = Data(inputs, targets, get_metric(metric, dt), scales, layout == "time_first")
        evaluator, reason = choose(model, data, {w.name: w.value for w in weights}, method, memory_limit)
        centre = centre_error(evaluator, weights)
        problem = SearchProblem(weights, betas, evaluator, progress)
        found = run_search(problem, search, centre, draws, ball, restarts, steps, generator)
    return PerturbationCurve(
        radii=betas,
        errors=np.maximum.accumulate(found.errors) if running_maximum else found.errors,
        centre=centre,
        draws=found.draws,
        metric=f"{metric}, relative to inputs" if relative else metric,
        norm=norm,
        ball=ball,
        search=search,
        scope=tuple(w.name for w in weights),
        method=evaluator.how,
        reason=reason,
        running_maximum=running_maximum,
        target_norm=data.target_norm(),
    )


def first_run(model: nn.Module, inputs: Tensor) -> Tensor:
    """The model's output as it is; ModelError, naming the inputs, where it does not take them."""
    try:
        return run_once(model, {}, inputs)
    except MISTAKES as error:
        raise ModelError(
            f"the model failed on the inputs, {inputs.dtype} of shape {tuple(inputs.shape)}: "
            f"{type(error).__name__}: {error}"
        ) from error


def in_dtype_of(model: nn.Module, x: Tensor) -> Tensor:
    """Numbers from numpy are float64 as a rule, and models float32; token ids stay what they are."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    return x if weight is None or not x.is_floating_point() else x.to(weight.dtype)


def _check(search: str, draws: int, restarts: int, steps: int, limit: float, running: bool) -> None:
    if draws < 1 or restarts < 0 or steps < 1 or not limit > 0:
        raise ArgumentError(
            f"needs draws >= 1, restarts >= 0, steps >= 1, memory_limit > 0; came {draws=}, {restarts=}, {steps=}, "
            f"memory_limit={limit}"
        )
    if running and search != "random":
        raise ArgumentError(f"search={search!r} is monotone already (balls are nested); leave running_maximum out")


def _weights_of(inputs: Tensor, relative: bool, layout: str) -> Tensor | None:
    if not relative:
        return None
    if not inputs.is_floating_point() or inputs.ndim < 2:
        raise ArgumentError(f"relative=True needs real inputs (batch, time, ...), came {inputs.dtype}, {inputs.shape=}")
    by_sequence = inputs.transpose(0, 1) if layout == "time_first" else inputs
    size = by_sequence.abs().flatten(1).amax(-1)
    if not bool((size > 0).all()):
        raise ArgumentError("relative=True divides by the largest |x| of each sequence; one of them is all zeros")
    return 1 / size
