"""GradientMonitor: gradient over weight and distance to the stability boundary, along training."""

from __future__ import annotations

import math
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, listed, unknown_name
from holdfast.memory.preserve import undisturbed
from holdfast.nn import RecurrenceView, recurrences
from holdfast.nn._views.reads import settle_views
from holdfast.nn._views.rest import runs_away
from holdfast.nn._views.view import belongs
from holdfast.stability.monitor._activations import Activations
from holdfast.stability.monitor._signals import DEAD_STEPS, Alarm, Cause, Series, Signals
from holdfast.stability.monitor.history import GradientHistory

MAX_SAMPLES = 1 << 12  # entries of one weight that quantiles are taken of; more are sampled evenly
STEP_SIZE_EVERY = 10  # steps between two looks at the step sizes of selective recurrences
WEIGHTS_EVERY = 10  # steps between two looks for a weight that is not finite while loss and gradients are
_NAMES: Mapping[Series, str] = {
    "loss": "the loss", "gradient": "the norm of all gradients", "state": "the largest state or output",
    "step size": "the 0.99 quantile of the step sizes",
}  # fmt: skip
SLOWER = "lower the learning rate, or let holdfast.stability.DivergenceGuard stop training or roll it back"
# in the alarm itself, since TrainingWatch repeats that and nothing else
DEAD = (
    f"the recurrence does not learn: the gradients of all recurrent weights were 0 for {DEAD_STEPS} steps; look for detach() "
    "or no_grad() in the recurrence and for saturated gates or units, or freeze it: requires_grad_(False)"
)
PACE_RECORDS = 10  # over which the pace of a margin is taken


class HoldfastWarning(UserWarning):
    """Base of every warning of holdfast."""


class DivergenceWarning(HoldfastWarning):
    """Training is about to diverge, or has; the text says which weight and why."""


