"""study_task: the memory that a task needs, from its inputs and targets alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float64
from torch import nn

from holdfast._arguments import checked, positive
from holdfast._record import Record
from holdfast.approximate import ExponentialSum, Method, fit_exponential_sum
from holdfast.decay._fit_decay import fit_decay
from holdfast.decay._result import AsymptoticLaw, DecayFit, UndecidedError
from holdfast.decay._task_data import Rows, make_rows, read_data
from holdfast.decay._task_kernel import TaskKernel, fit_task_kernel
from holdfast.decay._task_start import TaskStart, start_modes
from holdfast.errors import ArgumentError, HoldfastError, unknown_name
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Rule
from holdfast.memory import MemoryCurve
from holdfast.nn import LAYERS, AbstractRecurrent

LITTLE, NOTHING = 0.3, 0.05  # shares explained below which products are tried, and below which no steps are reported
COPIED = 0.999  # share explained by one step from which on targets may be the inputs themselves
MIN_ANSWERS, MIN_BLOCKS = 16, 4  # below which nothing can be held out
ORDERS = (1, 2, 3, 4, 6, 8, 12)  # numbers of modes that are tried
MIN_FITTED, MAX_FITTED = 8, 64  # lags that modes are fitted to
HOPELESS_ORDER = 2  # modes after which a sum that misses half of the kernel is not tried with more
FITTED_BY: tuple[Method, ...] = ("matrix_pencil", "nonlinear")  # modes; the first costs next to nothing
MAX_CANCELLATION = 100.0  # times the largest weight of the kernel that the weights of modes may be
ONE_PROFILE = 0.9  # share of the kernel's energy in one course over the lags, from which on that course is fitted
MIN_SHOWN = 1e-4  # of the largest weight: the foot of the figure
NOISE_L1 = math.sqrt(2 / math.pi)  # mean size of normal noise, in standard errors


@dataclass(frozen=True, eq=False, repr=False)
class TaskStudy(Record):
    """How far back the targets of a task depend on its inputs, by which law, and which modes represent it.

    Args:
        status: "decided", or "undecided" where the data do not show it; then nothing is recommended.
        reason: why it is undecided; empty otherwise.
        steps: the task needs inputs up to this many steps back: 99% of what kernels of any length explain.
        steps_interval: its 95% interval, in steps.
        explained: share of the targets' variance that the kernel explains where it was not fitted.
        explained_interval: its 95% interval, a share.
        lags: the longest distance of the kernel, in steps.
        curve: a MemoryCurve of the size of its weights on the inputs k steps back, k = 0 to `lags`.
        low: lower ends of the 95% intervals of the curve, (lags + 1,).
        high: upper ends, (lags + 1,).
        fit: the decay law of the curve.
        weights: the kernel (lags + 1, features, outputs).
        errors: standard errors of the weights, in their shape.
        modes: the sum of exponentials with the fewest modes that is as near as `eps` and the noise allow; None where there
            is none.
        eps: error of that sum, relative to the L1 norm of the kernel.
        reached: whether it is that near.
        products: whether it is a kernel of the products of two inputs of a step too, since inputs alone explain little.
        classes: whether targets are classes.
        complete: whether nothing lies before the first lag, since sequences begin there.
        answers: targets that were used.
        error: of the kernel on what was held out: the mean squared error, or the share of classes that it gets wrong.
        model_error: that of a model, on the same sequences, where one stands beside it.
        notes: what was left out.
    """

    _parts: ClassVar[tuple[type, ...]] = (MemoryCurve, DecayFit, AsymptoticLaw, ExponentialSum)

    status: Literal["decided", "undecided"]
    reason: str
    steps: int
    steps_interval: tuple[int, int]
    explained: float
    explained_interval: tuple[float, float]
    lags: int
    curve: MemoryCurve
    low: Float64[np.ndarray, " lags"]
    high: Float64[np.ndarray, " lags"]
    fit: DecayFit
    weights: Float64[np.ndarray, "lags features outputs"]
    errors: Float64[np.ndarray, "lags features outputs"]
    modes: ExponentialSum | None = None
    eps: float = 0.1
    reached: bool = False
    products: bool = False
    classes: bool = False
    complete: bool = False
    answers: int = 0
    error: float = math.nan
    model_error: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What the errors are."""
        return "share of wrong classes" if self.classes else "mean squared error"

    @property
    def tells(self) -> bool:
        """Whether the kernel explains enough for its steps to mean something."""
        return self.explained >= NOTHING and self.explained_interval[0] > 0

    @property
    def memoryless(self) -> bool:
        """Whether inputs of the same step explain the targets as well as longer kernels do."""
        return self.status == "decided" and self.steps_interval[1] == 0

    @property
    def slowest(self) -> float | None:
        """The slowest rate among the modes, per step; None where none are near enough.

        One that changes a mode by less than `eps` over all lags is not distinguishable from 0: then the rate that does.
        """
        if self.modes is None or not self.reached:
            return None
        return float(max(self.modes.rates.real.min(), self.eps / max(self.lags, 1)))

    @property
    def radius(self) -> float | None:
        """How small a change of the slowest rate, stored as it is, makes an error of `eps` by itself (StableSSM, eq. 76).

        A change beta of the rate r moves the kernel by |c| beta / ((r - beta) r) in L1; from beta = r on nothing is
        forgotten. None where no modes are near enough.
        """
        r = self.slowest
        if self.modes is None or r is None:
            return None
        weight = float(np.abs(self.modes.coefficients[int(self.modes.rates.real.argmin())]))
        allowed = self.eps * float(self.curve.values.sum()) / max(weight, 1e-300)
        return allowed * r * r / (1 + allowed * r)

    @property
    def direct(self) -> bool | None:
        """Whether a family of models with direct weights can hold the law, ever more exactly; None where it is unknown.

        It can where memory decays exponentially, or ends. A power law needs ever slower modes, whose radius goes to 0.
        """
        known: dict[str, bool] = {"exponential": True, "finite": True, "polynomial": False}
        return known.get(self.fit.law) if self.status == "decided" else None

    @property
    def time_constants(self) -> np.ndarray:
        """Where modes should start, in steps to 1/e, the fastest first; refused where the study is undecided.

        Those of `modes`; where no few modes hold the kernel (a delay), or every step counts alike, from one step to
        `steps`.
        """
        if self.status == "undecided":
            raise UndecidedError(f"the data do not show what memory the task needs: {self.reason}; nothing was changed")
        level = self.fit.law == "non-decaying"
        if self.modes is not None and (slowest := self.slowest) is not None and not level:
            return np.sort(1 / np.maximum(self.modes.rates.real, slowest))
        return np.array([1.0, max(float(self.steps), 1.0)])

    @checked
    def initialize(self, model: nn.Module) -> TaskStart:
        """Starts the modes and gates of a model from the law of the task, in place; other weights stay as they are.

        Every recurrence that `holdfast.recurrences` finds gets modes whose time constants follow `time_constants`: the
        slowest one stays the slowest. Of LSTM and GRU those are set by the bias of the gate that keeps the state, and the
        input gate of an LSTM follows so that i / (1 - f) stays: a state that lasts adds up no more of its inputs than
        before. Frozen weights stay, shared ones are set once.

        Args:
            model: the model, changed in place; `undo()` of the result takes it back.
        """
        return start_modes(model, self.time_constants)

    @checked
    def layer(self, features: int, state_size: int, kind: str = "DiagonalSSM", **choices: Any) -> AbstractRecurrent:
        """A layer whose modes start from the law of the task.

        Args:
            features: number of input features.
            state_size: number of states.
            kind: its class, by its name in `holdfast.nn.LAYERS`.
            choices: the other arguments of that class.
        """
        if kind not in LAYERS:
            raise unknown_name("layer", kind, LAYERS)
        constants = self.time_constants
        layer = LAYERS[kind](features, state_size, **choices)
        start_modes(layer, constants)
        return layer

    def summary(self) -> str:
        """A line: steps with their interval, what is explained, the law and the modes, or why it is undecided."""
        kind = "inputs and their products" if self.products else "inputs"
        share = f"a kernel of {kind} explains {self.explained:.0%} of the targets"
        if self.status == "undecided":
            return f"undecided: {self.reason}; {share}"
        if self.memoryless:
            return f"needs no memory: {self.same_step()}"
        low, high = self.steps_interval
        text = f"needs the last {self.steps} steps (95%: {low} to {high}); {share}; law {self.fit.law}"
        if self.fit.constant is not None:
            text += f", {self.fit.constant[0]} {self.fit.constant[1]:.3g}"
        return f"{text}; {self._modes()}"

    def same_step(self) -> str:
        """What a task without memory has, in words, and the usual mistake that makes one."""
        kind = "inputs and their products" if self.products else "inputs"
        text = f"{kind} of the same step explain {self.explained:.0%} of the targets"
        if self.explained > COPIED:
            text += "; if that is a copy of the inputs, shift it to forecast: inputs x[:, :-1], targets x[:, 1:]"
        return text

    def _modes(self) -> str:
        if self.modes is None or not self.reached:
            most = "" if self.modes is None else f" of up to {self.modes.order}"
            return f"no sum{most} decaying modes is within {self.eps:.0%}"
        return f"{self.modes.order} modes for an error of {self.eps:.0%}, the slowest rate {self.slowest:.2g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON; of the kernel the size of each lag."""
        names = ("status", "reason", "steps", "steps_interval", "explained", "explained_interval", "lags", "products")
        plain = {name: getattr(self, name) for name in names}
        plain |= {"tells": self.tells, "complete": self.complete, "answers": self.answers, "notes": list(self.notes)}
        plain |= {"error": _finite(self.error), "model_error": self.model_error, "unit": self.unit}
        plain |= {"eps": self.eps, "slowest": self.slowest, "radius": self.radius, "direct": self.direct}
        sum_ = None if self.modes is None else {**self.modes.to_dict(), "reached": self.reached}
        sides = {"low": self.low.tolist(), "high": self.high.tolist()}
        return {**plain, "fit": self.fit.to_dict(), "kernel": {**self.curve.to_dict(), **sides}, "modes": sum_}

    def figure(self) -> Figure:
        """The size of the kernel over the lags with its interval, the modes, and the steps that are needed."""
        t, foot = self.curve.time, MIN_SHOWN * (float(self.curve.values.max()) or 1.0)
        size, low, high = (np.maximum(values, foot) for values in (self.curve.values, self.low, self.high))
        layers: list[Layer] = [Line("kernel, with its 95% interval", t, size, low, high)]
        if self.modes is not None:
            layers.append(Line(f"{self.modes.order} modes", t, np.maximum(np.abs(self.modes(t)), foot), dash="dash"))
        layers.append(Rule(f"{self.steps} steps", x=float(self.steps)))
        axes = Axis("steps back"), Axis("size of the kernel", log=True)
        return Figure("task", f"The kernel of a task: {self.summary()}.", [Panel("Task", *axes, layers)])


