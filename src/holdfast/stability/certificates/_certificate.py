"""certify: what can be promised about the recurrences of a model, from their weights alone."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Complex
from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast._codec import plain
from holdfast._record import Record
from holdfast._types import Time
from holdfast.errors import ArgumentError, listed, unknown_name
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Points, Rule
from holdfast.laws import AbstractLaw
from holdfast.memory.preserve import undisturbed
from holdfast.nn import RecurrenceView, recurrences
from holdfast.nn._activations import MAX_SLOPES
from holdfast.nn._precision import HALF_DTYPES, widened
from holdfast.nn._recurrent_weight import Structure
from holdfast.nn._views.reads import Reads, Zeros, read_along, reads_on_zeros, settle_views
from holdfast.nn._views.rest import Equilibria, Equilibrium, find_equilibria, runs_away
from holdfast.nn._views.stated import stated_view
from holdfast.stability.certificates._along import Restless, TrajectoryExponent, exponent_along, restless
from holdfast.stability.certificates._lyapunov import (
    Growth,
    Lyapunov,
    MatrixAnalysis,
    analyse_diagonal,
    analyse_matrix,
    as_matrix,
)
from holdfast.stability.certificates._memory_bound import MemoryBound, memory_bound, weight_bound
from holdfast.stability.certificates._scope import CertificateScope, ContractionBound, EulerStep, remarks, scope_of
from holdfast.stability.certificates._selective_steps import SELECTIVE_NOTE, SelectiveSteps, steps_seen

CertificateStatus = Literal["stable", "marginal", "unstable", "undecided"]
MAX_ROWS = 2048  # rows of a dense matrix; eigenvalues of 2048 take about 20 s on two cores
BOUNDARY_SHARE = 1e-12  # a margin this small, as a share of the largest eigenvalue, is the boundary itself


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Record):
    """The certificate of one recurrence; of a model with several, that of the worst, with all of them in `parts`.

    Args:
        path: name of the weight or layer in the model; empty for the model itself.
        kind: the kind of recurrence, in words.
        time: "continuous" or "discrete".
        status: "stable", "marginal" (on the boundary up to rounding), "unstable", or "undecided" where no state of rest was
            found at which a nonlinear recurrence could be linearized.
        eigenvalues: of the recurrence, complex (modes,), per step or per unit of time as `time` says; of a nonlinear one those
            of the Jacobian at its first equilibrium.
        spectral: spectral abscissa max Re lam, per unit of time, in continuous time; spectral radius max |lam|, per step, in
            discrete time.
        numerical: numerical abscissa per unit of time, or |W|_2 per step: the largest growth of a state at once.
        margin: distance to the stability boundary, per step, dt included: 1 - the largest factor by which a step
            multiplies a mode, so that layers of all kinds can be compared. Negative beyond the boundary.
        continuous_margin: -max Re lam, per unit of time; None in discrete time.
        departure: Henrici's departure from normality as a share of |W|; 0 for a normal W.
        lyapunov: solution P (n, n) of the Lyapunov equation; None where the recurrence is not stable.
        growth: bound on the transient growth and the largest norm seen; None where the recurrence is not stable.
        euler: whether the Euler method is stable at the layer's step size; None where the layer does not use it.
        equilibria: the equilibria found of a gated or nonlinear recurrence while the model reads zeros.
        memory: the memory bound of StableSSM, Thm 3.1, and the measured memory, for real diagonal layers.
        weight_bound: the size of the weights that a target requires at the horizon (StableSSM, eq. 56), where one was
            given.
        notes: remarks, in words.
        parts: the certificates of all recurrences, where there are several.
        scope: "global" where the status holds from every state (linear recurrences, and nonlinear ones that contract),
            "local" where it holds near that equilibrium only, "stated" where only the caller says that the weight is a
            recurrence at all.
        contracting: factor per step by which two states that read the same inputs approach each other, where a nonlinear
            recurrence contracts; else None.
        selective: the largest exp(dt A), and the step sizes, on the inputs given, where they come from the input.
        along: growth rate per step of small deviations along the inputs given, with its error; None without inputs.
        restless: what a nonlinear recurrence does on zero input where it reaches no stable state of rest.
    """

    _parts: ClassVar[tuple[type, ...]] = (
        Lyapunov, Growth, EulerStep, Equilibrium, MemoryBound, ContractionBound, SelectiveSteps, TrajectoryExponent,
        Restless,
    )  # fmt: skip

    path: str
    kind: str
    time: Time
    status: CertificateStatus
    eigenvalues: Complex[np.ndarray, " n"]
    spectral: float
    numerical: float
    margin: float
    departure: float
    continuous_margin: float | None = None
    lyapunov: Lyapunov | None = None
    growth: Growth | None = None
    euler: EulerStep | None = None
    equilibria: tuple[Equilibrium, ...] = ()
    memory: MemoryBound | None = None
    weight_bound: float | None = None
    notes: tuple[str, ...] = ()
    parts: tuple[Certificate, ...] = ()
    scope: CertificateScope = "global"
    contracting: ContractionBound | None = None
    selective: SelectiveSteps | None = None
    along: TrajectoryExponent | None = None
    restless: Restless | None = None

    @property
    def spectral_abscissa(self) -> float | None:
        """max Re lam; None in discrete time."""
        return self.spectral if self.time == "continuous" else None

    @property
    def spectral_radius(self) -> float | None:
        """max |lam|; None in continuous time."""
        return self.spectral if self.time == "discrete" else None

    @property
    def time_constant(self) -> float:
        """Steps in which a small deviation falls to 1/e at the margin; inf at the boundary, negative beyond: it grows."""
        return time_constant(self.margin)

    def summary(self) -> str:
        """A line: status, what was looked at, and the distance to the boundary."""
        whole = f", the worst of {len(self.parts)} recurrences" if self.parts else ""
        name = "spectral abscissa" if self.time == "continuous" else "spectral radius"
        at = f" of {self.path}" if self.path else ""
        return (
            f"{self.status}, {self.kind}{at}{whole}, {name} {self.spectral:.4g}, margin {self.margin:.4g}, {self.scope}"
        )

    def figure(self) -> Figure:
        """The eigenvalues in the complex plane, with the boundary of stability."""
        return spectrum(self.eigenvalues, self.time, self.summary())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; eigenvalues as [re, im]."""
        shown: dict[str, Any] = {
            n: getattr(self, n) for n in ("path", "kind", "time", "status", "scope", "spectral", "numerical")
        }
        shown |= {"margin": self.margin, "continuous_margin": self.continuous_margin}
        shown |= {"time_constant": self.time_constant, "departure": self.departure, "notes": self.notes}
        shown["eigenvalues"] = self.eigenvalues
        if self.lyapunov is not None:
            named = ("norm", "paper_bound", "condition", "applies", "reason")
            shown["lyapunov"] = {n: getattr(self.lyapunov, n) for n in named}
        if self.growth is not None:
            shown["growth"] = {n: getattr(self.growth, n) for n in ("bound", "rate", "measured", "time")}
        if self.euler is not None:
            shown["euler"] = {n: getattr(self.euler, n) for n in ("dt", "radius", "largest_dt", "stable")}
        if self.contracting is not None:
            shown["contracting"] = {n: getattr(self.contracting, n) for n in ("factor", "gain")}
        if self.selective is not None:
            shown["selective"] = {n: getattr(self.selective, n) for n in ("factor", "smallest", "largest", "steps")}
        if self.along is not None:
            shown["along"] = {
                n: getattr(self.along, n) for n in ("exponent", "error", "time_constant", "steps", "rows")
            }
        if self.restless is not None:
            shown["restless"] = {n: getattr(self.restless, n) for n in ("kind", "period", "largest")}
        shown["equilibria"] = [
            {"margin": e.margin, "stable": e.stable, "reached": e.reached, "largest": float(np.abs(e.state).max())}
            for e in self.equilibria
        ]
        if self.memory is not None:
            shown["memory_bound"] = {n: getattr(self.memory, n) for n in ("constant", "rate", "weight_norm", "ratio")}
        shown["weight_bound"] = self.weight_bound
        shown["parts"] = [part.to_dict() for part in self.parts]
        return plain(shown, exact=False)


