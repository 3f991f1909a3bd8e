"""GradientMonitor: gradient over weight and distance to the stability boundary, along training."""

from __future__ import annotations

import math
import time
import warnings
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
from holdfast.nn import RecurrenceView, recurrences
from holdfast.nn._views.groups import belongs
from holdfast.stability.monitor.history import GradientHistory

SAMPLE = 1 << 12  # entries of one weight that quantiles are taken of; more are sampled evenly
SPIKE = 1e3  # a gradient this many times its median over the last records is a warning
RECENT = 100
FIRST = 20  # records before a spike can be told from the start of training


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
    """Records gradient over weight of every recurrent weight before each optimizer step (StableSSM, Fig. 3 and 4).

    `with GradientMonitor(model) as monitor:` listens to every optimizer that holds one of the weights; or call
    `record()` yourself between backward and step.

    A DivergenceWarning is given, once for each weight and cause: a gradient that is not finite; a recurrence at or past
    the boundary; one that at its present pace reaches it soon (a weight whose parameterization cannot reach it is left
    alone); a gradient 1000 times its recent median.

    Args:
        model: the model that is trained.
        names: weights to watch that are not known as recurrent.
        every: 1 keeps every step, 2 every second one, and so on.
        quantiles: which quantiles of |dLoss/dw| / |w| to keep, in [0, 1].
        lookahead: number of records within which reaching the boundary is worth a warning.
        share: of the elapsed time that margins of dense matrices, which need eigenvalues, may take.
        writer: gets TensorBoard scalars, by `add_scalar(tag, value, step)`.
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
            raise ArgumentError(f"needs every >= 1, lookahead >= 0, 0 <= share <= 1; {every=}, {lookahead=}, {share=}")
        if not all(0 <= q <= 1 for q in quantiles):
            raise ArgumentError(f"quantiles lie in [0, 1], came {tuple(quantiles)}")
        self.watched = _watched(model, names)
        self.every, self.lookahead, self.share, self.writer = every, lookahead, share, writer
        self.levels = tuple(float(q) for q in quantiles)
        views = dict.fromkeys(w.view for w in self.watched if w.view is not None)
        # margins that cost eigenvalues of a matrix, and recurrences without a state of rest
        self._dense = {view: view.nonlinear or view.matrix() is not None for view in views}
        self._restless: set[RecurrenceView] = set()
        self._ids = {id(p) for w in self.watched for p in w.parameters}
        self._seen = 0
        self._steps: list[int] = []
        self._rows: list[np.ndarray] = []
        self._warned: set[tuple[str, str]] = set()
        self._handle: Any = None
        self._start: float | None = None
        self._spent = 0.0

    def __enter__(self) -> GradientMonitor:
        if self._handle is not None:
            raise ArgumentError("this monitor is already listening")
        self._handle = register_optimizer_step_pre_hook(self._before_step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening; the history stays."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # a few dozen comparisons of ids: cheaper than keeping track of optimizers whose groups may grow
        if any(id(p) in self._ids for group in optimizer.param_groups for p in group["params"]):
            self.record()

    def record(self, step: int | None = None, *, dense: bool | None = None) -> None:
        """Reads the gradients as they are now.

        Args:
            step: its number, counted from 0 where it is left out.
            dense: compute the margins of dense matrices; None decides by the time that they took so far.
        """
        number = self._seen if step is None else step
        self._seen += 1
        if (self._seen - 1) % self.every:
            return
        row = np.empty((len(self.watched), len(self.levels) + 5))
        self._ratios(row)
        row[:, -2:] = self._margins(dense)
        self._steps.append(number)
        self._rows.append(row)
        self._warn(row)
        if self.writer is not None:
            self._write(self.writer, row, number)

    def state(self) -> tuple[dict[str, Any], np.ndarray]:
        """What later records and warnings depend on: plain values, and the recent rows."""
        plain = {"seen": self._seen, "steps": self._steps[-RECENT - 1 :], "warned": sorted(map(list, self._warned))}
        rows = np.array(self._rows[-RECENT - 1 :]).reshape(-1, len(self.watched), len(self.levels) + 5)
        return plain, rows

    def restore(self, plain: Mapping[str, Any], rows: np.ndarray) -> None:
        """Goes on from what `state` gave.

        Args:
            plain: its plain values.
            rows: its rows.
        """
        self._seen, self._steps, self._rows = plain["seen"], list(plain["steps"]), list(rows)
        self._warned = {(path, cause) for path, cause in plain["warned"]}

    @property
    def history(self) -> GradientHistory:
        """Everything recorded so far as arrays."""
        table = np.stack(self._rows) if self._rows else np.empty((0, len(self.watched), len(self.levels) + 5))
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
        )

    def as_lightning_callback(self) -> Any:
        """A Lightning callback that records before every optimizer step; do not enter the monitor as well."""
        from holdfast.stability.monitor.callbacks import lightning_callback

        return lightning_callback(self)

    def as_transformers_callback(self) -> Any:
        """A transformers TrainerCallback that records before every optimizer step; do not enter the monitor as well."""
        from holdfast.stability.monitor.callbacks import transformers_callback

        return transformers_callback(self)

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
        if len(ratios) <= SAMPLE:
            ordered = np.sort(ratios)
            low, high = ordered[0], ordered[-1]
        else:
            low, high = ratios.min(), ratios.max()
            ordered = np.sort(ratios[:: -(-len(ratios) // SAMPLE)])
        last = len(ordered) - 1
        return [float(low), float(high), *(float(ordered[round(q * last)]) for q in self.levels)]

    def _margins(self, dense: bool | None) -> list[tuple[float, float]]:
        now = time.perf_counter()
        self._start = now if self._start is None else self._start
        free = self._spent <= self.share * (now - self._start) if dense is None else dense
        margins: dict[RecurrenceView | None, tuple[float, float]] = {None: (math.nan, math.nan)}
        # several weights may decide one recurrence: it is computed once
        for view, is_dense in self._dense.items():
            if is_dense and not free:
                margins[view] = margins[None]
                continue
            begun = time.perf_counter()
            margins[view] = _margins_of(view)
            self._spent += time.perf_counter() - begun if is_dense else 0.0
            if view.nonlinear and math.isnan(margins[view][0]):
                self._restless.add(view)
        return [margins[w.view] for w in self.watched]

    def _warn(self, row: np.ndarray) -> None:
        for i, watched in enumerate(self.watched):
            ratio, margin = row[i, -3], row[i, -2]
            if watched.parameters[0].grad is not None and not math.isfinite(ratio):
                self._tell(watched, "gradient", "its gradient is not finite")
            if margin <= 0:
                self._tell(watched, "boundary", f"its recurrence is at or past the boundary, margin {margin:.3g}")
            elif watched.view in self._restless:
                self._tell(watched, "boundary", "on zero input its state neither settles nor has a point of rest")
            elif watched.view is not None and watched.view.crosses and len(self._rows) > 1:
                self._approach(watched, i, margin)
            if len(self._rows) > FIRST:
                usual = float(np.median([r[i, -3] for r in self._rows[-RECENT - 1 : -1]]))
                if ratio > SPIKE * usual > 0:
                    self._tell(watched, "spike", f"its gradient is {ratio / usual:.0f} times its recent median")

    def _approach(self, watched: Watched, i: int, margin: float) -> None:
        known = [(k, r[i, -2]) for k, r in enumerate(self._rows[-11:-1]) if not math.isnan(r[i, -2])]
        if not known or math.isnan(margin):
            return
        back, before = known[0]
        pace = (before - margin) / (min(len(self._rows), 11) - 1 - back)
        if pace > 0 and margin / pace < self.lookahead:
            left = math.ceil(margin / pace)
            text = f"at its present pace the recurrence leaves the stable region in {left} records, margin {margin:.3g}"
            self._tell(watched, "approach", text)

    def _tell(self, watched: Watched, cause: str, text: str) -> None:
        if (watched.path, cause) not in self._warned:
            self._warned.add((watched.path, cause))
            warnings.warn(f"{watched.path}, step {self._steps[-1]}: {text}", DivergenceWarning, stacklevel=2)

    def _write(self, writer: Writer, row: np.ndarray, step: int) -> None:
        columns = {"minimum": 0, "maximum": 1, "norm_ratio": -3, "margin": -2, "continuous_margin": -1}
        columns |= {f"quantile_{q:g}": 2 + k for k, q in enumerate(self.levels)}
        for watched, values in zip(self.watched, row, strict=True):
            for name, k in columns.items():
                if not math.isnan(values[k]):
                    writer.add_scalar(f"gradient_over_weight/{watched.path}/{name}", float(values[k]), step)


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
            "no recurrent weight was found; name them: GradientMonitor(model, names=['layer.weight']), or describe the "
            f"step: holdfast.nn.StepFunction. The model's weights: {listed(every)}"
        )
    return [watched for watched in known + extra if watched.parameters]


def _margins_of(view: RecurrenceView) -> tuple[float, float]:
    rate = view.rate()
    return view.margin(), math.nan if rate is None else rate


def _sizes(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """The absolute values of all entries, one after the other; of complex ones their modulus."""
    sizes = torch.cat([t.reshape(-1).abs() for t in tensors])
    return (sizes if sizes.dtype == torch.float64 else sizes.float()).cpu().numpy()


def _norm(sizes: np.ndarray) -> float:
    # squares in float64: those of float32 overflow from 1.8e19 on
    return math.sqrt(float(np.einsum("i,i->", sizes, sizes, dtype=np.float64)))