@checked
def study_task(
    x: Any,
    y: Any,
    *,
    lengths: Any = None,
    mask: Any = None,
    lags: int | None = None,
    eps: float = 0.1,
    products: bool | None = None,
) -> TaskStudy:
    """The memory that a task needs: how far back targets depend on inputs, the decay law, and modes that represent it.

    Targets are regressed on the inputs of the last steps, by ridge regression with the ridge chosen on a quarter of the
    sequences held out (of fewer than 4, on the last quarter of their time). Where that explains less than 30%, products
    of two inputs of the same step are taken too, as the adding problem needs them. Standard errors are those of a
    jackknife over sequences (parts of their time where they are few), and the interval of steps is a bootstrap over
    those held out. Memory stays below 200 MB: answers are sampled evenly beyond 5 million numbers, and a note says so.

    What it cannot see: dependence that is linear neither in inputs nor in products of inputs of one step, such as a
    question and a key at different times. It then explains little and says so.

    >>> import torch, holdfast
    >>> x = torch.randn(40, 120, 1, generator=torch.Generator().manual_seed(0))
    >>> study = holdfast.study_task(x, x.roll(12, 1))  # a delay of 12 steps
    >>> study.steps, study.steps_interval
    (12, (12, 12))

    Args:
        x: inputs (rows, time, features), or tokens (rows, time), as integers.
        y: numbers (rows, time, outputs), or (rows, outputs) where a sequence has one answer, at its end; or class labels
            (rows, time) or (rows,), as integers, those below 0 not asked for. Numbers (rows, time) are one at each step.
        lengths: steps of each sequence, where rows are padded.
        mask: bool (rows, time): where targets count, such as those of `holdfast.data.read_series` that stood in the table.
        lags: most steps back; None: the whole of a sequence with one answer, else half of its length, as far as the size
            of the regression allows.
        eps: error for which modes are counted, relative to the L1 norm of the kernel.
        products: whether products of inputs are taken too; None: where inputs explain little.

    Returns:
        a TaskStudy: `steps` with its interval, the kernel, its law and modes; `initialize(model)` starts a model from
        it.

    Raises:
        ShapeError: inputs and targets that do not fit each other.
    """
    positive(lags=lags)
    if not 0 < eps < 1:
        raise ArgumentError(f"eps: expected a share between 0 and 1, got {eps}")
    data = read_data(x, y, lengths, mask)
    if products and not data.can_multiply:
        raise ArgumentError(
            f"products needs at most 8 real inputs, got {data.x.shape[2]} inputs or tokens; use products=False"
        )
    first = data.with_products() if products else data
    study = _studied(make_rows(first, lags), data.classes, eps, bool(products))
    if products is not None or study.explained >= LITTLE or not data.can_multiply:
        return study
    more = _studied(make_rows(data.with_products(), lags), data.classes, eps, True)
    return more if more.explained > max(study.explained, NOTHING) else study