@checked
def certify(
    module: nn.Module,
    weight: str | None = None,
    *,
    time: Time | None = None,
    structure: Structure | None = None,
    inputs: Tensor | None = None,
    horizon: int = 200,
    target: AbstractLaw | None = None,
    starts: int = 16,
    limit: int = MAX_ROWS,
    seed: int = 0,
) -> Certificate:
    """What the recurrent weights guarantee: spectrum, margin, Lyapunov solution, transient growth, decay, memory.

    Of every recurrence that `holdfast.recurrences` knows; nonlinear ones (torch.nn.RNN, GRU and LSTM, gated layers, steps
    that you describe) are linearized at their equilibria, on what they read while the whole model rests on zero input (or on
    token 0): a layer behind a bias or another layer does not read zeros there. With `inputs` the exponent of small
    deviations along them is reported beside it. The model is left as it was.

    Continuous time: eigenvalues need Re lam < 0 (iat, Thm 3.9), and |1 + dt lam| < 1 where the layer steps by Euler's
    rule. P solves W'P + PW = -I; iat, Lemma A.8, gives |P| <= 1/(2 beta0), which can fail where W is not normal: both numbers
    are reported. From P: |e^{Wt}| <= sqrt(cond P) e^{-t/(2|P|)}. GRU: the Jacobian at every equilibrium found, not at 0
    alone (iat, App. J). Selective recurrences (SelectiveSSM, Mamba, transformers' mixers) multiply the state by
    exp(dt A) with dt from the input: stable means that no input makes a factor larger than 1, and with `inputs` the
    largest factor over them is reported.

    Args:
        module: a layer or a model.
        weight: name of one recurrence or of one layer, to look at it alone; or of a weight of any module that you say is a
            recurrence, which the certificate then rests on.
        time: how a named weight acts: "continuous" or "discrete".
        structure: whether a named weight is a square matrix ("dense") or holds eigenvalues ("diagonal"), where its
            shape does not say, as for a table of eigenvalues.
        inputs: data that the model is run on once, as it takes them: (batch, time, features), or tokens. Each recurrence is
            then also followed along what it reads there: exponents, and the steps of selective ones.
        horizon: steps over which the memory of a real diagonal layer is measured and compared with StableSSM, Thm 3.1.
        target: a decay law; the weights that a real diagonal layer needs to have its memory at the horizon are then
            given (StableSSM, eq. 56).
        starts: number of states from which equilibria are searched.
        limit: most rows of a dense recurrence; larger ones are refused.
        seed: of these states.

    Returns:
        a Certificate of the worst recurrence, with all of them in `parts`.

    Raises:
        ArgumentError: no recurrence is known in the model, a dense one has more than `limit` rows, or it is not
            finite.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.DiagonalSSM(1, 4, eigenvalues=-torch.tensor([0.01, 0.1, 0.5, 1.0]))
        >>> certificate = holdfast.certify(layer)
        >>> certificate.status, round(certificate.time_constant)
        ('stable', 100)
    """
    if not isinstance(module, nn.Module):
        raise ArgumentError(f"module must be an nn.Module, got {module!r}; build one first, as nn.RNN(1, 8)")
    if time not in (None, "continuous", "discrete"):
        raise unknown_name("kind of time", time, ("continuous", "discrete"))
    if structure not in (None, "dense", "diagonal"):
        raise unknown_name("structure", structure, ("dense", "diagonal"))
    if horizon < 1 or starts < 1 or limit < 1:
        raise ArgumentError(f"horizon, starts and limit must be >= 1, got {horizon=}, {starts=}, {limit=}")
    module, inputs = at_least_float32(module, inputs)
    with undisturbed(module):
        views = _views(module, weight, time, structure)
        parts = certificates(module, views, inputs, Options(starts, limit, seed, horizon, target), whole=weight is None)
    if target is not None and all(part.weight_bound is None for part in parts):
        raise ArgumentError(
            "target= bounds the memory of real diagonal layers (StableSSM, eq. 56), and the model has none; leave it out"
        )
    worst = min(parts, key=lambda part: (_rank(part), part.margin))
    return worst if len(parts) == 1 else replace(worst, parts=parts)