@runtime_checkable
class Writer(Protocol):
    """Anything with TensorBoard's add_scalar."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


@dataclass(frozen=True, eq=False)
class Watched:
    """A weight with its parameters, and the view of its recurrence where it decides how far that is from the boundary."""

    path: str
    parameters: tuple[nn.Parameter, ...]
    view: RecurrenceView | None = None

    @property
    def size(self) -> int:
        """Numbers in all its parameters."""
        return sum(p.numel() for p in self.parameters)


class GradientMonitor:
    """Watches a training run, and warns before it diverges; records gradient over weight (StableSSM, Fig. 3 and 4).

    `with GradientMonitor(model) as monitor:` listens to every optimizer that holds one of the weights; or call
    `record(loss=loss)` yourself between backward and step, before gradients are clipped: only then it sees the loss too.

    Every step it compares, with their medians over the last 100 steps, the loss (1.6 times), the norm of all gradients (6
    times) and the largest state or output of a recurrence (10 times; step sizes of selective ones too). A
    DivergenceWarning is given once for each cause: one of these; a loss, weight or gradient that is not finite; a
    recurrence at or past the boundary; one that at its present pace reaches it soon (a weight whose parameterization
    cannot reach it is left alone); recurrent weights whose gradients are all exactly 0 for 5 steps while others learn
    (frozen ones do not count). `DivergenceGuard` stops or rolls back by the same signals.

    Args:
        model: the model that is trained.
        names: weights to watch that are not known as recurrent.
        every: gradient over weight and margins are recorded at steps that this divides.
        quantiles: which quantiles of |dLoss/dw| / |w| to keep, in [0, 1].
        lookahead: number of records within which reaching the boundary is worth a warning.
        share: of the elapsed time that margins of dense matrices, which need eigenvalues, may take.
        writer: gets TensorBoard scalars, by `add_scalar(tag, value, step)`.

    Returns:
        as a context manager itself; `history` holds what it recorded, `alarms` what it warned of.

    Raises:
        ArgumentError: no known recurrence and no `names`, or a name that is not a weight.

    Example:
        >>> import torch, holdfast
        >>> model = torch.nn.RNN(1, 4, batch_first=True)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> with holdfast.GradientMonitor(model) as monitor:
        ...     model(torch.randn(2, 9, 1))[0].square().mean().backward()
        ...     optimizer.step()
        >>> monitor.history.steps.tolist()
        [0]
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        *,
        names: Sequence[str] = (),
        every: int = 1,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        lookahead: int = 50,
        share: float = 0.005,
        writer: Writer | None = None,
    ) -> None:
        if every < 1 or lookahead < 0 or not 0 <= share <= 1:
            raise ArgumentError(
                f"expected every >= 1, lookahead >= 0 and 0 <= share <= 1, got {every=}, {lookahead=}, {share=}"
            )
        if not all(0 <= q <= 1 for q in quantiles):
            raise ArgumentError(f"quantiles must be in [0, 1], got {tuple(quantiles)}")
        self.watched = _watched(model, names)
        self.every, self.lookahead, self.share, self.writer = every, lookahead, share, writer
        self.levels = tuple(float(q) for q in quantiles)
        views = dict.fromkeys(w.view for w in self.watched if w.view is not None)
        # margins that cost eigenvalues of a matrix
        self._dense = {view: view.nonlinear or view.matrix() is not None for view in views}
        self._escaping: set[RecurrenceView] = set()
        # where the model rests is looked for again with every dense margin: training moves what layers read there
        self._model = weakref.ref(model)
        self._moving = any(view.selective or (view.nonlinear and view.module is not model) for view in views)
        self._ids = {id(p) for w in self.watched for p in w.parameters}
        self._parameters = dict(model.named_parameters())
        self._activations = Activations(tuple(views), max(every, STEP_SIZE_EVERY))
        self._signals = Signals()
        self.alarms: list[Alarm] = []
        self._scalars: list[tuple[float, ...]] = []
        self._seen = 0
        self._still = 0  # steps in a row without a gradient of recurrent weights
        self._steps: list[int] = []
        self._rows: list[np.ndarray] = []
        self._warned: set[tuple[str, Cause]] = set()
        self._handle: Any = None
        self._start: float | None = None
        self._spent = 0.0
        self._median_step_size = math.nan

    def __enter__(self) -> GradientMonitor:
        if self._handle is not None:
            raise ArgumentError("this monitor is already attached; call its close() first, or make another monitor")
        self._handle = register_optimizer_step_pre_hook(self._before_step)
        self._activations.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening; the history stays."""
        self._activations.close()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # a few dozen comparisons of ids: cheaper than keeping track of optimizers whose groups may grow
        if any(id(p) in self._ids for group in optimizer.param_groups for p in group["params"]):
            self.record()

    def record(
        self,
        step: int | None = None,
        *,
        loss: float | torch.Tensor | None = None,
        gradient_norm: float | None = None,
        dense: bool | None = None,
    ) -> tuple[Alarm, ...]:
        """Reads the gradients as they are now; gives the alarms that are new.

        Args:
            step: its number, counted from 0 where it is left out.
            loss: of this step.
            gradient_norm: the norm of the whole gradient, where it has been clipped already.
            dense: compute the margins of dense matrices; None decides by the time that they took so far.
        """
        number = self._seen if step is None else step
        self._seen = number + 1
        told = len(self.alarms)
        self._activations.open()  # the first call of one who does not enter
        values, broken = self._measure(number, loss, gradient_norm)
        for path, what in broken:
            self._tell(number, path, "not finite", what)
        for series, ratio in self._signals.judge(values):
            self._tell(number, "", series, f"{_NAMES[series]} is {ratio:.3g} times its recent median")
        self._still = self._still + 1 if values["gradient"] > 0 and self._is_still() else 0
        if self._still >= DEAD_STEPS:
            self._tell(number, "", "dead", DEAD)
        if number % self.every == 0:
            self._keep(number, values, dense)
        return tuple(self.alarms[told:])

    def _is_still(self) -> bool:
        """Whether some recurrent weight is trained, and none has a gradient other than 0."""
        trained = [p for w in self.watched for p in w.parameters if p.requires_grad]
        if not trained:
            return False
        return not any(p.grad is not None and bool(p.grad.any()) for p in trained)

    def forgive(self) -> None:
        """Warns again of what it has warned of: training continues from another place."""
        self._warned.clear()

    def _keep(self, number: int, values: Mapping[Series, float], dense: bool | None) -> None:
        row = np.empty((len(self.watched), len(self.levels) + 5))
        self._ratios(row)
        row[:, -2:] = self._margins(dense)
        self._steps.append(number)
        self._rows.append(row)
        self._scalars.append(tuple(values[name] for name in ("loss", "gradient", "state", "step size")))
        self._warn(row)
        if self.writer is not None:
            for tag, value in self.newest().items():
                self.writer.add_scalar(f"gradient_over_weight/{tag}", value, number)

    @torch.no_grad()
    def _measure(
        self, number: int, loss: float | torch.Tensor | None, gradient_norm: float | None
    ) -> tuple[dict[Series, float], list[tuple[str, str]]]:
        """What is compared with its median, and what is not finite."""
        gradients = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        told = math.nan if loss is None else float(loss)
        broken = [] if loss is None or math.isfinite(told) else [("", "the loss is not finite")]
        norm, names = _total_norm(gradients)
        broken += [(name, "its gradient is not finite") for name in names]
        # what a forward pass reads of a weight reaches loss and gradients in the same step
        if broken or number % WEIGHTS_EVERY == 0:
            broken += [(name, "it is not finite") for name in _total_norm(self._parameters)[1]]
        state, (self._median_step_size, step_size) = self._activations.read()
        norm = norm if gradient_norm is None else gradient_norm
        if not math.isfinite(norm) and not names and gradients:
            broken.append(("", "the gradient is not finite"))
        return {"loss": told, "gradient": norm, "state": state, "step size": step_size}, broken

    def state(self) -> tuple[dict[str, Any], np.ndarray]:
        """What later records and warnings depend on: plain values, and the recent rows."""
        recent = slice(-PACE_RECORDS - 1, None)
        plain = {"seen": self._seen, "steps": self._steps[recent], "warned": sorted(map(list, self._warned))}
        plain["still"] = self._still
        plain |= {
            "scalars": [[v if math.isfinite(v) else None for v in s] for s in self._scalars[recent]],
            "windows": self._signals.state(),
        }
        rows = np.array(self._rows[recent]).reshape(-1, len(self.watched), len(self.levels) + 5)
        return plain, rows

    def restore(self, plain: Mapping[str, Any], rows: np.ndarray) -> None:
        """Continues from what `state` gave.

        Args:
            plain: its plain values.
            rows: its rows.
        """
        self._seen, self._steps, self._rows = plain["seen"], list(plain["steps"]), list(rows)
        self._still = plain.get("still", 0)  # older checkpoints have none
        self._warned = {(path, cause) for path, cause in plain["warned"]}
        self._scalars = [tuple(math.nan if v is None else v for v in s) for s in plain["scalars"]]
        self._signals.load(plain["windows"])

    @property
    def history(self) -> GradientHistory:
        """Everything recorded so far as arrays."""
        table = np.stack(self._rows) if self._rows else np.empty((0, len(self.watched), len(self.levels) + 5))
        scalars = np.array(self._scalars, dtype=np.float64).reshape(-1, 4)
        count = len(self.levels)
        return GradientHistory(
            paths=tuple(w.path for w in self.watched),
            levels=self.levels,
            steps=np.array(self._steps, dtype=np.int64),
            minimum=table[:, :, 0],
            maximum=table[:, :, 1],
            quantiles=table[:, :, 2 : 2 + count],
            norm_ratio=table[:, :, -3],
            margin=table[:, :, -2],
            continuous_margin=table[:, :, -1],
            loss=scalars[:, 0],
            gradient_norm=scalars[:, 1],
            largest_state=scalars[:, 2],
            step_size=scalars[:, 3],
        )

    @torch.no_grad()
    def _ratios(self, row: np.ndarray) -> None:
        """Fills min, max, quantiles and the ratio of norms: one copy of all weights, then numpy on the parts."""
        present = [i for i, w in enumerate(self.watched) if all(p.grad is not None for p in w.parameters)]
        row[:] = math.nan
        if not present:
            return
        parameters = [p for i in present for p in self.watched[i].parameters]
        # one copy each, off the device: a few small numpy calls cost a tenth of as many tensor operations
        weights = _sizes([p.detach() for p in parameters])
        gradients = _sizes([p.grad for p in parameters if p.grad is not None])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratios = gradients / weights
            end = 0
            for i in present:
                start, end = end, end + self.watched[i].size
                g, w = gradients[start:end], weights[start:end]
                row[i, : 2 + len(self.levels)] = self._spread(ratios[start:end], g)
                row[i, -3] = _norm(g) / max(_norm(w), 1e-300)

    def _spread(self, ratios: np.ndarray, gradients: np.ndarray) -> list[float]:
        if np.isnan(ratios).any():
            # 0/0 is a weight at rest; any other NaN is a gradient that broke
            ratios = np.where(np.isnan(ratios) & (gradients == 0), 0.0, ratios)
        if len(ratios) <= MAX_SAMPLES:
            ordered = np.sort(ratios)
            low, high = ordered[0], ordered[-1]
        else:
            low, high = ratios.min(), ratios.max()
            ordered = np.sort(ratios[:: -(-len(ratios) // MAX_SAMPLES)])
        last = len(ordered) - 1
        return [float(low), float(high), *(float(ordered[round(q * last)]) for q in self.levels)]

    def _margins(self, dense: bool | None) -> list[tuple[float, float]]:
        now = time.perf_counter()
        self._start = now if self._start is None else self._start
        free = self._spent <= self.share * (now - self._start) if dense is None else dense
        self._settle(free)
        margins: dict[RecurrenceView | None, tuple[float, float]] = {None: (math.nan, math.nan)}
        # several weights may decide one recurrence: it is computed once
        for view, is_dense in self._dense.items():
            if is_dense and not free:
                margins[view] = margins[None]
                continue
            begun = time.perf_counter()
            margins[view] = _margins_of(view)
            if view.nonlinear and math.isnan(margins[view][0]) and runs_away(view.step_map()):
                self._escaping.add(view)
            self._spent += time.perf_counter() - begun if is_dense else 0.0
        return [margins[w.view] for w in self.watched]

    def _settle(self, free: bool) -> None:
        """Tells the views what they read where the model rests, as `certify` does; a run on zeros in evaluation mode."""
        model = self._model()
        parallel = torch.distributed.is_available() and torch.distributed.is_initialized()
        # a run that other processes do not make too would wait for them for ever
        if not free or not self._moving or model is None or parallel:
            return
        begun = time.perf_counter()
        with undisturbed(model), torch.no_grad():
            settle_views(model, tuple(self._dense))
        self._spent += time.perf_counter() - begun

    def _warn(self, row: np.ndarray) -> None:
        step = self._steps[-1]
        for i, watched in enumerate(self.watched):
            margin = row[i, -2]
            if margin <= 0:
                text = f"its recurrence is on or beyond the stability boundary (margin {margin:.3g} per step)"
                self._tell(step, watched.path, "boundary", text)
            elif watched.view in self._escaping:
                self._tell(step, watched.path, "boundary", "on zero input its state grows without bound")
            elif watched.view is not None and watched.view.crosses and len(self._rows) > 1:
                self._approach(watched, i, margin)

    def _approach(self, watched: Watched, i: int, margin: float) -> None:
        rows = self._rows[-PACE_RECORDS - 1 : -1]
        known = [(k, r[i, -2]) for k, r in enumerate(rows) if not math.isnan(r[i, -2])]
        if not known or math.isnan(margin):
            return
        # the mean over several records: one noisy step is no pace
        back, before = known[0]
        pace = (before - margin) / (len(rows) - back)
        if pace > 0 and margin / pace < self.lookahead:
            left = math.ceil(margin / pace)
            text = f"its recurrence will leave the stable region in {left} records at this pace (margin {margin:.3g} per step)"
            self._tell(self._steps[-1], watched.path, "approach", text)

    def _tell(self, step: int, subject: str, cause: Cause, text: str) -> None:
        # once for each subject and cause: a run that is lost would fill the log
        if (subject, cause) not in self._warned:
            self._warned.add((subject, cause))
            sentence = f"{subject}, step {step}: {text}" if subject else f"step {step}: {text}"
            alarm = Alarm(step, cause, subject, sentence)
            self.alarms.append(alarm)
            whole = sentence if cause == "dead" else f"{alarm.warning}; {SLOWER}"
            warnings.warn(whole, DivergenceWarning, stacklevel=2)

    def windows(self) -> dict[str, list[float]]:
        """The recent values that alarms compare with; `state` has more, which a continued run of `fit` needs."""
        return self._signals.state()

    def load_windows(self, windows: Mapping[str, list[float]]) -> None:
        """Compares with values that `windows` gave.

        Args:
            windows: by the name of their series.
        """
        self._signals.load(windows)

    def newest(self) -> dict[str, float]:
        """The last record as numbers by "weight/quantity", without those that were not computed; empty before the first."""
        if not self._rows:
            return {}
        columns = {"minimum": 0, "maximum": 1, "norm_ratio": -3, "margin": -2, "continuous_margin": -1}
        columns |= {f"quantile_{q:g}": 2 + k for k, q in enumerate(self.levels)}
        return {
            f"{watched.path}/{name}": float(values[k])
            for watched, values in zip(self.watched, self._rows[-1], strict=True)
            for name, k in columns.items()
            if math.isfinite(values[k])
        }

    def last_scalars(self) -> dict[str, float]:
        """Of the last record what belongs to no single weight: norm of the gradient, largest state, step sizes."""
        names = ("loss", "gradient_norm", "largest_state", "step_size_p99")
        if not self._scalars:
            return {}
        return {**dict(zip(names, self._scalars[-1], strict=True)), "step_size_median": self._median_step_size}

    @property
    def recorded(self) -> int | None:
        """The step of the last record; None before the first."""
        return self._steps[-1] if self._steps else None


def _watched(model: nn.Module, names: Sequence[str]) -> list[Watched]:
    """Every weight of the model's recurrences, and the ones called by name."""
    every = dict(model.named_parameters())
    for name in names:
        if not any(belongs(path, name) for path in every):
            raise unknown_name("weight", name, every)
    known = [
        Watched(weight.path, tuple(weight.free.values()), view if weight.decides else None)
        for view in recurrences(model)
        for weight in view.weights
    ]
    paths = {watched.path for watched in known}
    extra = [Watched(n, tuple(p for path, p in every.items() if belongs(path, n))) for n in names if n not in paths]
    if not known and not extra:
        raise ArgumentError(
            "expected a model with recurrent weights that holdfast recognizes, got none; pass their names, as "
            "GradientMonitor(model, names=['layer.weight']), or describe the step with holdfast.nn.StepFunction. The model's "
            f"weights: {listed(every)}"
        )
    return [watched for watched in known + extra if watched.parameters]


def _margins_of(view: RecurrenceView) -> tuple[float, float]:
    rate = view.rate()
    return view.margin(), math.nan if rate is None else rate


def _total_norm(tensors: Mapping[str, torch.Tensor]) -> tuple[float, list[str]]:
    """The norm of all tensors together, and the names of those that are not finite."""
    if not tensors:
        return math.nan, []
    norm = float(nn.utils.get_total_norm(tensors.values()))
    if math.isfinite(norm):
        return norm, []
    names = [name for name, t in tensors.items() if not bool(torch.isfinite(t).all())]
    if names:
        return norm, names
    # squares of float32 overflow from 1.8e19 on
    return float(nn.utils.get_total_norm([t.detach().abs().double() for t in tensors.values()])), []


def _sizes(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """The absolute values of all entries, one after the other; of complex ones their modulus."""
    sizes = torch.cat([t.reshape(-1).abs() for t in tensors])
    return (sizes if sizes.dtype == torch.float64 else sizes.float()).cpu().numpy()


def _norm(sizes: np.ndarray) -> float:
    # squares in float64: those of float32 overflow from 1.8e19 on
    return math.sqrt(float(np.einsum("i,i->", sizes, sizes, dtype=np.float64)))
