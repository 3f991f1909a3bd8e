"""memory_function: the memory of any causal sequence model, from its outputs alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast._arguments import as_generator, checked
from holdfast.errors import ArgumentError, ShapeError
from holdfast.memory import closed_form
from holdfast.memory.checks import check_far_sight, prepare
from holdfast.memory.curve import CurveStatus, MemoryCurve, Normalization, NotCausalError
from holdfast.memory.precision import INSIDE
from holdfast.memory.preserve import undisturbed
from holdfast.memory.probes import Measured, Plan, ProbeName
from holdfast.memory.search import Best, ascend, at_amplitudes, directions, run_all, sign_patterns
from holdfast.memory.settle import SHORTEST, Settling, longest_settling, settle, settle_for
from holdfast.memory.subject import Layout, Subject
from holdfast.memory.window import WINDOWED, measure_window

Search = Literal["auto", "grid", "ascent"]
Form = Literal["auto", "stream", "window"]
HELPS = ": a higher burn_in or longest_burn_in may help, unless the model counts positions and never rests"


@checked
def memory_function(
    model: Callable[..., Any],
    *,
    input_size: int = 1,
    horizon: int = 1000,
    probe: ProbeName = "heaviside",
    normalization: Normalization = "x",
    norm: float = math.inf,
    dt: float = 1.0,
    search: Search = "auto",
    candidates: Float[Tensor, "rows inputs"] | None = None,
    amplitudes: Sequence[float] = (0.1, 1.0, 10.0),
    budget: int = 64,
    burn_in: int | None = None,
    longest_burn_in: int | None = None,
    reversed_form: Form = "auto",
    layout: Layout = "batch_first",
    mode: Literal["eval", "as is"] = "eval",
    double: bool = False,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    seed: int | torch.Generator = 0,
    progress: Callable[[int, int], None] | None = None,
) -> MemoryCurve:
    """The memory function M(t) of a causal sequence model, at t = 0, dt, ..., horizon dt.

    M(t) is how strongly the output at time t still answers to an input at time 0, for the input x that shows it most:

        heaviside   M(t) = sup_x |d/dt H_t(u^x)| / |x|_inf,  u^x = x from t = 0 on, 0 before
        impulse     M(t) = sup_x |H_t(i^x)| / |x|_inf,       i^x = x at t = 0 only
        reversed    M(t) = sup_x |d/dt H_t(r^x)| / |x|_inf,  r^x = x before t = 0, 0 from then on

    ("Inverse Approximation Theory", Def. 3.1, App. F and App. G.) H is the output minus the response to zero input;
    d/dt is the forward difference over dt, so that M(0) holds the jump. For a linear model all three are |rho(t)|_1.

    The model first runs on zeros until its output stands still. The sup over x is a search, so the values are lower
    bounds; they are exact for linear models with one output or with 2^input_size <= budget. The model, its modes, its
    gradients and the random states are left as they were.

    Args:
        model: maps inputs (batch, time, features) to outputs (batch, time, outputs), or to a tuple or list that begins
            with them; with one output (batch, time) will do. A model called as `model(x, state)` that returns
            `(outputs, state)` is run on zeros once for all probes.
        input_size: number of input features.
        horizon: last step at which M is measured; the curve has horizon + 1 times.
        probe: "heaviside", "impulse" or "reversed", as above.
        normalization: "x" divides by |x|_inf, "x+1" by |x|_inf + 1 ("StableSSM", Def. 2.2).
        norm: order of the norm over several outputs, at least 1; inf takes the largest output.
        dt: time of one step. It scales the times of the curve and the difference d/dt, not the model.
        search: which x are tried. "grid": all sign vectors and unit vectors at all `amplitudes`; where there are more
            sign vectors than `budget`, the unit vectors alone (or random sign vectors, if even these are too many), at
            the middle amplitude. "auto": then also the sign vectors that the responses to unit vectors point to, and
            the best directions at all amplitudes. "ascent": after "auto", gradient ascent from the best x.
        candidates: the x to try, (rows, input_size), instead of the grid.
        amplitudes: sizes |x|_inf at which a direction is tried. They matter for nonlinear models only.
        budget: most directions that are tried in one round.
        burn_in: steps before the probe (of x itself for the reversed probe, of zeros for the others). None: until the
            output stands still.
        longest_burn_in: most steps to wait for that when `burn_in` is None. None: 4096, or up to 65536 for a model that
            goes on from a state.
        reversed_form: for the reversed probe only. "stream" runs x until the output stands still and then zeros, in one
            pass. "window" is the paper's own form: horizon + 2 inputs that end at the same moment, O(horizon^2) steps.
            "auto" is "stream", or "window" where the output does not settle and the horizon is at most 256.
        layout: "batch_first", or "time_first" for models that take (time, batch, features).
        mode: "eval" measures the model in evaluation mode, "as is" in the mode that it is in.
        double: measure a float64 copy of an nn.Module: the rounding floor is then 1e-16 of the output, not 1e-7.
        dtype: dtype of the inputs; None is that of the model's first weight, or torch's default.
        device: device of the inputs; None is that of the model's first weight, or the CPU.
        seed: number or torch.Generator for the random inputs of the checks and of the search.
        progress: called as `progress(done, total)` while the "window" form runs.

    Assumed unchecked: the model is time-homogeneous, and a settled output means a settled state. Checked, with a
    ModelError that names the fix: shapes, that the same input gives the same output, that rows of a batch do not
    influence each other, and causality over the horizon. Outputs that are not finite or do not settle are a status of
    the curve.
    """
    _check_arguments(probe, reversed_form, horizon, budget, dt, norm, amplitudes)
    generator = as_generator(seed)
    with undisturbed(model, evaluate=mode == "eval"), torch.no_grad():
        subject = Subject(model, input_size, layout=layout, dtype=dtype, device=device, double=double)
        prepare(subject, generator)
        check_far_sight(subject, horizon + 1, generator.initial_seed())
        chosen = _as_candidates(candidates, input_size)
        first = _first_round(input_size, budget, amplitudes, generator) if chosen is None else chosen
        settling, form = _lead(subject, probe, first, burn_in, longest_burn_in, reversed_form, horizon)
        lead = settling.steps if settling.state is None else 0
        plan = Plan(probe, lead, horizon, dt, norm, normalization, start=settling.state)
        best = Best(horizon + 1, input_size)
        notes: tuple[str, ...] = ()
        if form == "window":
            parts = measure_window(subject, plan, first, best, progress)
        else:
            follow_up = None if chosen is not None or search == "grid" else amplitudes
            parts = _search(subject, plan, first, best, follow_up, budget)
            if search == "ascent":
                found = ascend(subject, plan, best, amplitudes)
                notes = () if found is not None else ("the output has no gradient by x: no ascent was made",)
                parts += [] if found is None else run_all(subject, plan, found, best)
    if subject.eps > torch.finfo(subject.dtype).eps:
        notes += (INSIDE,)
    return replace(_curve(plan, best, parts, settling, notes), eigenvalues=_eigenvalues(model))


def _eigenvalues(model: Callable[..., Any]) -> np.ndarray | None:
    known = closed_form.step_eigenvalues(model)
    return None if known is None else known.cpu().numpy()


def _check_arguments(
    probe: str, form: str, horizon: int, budget: int, dt: float, norm: float, amplitudes: Sequence[float]
) -> None:
    if form != "auto" and probe != "reversed":
        raise ArgumentError(f"reversed_form is for probe='reversed', came {probe=}")
    if horizon < 1 or budget < 1 or not 0 < dt < math.inf or not norm >= 1:
        raise ArgumentError(
            f"needs horizon >= 1, budget >= 1, dt > 0, norm >= 1; came {horizon=} {budget=} {dt=} {norm=}"
        )
    if not amplitudes or not all(math.isfinite(a) and a > 0 for a in amplitudes):
        raise ArgumentError(f"amplitudes must be finite numbers above 0, came {tuple(amplitudes)}")


def _as_candidates(candidates: Tensor | None, input_size: int) -> Tensor | None:
    if candidates is None:
        return None
    if candidates.ndim != 2 or candidates.shape[1] != input_size or len(candidates) == 0:
        raise ShapeError(f"candidates must be (rows, {input_size}), one x a row; came {tuple(candidates.shape)}")
    if not bool((candidates.abs().amax(-1) > 0).all() and torch.isfinite(candidates).all()):
        raise ArgumentError("candidates: no x may be 0, NaN or infinite")
    return candidates.detach().double().cpu()


def _first_round(inputs: int, budget: int, amplitudes: Sequence[float], generator: torch.Generator) -> Tensor:
    tried = directions(inputs, budget, generator)
    if 2**inputs <= budget:
        return at_amplitudes(tried, amplitudes)
    return sorted(amplitudes)[len(amplitudes) // 2] * tried  # the other amplitudes follow for the best directions


def _lead(
    subject: Subject, probe: str, x: Tensor, burn_in: int | None, longest: int | None, form: Form, horizon: int
) -> tuple[Settling, Form]:
    if form == "window":
        return Settling(0, True, 0.0), "window"
    constant = x if probe == "reversed" else torch.zeros(1, subject.input_size)
    if burn_in is not None:
        if burn_in < (1 if probe == "reversed" else 0):
            raise ArgumentError(f"burn_in must not be negative, and at least 1 for the reversed probe; came {burn_in}")
        return settle_for(subject, constant, burn_in), "stream"
    wait = longest or longest_settling(subject, len(constant))
    if subject.longest is not None:
        wait = min(wait, subject.longest - horizon - 1)
        if wait < SHORTEST:
            raise ArgumentError(
                f"the model takes {subject.longest} steps and {SHORTEST} are needed before a probe: {horizon=} may be at "
                f"most {subject.longest - SHORTEST - 1}"
            )
    settling = settle(subject, constant, wait, keep_state=probe != "reversed")
    if probe == "reversed" and form == "auto" and not settling.settled and horizon <= WINDOWED:
        return Settling(0, True, 0.0), "window"
    return settling, "stream"


def _search(
    subject: Subject, plan: Plan, first: Tensor, best: Best, amplitudes: Sequence[float] | None, budget: int
) -> list[Measured]:
    inputs = first.shape[1]
    guided = amplitudes is not None and 2**inputs > budget >= inputs
    parts = run_all(subject, plan, first, best, keep=guided)
    if amplitudes is None or 2**inputs <= budget:
        return parts
    if guided:
        responses = torch.cat([part.responses for part in parts if part.responses is not None])
        patterns = sign_patterns(responses.cpu(), budget)
        middle = sorted(amplitudes)[len(amplitudes) // 2]
        parts = [_light(part) for part in parts] + run_all(subject, plan, middle * patterns, best)
    # the directions that reach the sup at most times, at the other amplitudes
    winners, count = np.unique(np.sign(best.maximiser), axis=0, return_counts=True)
    top = torch.from_numpy(winners[np.argsort(-count)][: max(budget // (2 * len(amplitudes)), 1)])
    return parts + run_all(subject, plan, at_amplitudes(torch.cat([top, -top]), amplitudes), best)


def _light(part: Measured) -> Measured:
    return Measured(part.values, part.floors, part.rest, part.leak)


def _curve(plan: Plan, best: Best, parts: list[Measured], settling: Settling, notes: tuple[str, ...]) -> MemoryCurve:
    rest = parts[0].rest
    leak = max(part.leak for part in parts)
    if leak > 1:
        raise NotCausalError(
            f"the model is not causal: outputs before the probe moved because of it, {leak:.3g} times more than "
            "rounding may do. Use repeated_input_memory for models that see the whole input."
        )
    status: CurveStatus = "ok"
    finite = bool(np.isfinite(best.values).all())
    if not settling.settled and (finite or math.isfinite(settling.remaining)):
        status = "unsettled"
        what = "x" if plan.probe == "reversed" else "0"
        notes += (
            f"on constant input {what} the output still moved by {settling.remaining:.3g} after {settling.steps} "
            f"steps{HELPS}",
        )
    if not finite:
        status = "not finite"
        first = int(np.argmax(~np.isfinite(best.values)))
        notes += (f"outputs are NaN or infinite from t = {first * plan.dt:g} on; there the curve is inf",)
    return MemoryCurve(
        time=np.arange(plan.horizon + 1) * plan.dt,
        values=best.values,
        probe=plan.probe,
        normalization=plan.normalization,
        norm=plan.norm,
        dt=plan.dt,
        maximiser=best.maximiser,
        floor=best.floor,
        status=status,
        notes=notes,
        burn_in=settling.steps,
        zero_input=rest.double().cpu().numpy(),
        tried=best.tried,
    )