def certificates(
    module: nn.Module,
    views: tuple[RecurrenceView, ...],
    inputs: Tensor | None,
    options: Options,
    *,
    whole: bool = True,
    zeros: Zeros | None = None,
) -> tuple[Certificate, ...]:
    """The certificate of each view, looked at where the model rests; the model is put back by the caller.

    Args:
        module: the whole model, in evaluation mode.
        views: its recurrences.
        inputs: data to follow them along; None for none.
        options: how they are looked at.
        whole: whether the views are those of the whole model, and not of one layer or weight.
        zeros: makes the zero input of so many steps; None: of the shape of the inputs, or by the size that the model tells.
    """
    if inputs is not None and not whole:
        raise ArgumentError("inputs= are run through the whole model, got weight= too; leave one of them out")
    if zeros is None and inputs is not None:
        # a model that tells no size (a convolution or a linear layer first) is reported it by its data
        zeros = partial(_zeros_like, inputs)
    unseen = settle_views(module, views, zeros)
    seen = None if inputs is None else read_along(module, views, inputs)
    parts = []
    for view in views:
        part = _certificate(view, options)
        first = part.equilibria[0] if part.equilibria else None
        if view.nonlinear and not (first is not None and first.stable and first.reached):
            part = _with_unrest(part, module, view, zeros)
        if seen is not None:
            part = replace(part, along=exponent_along(view, seen))
        note = () if unseen is None or not (view.nonlinear or view.selective) or view.module is module else (unseen,)
        parts.append(_with_steps(replace(part, notes=(*part.notes, *note)), view, seen))
    return tuple(parts)