def _studied(rows: Rows, classes: bool, eps: float, products: bool) -> TaskStudy:
    about: dict[str, Any] = {"eps": eps, "products": products, "classes": classes, "answers": len(rows.A)}
    held = len(rows.A) - rows.fitted
    if len(rows.A) < MIN_ANSWERS or not held or not rows.fitted or len(np.unique(rows.blocks)) < MIN_BLOCKS:
        blocks = len(np.unique(rows.blocks))
        reason = (
            f"too few answers: expected at least {MIN_ANSWERS} in {MIN_BLOCKS} sequences (or parts of their time), got "
            f"{len(rows.A)} in {blocks}"
        )
        return _empty(rows, reason, about)
    if not rows.b.any() or not rows.A.any():
        return _empty(rows, "the inputs or the targets do not vary", about)
    kernel = fit_task_kernel(rows, classes=classes)
    curve = MemoryCurve(time=np.arange(len(kernel.size)), values=kernel.size, floor=kernel.floor)
    reach = kernel.quantile * kernel.size_error
    fit = fit_decay(curve)
    reason = _undecided(kernel, fit)
    little = (
        () if kernel.explained >= LITTLE or reason else ("the kernel explains little: the task may need more steps",)
    )
    modes, reached = (None, False) if reason else _fitted_modes(kernel, fit, eps)
    if not reason and fit.law == "non-decaying" and kernel.rows.complete:
        # level over whole sequences: a mode that loses `eps` over one
        modes, reached = ExponentialSum(np.array([eps / kernel.rows.lags]), np.array([float(kernel.size.mean())])), True
    return TaskStudy(
        "undecided" if reason else "decided", reason, kernel.steps, kernel.steps_interval, kernel.explained,
        kernel.explained_interval, kernel.rows.lags, curve, np.maximum(kernel.size - reach, 0.0),
        np.maximum(kernel.size + reach, kernel.floor), fit, kernel.weights, kernel.errors, modes, reached=reached,
        complete=kernel.rows.complete, error=kernel.error, notes=(*kernel.rows.notes, *little), **about,
    )  # fmt: skip


