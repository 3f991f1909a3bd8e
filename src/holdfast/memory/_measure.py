"""memory_function: the memory of any causal sequence model, from its outputs alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast._arguments import as_generator, checked
from holdfast.errors import ArgumentError, ShapeError
from holdfast.memory import closed_form
from holdfast.memory._checks import (
    MAX_SETTLING_STEPS,
    MIN_SETTLING_STEPS,
    Settling,
    check_far_sight,
    longest_settling,
    prepare,
    settle,
    settle_for,
)
from holdfast.memory._curve import Bound, CurveStatus, MemoryCurve, NotCausalError
from holdfast.memory._options import ROUNDS_INSIDE, InputSearch, InputSearchName, Probe, ProbeName, Run
from holdfast.memory._probes import Measured, ProbePlan
from holdfast.memory._search import (
    MAX_WINDOW_STEPS,
    BestResponse,
    add_linear_sup,
    ascend,
    at_amplitudes,
    directions,
    has_linear_sup,
    measure_window,
    run_all,
    scales,
    sign_patterns,
    superposes,
)
from holdfast.memory._subject import Subject

MIN_DIRECTIONS = 2  # of input, however large the model is
ROUNDS = 3  # runs of all directions: themselves, the sign vectors that they point to, and other amplitudes


@checked
def memory_function(
    model: Callable[..., Any],
    *,
    input_size: int = 1,
    horizon: int = 1000,
    probe: ProbeName | Probe = "heaviside",
    search: InputSearchName | InputSearch = "auto",
    double: bool = False,
    run: Run | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MemoryCurve:
    """The memory function M(t) of a causal sequence model, at t = 0, dt, ..., horizon dt.

    M(t) is how strongly the output at time t still answers to an input at time 0, for the input x that shows it most:

        heaviside   M(t) = sup_x |d/dt H_t(u^x)| / |x|_inf,  u^x = x from t = 0 on, 0 before
        impulse     M(t) = sup_x |H_t(i^x)| / |x|_inf,       i^x = x at t = 0 only
        reversed    M(t) = sup_x |d/dt H_t(r^x)| / |x|_inf,  r^x = x before t = 0, 0 from then on

    ("Inverse Approximation Theory", Def. 3.1, App. F and App. G.) H is the output minus the response to zero input;
    d/dt is the forward difference over dt, so that M(0) holds the jump. For a linear model all three are |rho(t)|_1.

    The model first runs on zeros until its output stands still. Of a linear model the sup over x is a sum of absolute
    values: the curve is exact for any number of inputs with one output or norm=inf, and for other norms up to
    2^input_size <= budget. Of other models it is searched, and the values are lower bounds; `bound` of the curve says
    which. A model counts as linear if its responses to random x of the smallest and the largest amplitude add up, to
    rounding. The model, its modes, its gradients and the random states are left as they were.

    Args:
        model: maps inputs (batch, time, features) to outputs (batch, time, outputs), or to a tuple or list that begins
            with them; with one output (batch, time) will do. A model called as `model(x, state)` that returns
            `(outputs, state)` is run on zeros once for all probes.
        input_size: number of input features.
        horizon: last step at which M is measured; the curve has horizon + 1 times.
        probe: "heaviside", "impulse" or "reversed", as above, or a `Probe` with its norm, dt and burn-in.
        search: which x are tried: "auto", "grid", "ascent", or a `InputSearch` with its candidates, amplitudes and seed.
        double: measure a float64 copy of an nn.Module: the rounding floor is then 1e-16 of the output, not 1e-7.
        run: how the model is called (layout, mode, dtype, device); None is `Run()`.
        progress: called as `progress(done, total)` while the "window" form runs.

    Assumed unchecked: the model is time-homogeneous, and a settled output means a settled state. Checked, with a
    ModelError that names the fix: shapes, that the same input gives the same output, that rows of a batch do not
    influence each other, and causality over the horizon. Outputs that are not finite or do not settle are a status of
    the curve.

    Returns:
        a MemoryCurve: times, values, rounding floor, and whether values are exact or lower bounds.

    Raises:
        ModelError: a model that is not causal, not repeatable, or mixes rows of a batch; the message names the fix.

    Example:
        >>> import torch, holdfast
        >>> curve = holdfast.memory_function(lambda x: 0.5 * x, horizon=8)  # no memory of its own
        >>> curve.values.round(3).tolist()[:3]
        [0.5, 0.0, 0.0]
    """
    if horizon < 1:
        raise ArgumentError(f"horizon must be at least 1, got {horizon}")
    probe = Probe(probe) if isinstance(probe, str) else probe
    search = InputSearch(search) if isinstance(search, str) else search
    run = run or Run()
    generator = as_generator(search.seed)
    with run.undisturbed(model), torch.no_grad():
        subject = run.subject(model, input_size, double=double)
        prepare(subject, generator)
        # over the whole horizon: the short runs of `prepare` do not see a look-ahead in long blocks
        check_far_sight(subject, horizon + 1, generator.initial_seed())
        first = _first_round(search, input_size, generator)
        first, few = _affordable(subject, probe, first, MAX_SETTLING_STEPS + horizon)
        settling, windowed = _lead(subject, probe, first, horizon)
        if windowed:
            first, fewer = _affordable(subject, probe, first, (horizon + 1) * (horizon + 2))
            few += fewer
        # from a state the burn-in is not run again with each probe
        lead = settling.steps if settling.state is None else 0
        if not windowed and search.candidates is None:
            search, fewer = _cheaper(subject, search, lead + horizon)
            first, few = (_first_round(search, input_size, generator), few + fewer) if fewer else (first, few)
        plan = ProbePlan(probe, lead, horizon, start=settling.state)
        best = BestResponse(horizon + 1, input_size)
        notes: tuple[str, ...] = few
        if windowed:
            parts = measure_window(subject, plan, first, best, progress)
            bound = _bound_of_window(subject, plan, search, first, parts)
        else:
            parts, bound, remarks = _find_sup(subject, plan, search, first, best)
            notes += remarks
        _refuse_leak(subject, plan, first, parts)
    # the floor is already that of float32; a note says why a float64 copy did not lower it
    if subject.eps > torch.finfo(subject.dtype).eps:
        notes += (ROUNDS_INSIDE,)
    curve = _curve(plan, best, parts, settling, notes)
    return replace(curve, eigenvalues=_eigenvalues(model), bound=bound if curve.status == "ok" else "lower bound")


def _eigenvalues(model: Callable[..., Any]) -> np.ndarray | None:
    known = closed_form.step_eigenvalues(model)
    return None if known is None else known.cpu().numpy()


def _first_round(search: InputSearch, inputs: int, generator: torch.Generator) -> Tensor:
    if search.candidates is not None:
        if search.candidates.shape[1] != inputs:
            raise ShapeError(f"candidates must be (rows, {inputs}), got {tuple(search.candidates.shape)}")
        return search.candidates.detach().double().cpu()
    tried = directions(inputs, search.directions, generator)
    if _has_all_signs(search, inputs):
        return at_amplitudes(tried, search.sizes)
    return search.middle * tried  # the other amplitudes follow for the best directions


def _has_all_signs(search: InputSearch, inputs: int) -> bool:
    return search.candidates is None and 2**inputs <= search.directions


def _lead(subject: Subject, probe: Probe, x: Tensor, horizon: int) -> tuple[Settling, bool]:
    """What runs before the probe, and whether the window form, which needs nothing before it, takes its place."""
    at_rest = Settling(0, True, 0.0)
    if probe.form == "window":
        return at_rest, True
    is_reversed = probe.name == "reversed"
    # the reversed probe rests on x itself before t = 0, the others on zeros
    constant = x if is_reversed else torch.zeros(1, subject.input_size)
    if probe.burn_in is not None:
        return settle_for(subject, constant, probe.burn_in), False
    wait = probe.max_burn_in or longest_settling(subject, len(constant))
    if subject.longest is not None:
        wait = min(wait, subject.longest - horizon - 1)
        if wait < MIN_SETTLING_STEPS:
            raise ArgumentError(
                f"horizon must be at most {subject.longest - MIN_SETTLING_STEPS - 1} for a model that takes "
                f"{subject.longest} steps, {MIN_SETTLING_STEPS} of which it needs before the probe; got {horizon}"
            )
    settling = settle(subject, constant, wait, keep_state=not is_reversed)
    # a slow model never comes to rest on x; the window form needs no rest, and costs horizon^2 steps
    if is_reversed and probe.form == "auto" and not settling.settled and horizon <= MAX_WINDOW_STEPS:
        return at_rest, True
    return settling, False


def _find_sup(
    subject: Subject, plan: ProbePlan, search: InputSearch, first: Tensor, best: BestResponse
) -> tuple[list[Measured], Bound, tuple[str, ...]]:
    """Fills `best`; what was measured, whether it is the sup, and what has to be said."""
    if search.candidates is None and search.method != "grid" and not _has_all_signs(search, subject.input_size):
        if has_linear_sup(subject, plan) and superposes(subject, plan, search.sizes):
            return add_linear_sup(subject, plan, search.sizes, best), "exact", ()
        parts = _search_directions(subject, plan, search, first, best)
    else:
        parts = run_all(subject, plan, first, best)
        if _is_exact(subject, plan, search, first, parts):
            return parts, "exact", ()
    if search.method != "ascent":
        return parts, "lower bound", ()
    climbed = ascend(subject, plan, best, search.sizes)
    if climbed is None:
        return parts, "lower bound", ("the output has no gradient by x: no ascent was made",)
    return parts + run_all(subject, plan, climbed, best), "lower bound", ()


def _is_exact(subject: Subject, plan: ProbePlan, search: InputSearch, x: Tensor, parts: list[Measured]) -> bool:
    """Whether the model is linear and all sign vectors, where a convex function of x has its sup, were tried."""
    if not _has_all_signs(search, subject.input_size):
        return False
    if subject.input_size > 1:
        return superposes(subject, plan, search.sizes)
    return len(search.sizes) > 1 and scales(plan, x, parts)


def _bound_of_window(subject: Subject, plan: ProbePlan, search: InputSearch, x: Tensor, parts: list[Measured]) -> Bound:
    # a window has no burn-in, and this probe in its stream form would then be empty; what is linear is so for any probe
    step = replace(plan, probe=replace(plan.probe, name="heaviside", form="auto")) if len(x[0]) > 1 else plan
    return "exact" if _is_exact(subject, step, search, x, parts) else "lower bound"


def _search_directions(
    subject: Subject, plan: ProbePlan, search: InputSearch, first: Tensor, best: BestResponse
) -> list[Measured]:
    """Unit vectors (or random signs), the sign vectors that they point to, and the best of these at all amplitudes."""
    guided = search.directions >= subject.input_size
    parts = run_all(subject, plan, first, best, keep=guided)
    if guided:
        responses = torch.cat([part.responses for part in parts if part.responses is not None])
        patterns = sign_patterns(responses.cpu(), search.directions)
        parts = [part.without_responses() for part in parts]
        parts += run_all(subject, plan, search.middle * patterns, best)
    # the directions that reach the sup at most times, at the other amplitudes
    winners, count = np.unique(np.sign(best.maximiser), axis=0, return_counts=True)
    # half of the budget for other amplitudes, both signs of each direction
    kept = max(search.directions // (2 * len(search.sizes)), 1)
    top = torch.from_numpy(winners[np.argsort(-count)][:kept])
    return parts + run_all(subject, plan, at_amplitudes(torch.cat([top, -top]), search.sizes), best)


def _cheaper(subject: Subject, search: InputSearch, steps: int) -> tuple[InputSearch, tuple[str, ...]]:
    """Fewer directions where each is a long run of a large model, behind a burn-in that no state spares; and a note."""
    budget = max(MIN_DIRECTIONS, subject.affordable_rows(steps) // ROUNDS)
    if budget >= search.directions:
        return search, ()
    note = f"{budget} directions of input were tried, since the model is large and each is a run of {steps:,} steps"
    return replace(search, budget=budget), (note,)


def _affordable(subject: Subject, probe: Probe, x: Tensor, steps: int) -> tuple[Tensor, tuple[str, ...]]:
    """As many x as a minute allows of a reversed probe, which rests on each of them; and what has to be said."""
    rows = subject.affordable_rows(steps)
    if probe.name != "reversed" or rows >= len(x):
        return x, ()
    kept = x[torch.linspace(0, len(x) - 1, rows).long()]  # of all sizes
    return kept, (f"{rows} of {len(x)} inputs x were tried, since the model is large",)


def _refuse_leak(subject: Subject, plan: ProbePlan, x: Tensor, parts: list[Measured]) -> None:
    """NotCausalError where outputs before the probe moved because of it, and not because of chaos.

    Rows of one batch may be rounded in other ways, and a chaotic model makes that as large as its outputs. So where they
    differ, one batch is run twice with other inputs behind that time: a causal model repeats itself up to there.
    """
    leak = max(part.leak for part in parts)
    if not leak > 1:
        return
    u = plan.inputs(subject, x[: subject.rows_at_once(plan.steps)])
    changed = u.clone()
    changed[:, plan.lead :] = -u[:, plan.lead :]
    y, other = (subject(given)[:, : plan.lead] for given in (u, changed))
    if not bool(((y - other).abs() <= subject.tolerance(y)).all()):
        raise NotCausalError(
            f"expected a causal model, got one whose outputs before the probe change with it, by {leak:.3g} times "
            "what rounding explains; use repeated_input_memory for models that read the whole input at once"
        )


def _curve(
    plan: ProbePlan, best: BestResponse, parts: list[Measured], settling: Settling, notes: tuple[str, ...]
) -> MemoryCurve:
    # the same for every batch: all of them carry zero input
    rest = parts[0].rest
    status: CurveStatus = "ok"
    finite = bool(np.isfinite(best.values).all())
    # where the settling run itself diverged, "not finite" says it better
    if not settling.settled and (finite or math.isfinite(settling.remaining)):
        status = "unsettled"
        what = "x" if plan.probe.name == "reversed" else "0"
        notes += (
            f"on constant input {what} the output still moved by {settling.remaining:.3g} after {settling.steps} steps",
        )
    if not finite:
        status = "not finite"
        first = int(np.argmax(~np.isfinite(best.values)))
        notes += (f"outputs are NaN or infinite from t = {first * plan.probe.dt:g} on; there the curve is inf",)
    return MemoryCurve(
        time=np.arange(plan.horizon + 1) * plan.probe.dt,
        values=best.values,
        probe=plan.probe.name,
        normalization=plan.probe.normalization,
        norm=plan.probe.norm,
        dt=plan.probe.dt,
        maximiser=best.maximiser,
        floor=best.floor,
        status=status,
        notes=notes,
        burn_in=settling.steps,
        zero_input=rest.double().cpu().numpy(),
        tried=best.tried,
    )