def _zeros_like(inputs: Tensor, steps: int) -> Tensor:
    return inputs.new_zeros((1, steps, *inputs.shape[2:]))


def _with_unrest(part: Certificate, module: nn.Module, view: RecurrenceView, zeros: Zeros | None) -> Certificate:
    """What it does instead of resting, along the states that zero input takes it through."""
    reads = reads_on_zeros(module, view, zeros)
    found = None if reads is None else restless(view, reads)
    return part if found is None else replace(part, restless=found, notes=(*part.notes, found.words()))


def at_least_float32(module: nn.Module, inputs: Tensor | None) -> tuple[nn.Module, Tensor | None]:
    """As they are, or in float32 where weights have 16 bits: spectra and equilibria have no such arithmetic."""
    if not any(p.dtype in HALF_DTYPES for p in module.parameters()):
        return module, inputs
    return copy.deepcopy(module).float(), None if inputs is None else widened(inputs)


def time_constant(margin: float) -> float:
    """-1 / log(1 - margin): steps to 1/e where each step multiplies by 1 - margin; inf at 0, negative beyond.

    Args:
        margin: distance to the boundary of one step.
    """
    if math.isnan(margin) or margin == 0:
        return math.nan if margin else math.inf
    return 0.0 if margin >= 1 else -1 / math.log1p(-margin)


@dataclass(frozen=True)
class Options:
    """How equilibria are looked for, the largest state that is analysed, and what a memory is compared with."""

    starts: int = 16
    limit: int = MAX_ROWS
    seed: int = 0
    horizon: int = 200
    target: AbstractLaw | None = None