def _empty(rows: Rows, reason: str, about: dict[str, Any]) -> TaskStudy:
    """The study of data that say nothing."""
    nothing = np.zeros(rows.lags + 1)
    curve = MemoryCurve(time=np.arange(rows.lags + 1), values=nothing)
    weights = np.zeros((rows.lags + 1, rows.features, rows.b.shape[1]))
    return TaskStudy(
        "undecided", reason, 0, (0, rows.lags), 0.0, (0.0, 0.0), rows.lags, curve, nothing, nothing.copy(), fit_decay(curve),
        weights, weights.copy(), complete=rows.complete, notes=rows.notes, **about,
    )  # fmt: skip


def _undecided(kernel: TaskKernel, fit: DecayFit) -> str:
    """Why nothing can be recommended; empty where something can."""
    low, high = kernel.explained_interval
    if kernel.explained < NOTHING or low <= 0:
        return f"the kernel explains next to nothing ({kernel.explained:.1%}, 95%: {max(low, 0):.1%} to {max(high, 0):.1%})"
    if kernel.steps_interval[1] >= kernel.rows.lags and not kernel.rows.complete and fit.status == "undecided":
        return (
            f"the horizon is too short: all {kernel.rows.lags} lags may be needed and their law is not identified; give "
            "longer sequences, or more of them"
        )
    return ""