def _views(
    module: nn.Module, weight: str | None, time: Time | None, structure: Structure | None
) -> tuple[RecurrenceView, ...]:
    if weight is not None:
        if (layer := _layer_at(module, weight)) is not None:
            module = layer
        else:
            # a known recurrence needs no statement by the caller; with `structure` the caller means something else
            known = [view for view in recurrences(module) if view.path == weight and time in (None, view.time)]
            return tuple(known) if known and structure is None else (stated_view(module, weight, time, structure),)
    if time is not None or structure is not None:
        raise ArgumentError(
            "time= and structure= describe a weight given by name; pass weight= too, or leave time and structure out"
        )
    views = recurrences(module)
    if not views:
        raise ArgumentError(
            f"expected a model with a recurrence that holdfast recognizes, got a {type(module).__name__} without one; "
            "describe its step with holdfast.nn.StepFunction, or name its recurrent weight: certify(model, "
            "'layer.weight', time='discrete'), on the command line --weight layer.weight --time discrete. The model's "
            f"weights: {listed(n for n, _ in module.named_parameters())}"
        )
    return views


def _layer_at(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def _with_steps(part: Certificate, view: RecurrenceView, seen: Reads | None) -> Certificate:
    """The certificate of a selective recurrence with what that means, and with the steps that were seen."""
    if not view.selective:
        return part
    steps = None if seen is None or view.module not in seen.steps else steps_seen(*seen.steps[view.module])
    notes = (*part.notes, SELECTIVE_NOTE, *(() if steps is None else (steps.words(),)))
    return replace(part, notes=notes, selective=steps)


def _certificate(view: RecurrenceView, options: Options) -> Certificate:
    equilibria = _equilibria(view, options) if view.nonlinear else None
    scope, notes, contracting = scope_of(view)
    if equilibria is not None and not equilibria.points:
        return _without_equilibrium(view, notes)
    analysis = _analyse(view, equilibria, options.limit)
    euler = None if view.euler is None else _euler(analysis.eigenvalues, view.euler)
    status = _status(analysis, euler)
    # the bound of StableSSM needs beta0 > 0
    memory, needed = _memory(view, options.horizon, options.target) if status == "stable" else (None, None)
    return Certificate(
        path=view.path,
        kind=view.kind,
        time=view.time,
        status=status,
        eigenvalues=analysis.eigenvalues,
        spectral=analysis.spectral,
        numerical=analysis.numerical,
        margin=_step_margin(view, analysis, euler),
        continuous_margin=analysis.margin if view.time == "continuous" else None,
        departure=analysis.departure,
        lyapunov=analysis.lyapunov,
        growth=analysis.growth,
        euler=euler,
        equilibria=() if equilibria is None else equilibria.points,
        memory=memory,
        weight_bound=needed,
        notes=(*notes, *remarks(analysis, euler, equilibria)),
        scope=scope,
        contracting=contracting,
    )


def _step_margin(view: RecurrenceView, analysis: MatrixAnalysis, euler: EulerStep | None) -> float:
    """That of the view; where it is one of the eigenvalues at hand, they are not computed again."""
    # the margin of one step is 1 - radius then, which is at hand
    if view.time == "discrete" and (view.nonlinear or view.matrix() is not None):
        return analysis.margin
    return 1 - euler.radius if view.nonlinear and euler is not None else view.margin()


def _memory(view: RecurrenceView, horizon: int, target: AbstractLaw | None) -> tuple[MemoryBound | None, float | None]:
    """The bound of StableSSM, Thm 3.1, and the weights that its eq. 56 asks for, where the layer is of that kind."""
    model = view.state_space_model()
    if model is None:
        return None, None
    layer: Any = view.module
    memory = memory_bound(layer, horizon)
    if target is None:
        return memory, None
    end = float(memory.time[-1])
    wanted = float(target(end))
    return memory, weight_bound(memory.rate, end, wanted, inputs=layer.features, lipschitz=MAX_SLOPES[model.activation])


def _equilibria(view: RecurrenceView, options: Options) -> Equilibria:
    name = view.path or view.kind
    for path, p in view.module.named_parameters():  # a search would only say that it found none
        if count := int((~torch.isfinite(p)).sum()):
            raise ArgumentError(f"{name}: {path} must be finite, got {count} of {p.numel()} entries that are not")
    step = view.step_map()
    if step.size > options.limit:
        raise ArgumentError(
            f"{name}: expected a state of at most {options.limit} numbers, above which Jacobians take minutes, got "
            f"{step.size}; pass a larger limit= to do it anyway"
        )
    return find_equilibria(step, starts=options.starts, seed=options.seed)


def _analyse(view: RecurrenceView, equilibria: Equilibria | None, limit: int) -> MatrixAnalysis:
    if equilibria is not None:
        # the first is the one that the state reaches from 0; Jacobians of a float32 step are rounded as such
        return analyse_matrix(equilibria.jacobians[0], view.time, torch.finfo(torch.float32).eps)
    W = view.matrix()
    if W is None:
        return analyse_diagonal(view.eigenvalues(), view.time)
    return analyse_matrix(as_matrix(W, view.path or "W", limit), view.time, torch.finfo(W.dtype).eps)


def _without_equilibrium(view: RecurrenceView, notes: tuple[str, ...]) -> Certificate:
    away = runs_away(view.step_map())
    note = "no equilibrium was found" + (
        ", and on zero input the state grows without bound"
        if away
        else ", which decides nothing: a longer search (starts=64) may find one"
    )
    status: CertificateStatus = "unstable" if away else "undecided"
    nothing = np.empty(0, dtype=complex)
    nan = math.nan
    return Certificate(
        view.path, view.kind, view.time, status, nothing, nan, nan, nan, nan, notes=(*notes, note), scope="local"
    )


def _euler(eigenvalues: np.ndarray, dt: float) -> EulerStep:
    """|1 + dt lam|^2 < 1 while dt < -2 Re lam / |lam|^2."""
    radius = float(np.abs(1 + dt * eigenvalues).max())
    size = np.abs(eigenvalues) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        # an eigenvalue on the right is unstable at every step: no dt is small enough
        limits = np.where(eigenvalues.real < 0, -2 * eigenvalues.real / size, 0.0)
    return EulerStep(dt, radius, float(limits.min()))


def _status(analysis: MatrixAnalysis, euler: EulerStep | None) -> CertificateStatus:
    scale = max(1.0, float(np.abs(analysis.eigenvalues).max()))
    # eigenvalues of size |lam| are known to a rounding of |lam|, however small the margin is
    if abs(analysis.margin) <= BOUNDARY_SHARE * scale:
        return "marginal"
    if analysis.margin < 0 or (euler is not None and not euler.stable):
        return "unstable"
    return "stable"


def _rank(part: Certificate) -> int:
    # the status before the margin: an undecided recurrence has none
    return {"unstable": 0, "undecided": 1, "marginal": 2, "stable": 3}[part.status]


def spectrum(eigenvalues: np.ndarray, time: Time, words: str) -> Figure:
    """Eigenvalues in the plane: stable inside of the unit circle (discrete time) or left of 0 (continuous time)."""
    layers: list[Layer] = [Points("eigenvalues", eigenvalues.real, eigenvalues.imag)]
    if time == "discrete":
        angle = np.linspace(0, 2 * np.pi, 201)
        layers.append(Line("boundary", np.cos(angle), np.sin(angle), dash="dot", colour=6))
    else:
        layers.append(Rule("boundary", x=0.0))
    panel = Panel("Eigenvalues", Axis("real part"), Axis("imaginary part"), layers, equal=time == "discrete")
    return Figure("spectrum", f"Eigenvalues in the complex plane: {words}.", [panel])