def _fitted_modes(kernel: TaskKernel, fit: DecayFit, eps: float) -> tuple[ExponentialSum | None, bool]:
    """The sum with the fewest modes that is as near to the kernel as `eps` and the noise allow, and whether it is.

    Over the lags that stand clear of the noise, and those that are needed. A sum whose weights cancel is none.
    """
    course, noise = _course(kernel)
    lags = min(len(course), max(int(fit.window[1]), kernel.steps_interval[1], MIN_FITTED) + 1)
    t = _thinned(course[:lags])
    course, noise = course[t], noise[t]
    whole = float(np.trapezoid(np.abs(course), t))
    allowed = eps * whole + NOISE_L1 * float(np.trapezoid(noise, t))
    best: ExponentialSum | None = None
    for order, method in itertools.product(ORDERS, FITTED_BY):
        try:
            fitted = fit_exponential_sum(course, order, method, time=t.astype(np.float64))
        except HoldfastError:  # unequal spacing: the other method may do
            continue
        if fitted.weight_norms["max"] > MAX_CANCELLATION * float(np.abs(course).max()):
            continue
        best = fitted if best is None or fitted.l1_error < best.l1_error else best
        if best.l1_error <= allowed:
            return best, True
        if order > HOPELESS_ORDER and best.l1_error > whole / 2:
            break
    return best, False


def _thinned(course: np.ndarray) -> np.ndarray:
    """The lags that modes are fitted to: all of few, else evenly spaced in their logarithm, unless signs change."""
    against = min(float(np.abs(course[course < 0]).sum()), float(course[course > 0].sum()))
    if len(course) <= MAX_FITTED or against > 0.1 * float(np.abs(course).sum()):
        return np.arange(len(course))
    return np.unique(np.round(np.geomspace(1, len(course), MAX_FITTED)).astype(int)) - 1


def _course(kernel: TaskKernel) -> tuple[np.ndarray, np.ndarray]:
    """One number for each lag with its sign, and its standard error: the course that most of the weights share.

    Their sizes where no course has 90% of the energy.
    """
    flat = kernel.weights.reshape(len(kernel.weights), -1)
    U, s, V = np.linalg.svd(flat, full_matrices=False)
    if s[0] ** 2 < ONE_PROFILE * float(np.square(s).sum()):
        return kernel.size, kernel.size_error
    sign = 1.0 if U[np.abs(U[:, 0]).argmax(), 0] > 0 else -1.0
    errors = np.sqrt(np.square(kernel.errors.reshape(len(flat), -1)) @ np.square(V[0]))
    return sign * s[0] * U[:, 0], errors


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
