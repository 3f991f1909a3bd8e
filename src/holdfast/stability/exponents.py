"""lyapunov_spectrum: how fast nearby states of a model come together or move apart, along its own trajectories."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast._readers import describe
from holdfast._record import Record
from holdfast.errors import ArgumentError, ShapeError
from holdfast.figures import Axis, Figure, Panel, Points, Rule
from holdfast.memory import ModelError
from holdfast.memory._checks import prepare
from holdfast.memory._subject import Layout, Subject, are_alike, as_numbers, from_numbers
from holdfast.memory.preserve import undisturbed
from holdfast.nn import recurrences
from holdfast.stability._recurrence_exponents import jacobians_of

BLOCKS = 8  # stretches of time whose means say how well an exponent is known
RANDOM_FRAMES = 3  # Q begins as each of them: where they agree, it has turned into place
ROUNDING = 1e-9  # relative; a frame that turns changes an exponent by more within a step
TREND = 0.75  # Kendall's tau of the means of the blocks over time; 8 blocks of noise reach it in 1 of 100 cases
RELATIVE_TOLERANCE = 0.01  # of an exponent, by which frames may still differ once Q has turned
NUMBERS = 1 << 22  # of Jacobians held at a time: 32 MB
LARGEST = 4096  # numbers in a state: one Jacobian then has 128 MB


@dataclass(frozen=True, eq=False, repr=False)
class LyapunovSpectrum(Record):
    """Lyapunov exponents of a model's state on given inputs, the largest first.

    Two states that see the same inputs grow apart like e^(exponents[0] t). All below 0: the model forgets where it
    started, and its inputs in time. Above 0: chaos, nearby states separate.

    Args:
        exponents: (exponents,), per unit of time, the largest first; -inf where a direction is forgotten within a step.
        errors: standard error of each, (exponents,), per unit of time: from stretches of time and rows, plus the error of the
            directions Q: the range over different beginnings, and twice what is left of a trend.
        steps: steps of each trajectory that were averaged.
        rows: number of trajectories.
        state_size: real numbers in the state, which is how many exponents there are in all.
        dt: time of one step.
        status: "converged", or "aligning" where Q still turns, so that errors are mostly those of its place: exponents
            that differ by d per step need several 1/d steps in `discard`.
    """

    exponents: Float64[np.ndarray, " exponents"]
    errors: Float64[np.ndarray, " exponents"]
    steps: int
    rows: int
    state_size: int
    dt: float = 1.0
    status: Literal["converged", "aligning"] = "converged"

    @property
    def dimension(self) -> float:
        """Kaplan and Yorke's: how many directions a volume of states keeps, j + sum of the first j / |next|.

        NaN where the exponents that were computed do not reach so far.
        """
        sums = np.cumsum(self.exponents)
        falling = np.flatnonzero(sums < 0)
        if not len(falling):
            return float(self.state_size) if len(sums) == self.state_size else math.nan
        j = int(falling[0])
        return j + (float(sums[j - 1]) / abs(float(self.exponents[j])) if j else 0.0)

    def summary(self) -> str:
        """A line: the largest exponent and what it means."""
        largest, error = float(self.exponents[0]), float(self.errors[0])
        apart = largest > 2 * error
        what = "chaotic, nearby states separate" if apart else "nearby states come together"
        undecided = abs(largest) <= 2 * error
        what = "on the edge, as far as this many steps can tell" if undecided else what
        text = (
            f"{what}: largest exponent {largest:.4g} +- {error:.2g} per unit of time, "
            f"{len(self.exponents)} of {self.state_size}, {self.rows} x {self.steps} steps"
        )
        return text + (", not converged: raise discard" if self.status == "aligning" else "")

    def figure(self) -> Figure:
        """The exponents in their order, with their errors and the edge of chaos."""
        order = np.arange(1, len(self.exponents) + 1)
        low, high = self.exponents - 2 * self.errors, self.exponents + 2 * self.errors
        layers = [Points("exponents", order, self.exponents, low, high), Rule("edge of chaos", y=0.0)]
        panel = Panel("Lyapunov spectrum", Axis("number"), Axis("exponent per unit of time"), layers)
        return Figure("lyapunov", f"Lyapunov exponents in order: {self.summary()}.", [panel])


@checked
def lyapunov_spectrum(
    model: Callable[..., Any],
    inputs: Tensor,
    *,
    count: int | None = None,
    discard: int = 100,
    state: Any = None,
    dt: float = 1.0,
    layout: Layout = "batch_first",
    double: bool = False,
    device: torch.device | str | None = None,
) -> LyapunovSpectrum:
    """The Lyapunov exponents of the state of a model, along the trajectories that `inputs` drive it on.

    The Jacobian J_t = d state_{t+1} / d state_t is taken at each step by the model's own gradient, and J_t Q_t = Q_{t+1}
    R_{t+1} is factored; the exponents are the means of log |diag R| / dt (Benettin et al. 1980, Shimada and Nagashima
    1979). Q is in float64 whatever the model is in. It begins as each of three seeded random frames, since a frame of unit
    vectors never turns where states do not mix; where all exponents are asked for, also as the unit vectors. A frame that
    has not turned yet mixes directions and so averages exponents: the one with the largest partial sums is reported.

    Args:
        model: called as `model(x, state)`, it returns `(outputs, state)`: torch's RNN, GRU and LSTM, holdfast's layers and
            stacks, modules of your own. Without a state it begins at its own start. Of a module that keeps its states to
            itself the recurrences that `holdfast.recurrences` knows are followed, each along what it reads: they feed
            each other one way, so that the exponents of all states are those of the recurrences together.
        inputs: what it reads, as the model takes it, (batch, time, features), or tokens (batch, time); zeros for a model left
            to itself. Each row is a trajectory.
        count: number of exponents; None is all of them.
        discard: first steps that are left out: the state settles, and Q turns into place.
        state: where trajectories start, with one row for each of the inputs; None is the model's own start.
        dt: time of one step.
        layout: "batch_first", or "time_first" for models and inputs (time, batch, features).
        double: look at a float64 copy of an nn.Module.
        device: device of the inputs; None is that of the model's first weight, or the CPU.

    Assumed unchecked: the state has a derivative at the points that the model visits, and rows do not influence each
    other. Accurate to `errors`, which fall like one over the root of the number of steps.

    Returns:
        a LyapunovSpectrum: `exponents`, (count,), per unit of time, the largest first, and their standard `errors`.

    Raises:
        ShapeError: inputs that are neither (batch, time, features) nor tokens (batch, time).
        ArgumentError: too few steps after `discard`, a dt that is not above 0, a state of another shape or of too many
            numbers, or a model whose recurrences are not known.
        ModelError: a model that does not continue from a state, or a state that is not finite.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.DiagonalSSM(1, 2, eigenvalues=torch.tensor([-0.5, -0.1]))
        >>> holdfast.stability.lyapunov_spectrum(layer, torch.zeros(1, 60, 1), discard=10).exponents.round(3).tolist()
        [-0.1, -0.5]
    """
    x = inputs.transpose(0, 1) if layout == "time_first" else inputs
    _check(x, discard, count, dt)
    if (
        isinstance(model, nn.Module)
        and state is None
        and (not x.is_floating_point() or not _has_state(model, x, layout))
    ):
        return _of_recurrences(model, inputs, count, discard, dt)
    with undisturbed(model), torch.no_grad():
        subject = Subject(model, x.shape[-1], layout=layout, device=device, double=double)
        prepare(subject, torch.Generator().manual_seed(0))
        if subject.row_axes is None:
            raise ModelError(
                "expected a model that continues from a state: model(x, state) must return (outputs, state), as "
                "torch.nn.GRU does, with the rows of the batch along one axis of every tensor of the state; wrap the "
                "model in such a function"
            )
        x = x.to(subject.device, subject.dtype)
        start, begin = _settled_state(subject, x, state, discard // 2)
        logs = _factored(_jacobians(subject, x[:, begin:], start), count)[max(discard - begin, 0) :]
    return _spectrum(logs, dt, size=as_numbers(start, subject.row_axes).shape[1])


def _settled_state(subject: Subject, x: Tensor, state: Any, steps: int) -> tuple[Any, int]:
    """The state from which Jacobians are followed, and the step that it stands before.

    Half of what is left out lets the state settle, the other half lets Q turn into place. A model without a state of its
    own to begin with takes one step to show it.
    """
    own = subject.advance(x[:, :1].contiguous())[1]
    if state is not None and not are_alike(state, own):
        raise ArgumentError(
            f"state must have the shapes and dtypes that the model returns for {len(x)} rows, got {describe(state)}"
        )
    start = subject.advance(x[:, :steps].contiguous(), state)[1] if steps else state
    return (own, 1) if start is None else (start, steps)


def _check(x: Tensor, discard: int, count: int | None, dt: float) -> None:
    positive(count=count)
    if x.ndim != (3 if x.is_floating_point() else 2) or x.shape[0] < 1:
        raise ShapeError(
            "inputs must be (batch, time, features), or tokens (batch, time), with at least one row, got "
            f"{tuple(x.shape)} of {x.dtype}"
        )
    if discard < 0 or x.shape[1] < discard + 2 * BLOCKS:
        raise ArgumentError(
            f"expected discard >= 0 and at least {2 * BLOCKS} steps of inputs after it, got {x.shape[1]} steps, {discard=}"
        )
    if not 0 < dt < math.inf:
        raise ArgumentError(f"dt must be above 0, got {dt}")


def _has_state(model: nn.Module, x: Tensor, layout: Layout) -> bool:
    """Whether the model continues from a state that it gives; a model that cannot be asked is taken to."""
    with undisturbed(model), torch.no_grad():
        subject = Subject(model, x.shape[-1], layout=layout)
        try:
            prepare(subject, torch.Generator().manual_seed(0))
        except ModelError:
            return not any(view.module is not model for view in recurrences(model))
    return subject.row_axes is not None or not recurrences(model)


def _of_recurrences(model: nn.Module, inputs: Tensor, count: int | None, discard: int, dt: float) -> LyapunovSpectrum:
    parts = []
    for block in jacobians_of(model, inputs):
        logs = block.unsqueeze(1) if isinstance(block, Tensor) else _factored(block, count)
        logs = logs[discard:]
        parts.append(_spectrum(logs, dt, size=logs.shape[-1]))
    exponents, errors = (np.concatenate([getattr(part, name) for part in parts]) for name in ("exponents", "errors"))
    # recurrences that feed each other one way have a block triangular Jacobian: its exponents are those of the blocks
    order = np.argsort(-exponents, kind="stable")[:count]
    status: Literal["converged", "aligning"] = (
        "converged" if all(p.status == "converged" for p in parts) else "aligning"
    )
    size, first = sum(part.state_size for part in parts), parts[0]
    return LyapunovSpectrum(exponents[order], errors[order], first.steps, first.rows, size, dt, status)


def _jacobians(subject: Subject, x: Tensor, state: Any) -> Iterator[Float[Tensor, "rows n n"]]:
    """d state_{t+1} / d state_t of every row, step by step; gradients are taken for many steps at once."""
    rows, size = as_numbers(state, subject.row_axes).shape
    if size > LARGEST:
        raise ArgumentError(f"model must have a state of at most {LARGEST} numbers, got {size}; use a smaller model")
    # as many steps in one backward pass as memory allows: each point is copied once for every number of its state
    together = max(1, NUMBERS // (rows * size * size))
    for first in range(0, x.shape[1], together):
        part = x[:, first : first + together]
        visited = []
        for t in range(part.shape[1]):
            visited.append(as_numbers(state, subject.row_axes))
            state = subject.advance(part[:, t : t + 1].contiguous(), state)[1]
        yield from _derivative(subject, part.transpose(0, 1).flatten(0, 1), torch.cat(visited), state, size).unflatten(
            0, (part.shape[1], rows)
        )


def _derivative(subject: Subject, x: Tensor, points: Tensor, like: Any, size: int) -> Float[Tensor, "points n n"]:
    """The Jacobian at each point: `size` copies of it in one batch, copy i backward from number i of the next state."""
    copies = points.repeat_interleave(size, 0)
    with torch.enable_grad():
        copies = copies.detach().requires_grad_()
        given = from_numbers(copies, like, subject.row_axes)
        after = as_numbers(subject.advance(x.repeat_interleave(size, 0).unsqueeze(1), given)[1], subject.row_axes)
        chosen = torch.eye(size, dtype=after.dtype, device=after.device).repeat(len(points), 1)
        (rows,) = torch.autograd.grad(after, copies, chosen)
    return rows.reshape(len(points), size, size).double().cpu()


def _frames(rows: int, size: int, count: int) -> Float64[Tensor, "frames rows n exponents"]:
    """Where Q begins: random orthonormal frames, and the unit vectors where they span everything."""
    # drawn whole, so that the first exponents of few and of all begin alike
    drawn = torch.randn(RANDOM_FRAMES, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    frames = torch.linalg.qr(drawn[..., :count])[0]
    if count == size:
        frames = torch.cat([torch.eye(size, dtype=torch.float64).unsqueeze(0), frames])
    return frames.unsqueeze(1).expand(-1, rows, -1, -1)


def _factored(jacobians: Iterator[Tensor], count: int | None) -> Float[Tensor, "steps frames rows exponents"]:
    """log |diag R| of J_t Q_t = Q_{t+1} R_{t+1} at every step, from each frame."""
    logs: list[Tensor] = []
    q: Tensor | None = None
    for jacobian in jacobians:
        if not bool(torch.isfinite(jacobian).all()):
            raise ModelError(
                f"expected a finite state and derivative, got NaN or infinity at step {len(logs)} of the trajectory; "
                "use smaller inputs or a stable model"
            )
        if q is None:
            rows, size = jacobian.shape[:2]
            q = _frames(rows, size, min(count or size, size))
        # at every step: after a few without it all columns point along the first exponent
        q, r = torch.linalg.qr(jacobian @ q)
        logs.append(r.diagonal(dim1=-2, dim2=-1).abs().log())
    return torch.stack(logs)


def _spectrum(logs: Tensor, dt: float, size: int) -> LyapunovSpectrum:
    steps, _, rows, _ = logs.shape
    means = logs.mean((0, 2)).numpy() / dt
    order = np.argsort(-means, axis=-1, kind="stable")
    means = np.take_along_axis(means, order, -1)
    # a frame that has not turned yet averages exponents, so that its partial sums are too small
    best = int(np.argmax(np.nan_to_num(means, neginf=-1e300 / size).cumsum(-1).sum(-1)))
    chosen = logs[:, best, :, torch.from_numpy(order[best])]
    blocks = torch.stack([part.mean(0) for part in chosen.tensor_split(BLOCKS)]).numpy() / dt
    parts = blocks.reshape(-1, blocks.shape[-1])
    with np.errstate(invalid="ignore"):  # -inf - -inf: a direction that every frame forgets is known exactly
        noise = np.nan_to_num(parts.std(0, ddof=1) / math.sqrt(len(parts)), nan=0.0)
        apart = np.nan_to_num(np.abs(means - means[best]), nan=0.0).max(0)
        left = np.nan_to_num(np.abs(blocks[-1].mean(0) - means[best]), nan=0.0)
    if means.shape[-1] == size and (noise <= ROUNDING * np.abs(means[best])).all():
        apart = np.zeros(size)  # a whole frame whose stretches never change has nothing to turn into
    turning = apart + 2 * np.where(_trend(blocks.mean(1)) >= TREND, left, 0.0)
    aligning = bool((turning > np.maximum(noise, RELATIVE_TOLERANCE * np.abs(means[best]))).any())
    status: Literal["converged", "aligning"] = "aligning" if aligning else "converged"
    return LyapunovSpectrum(means[best], noise + turning, steps, rows, size, dt, status)


def _trend(blocks: Float64[np.ndarray, "blocks exponents"]) -> Float64[np.ndarray, " exponents"]:
    """|Kendall's tau| of each column over its rows: 1 where it only rises or only falls."""
    i, j = np.triu_indices(len(blocks), 1)
    with np.errstate(invalid="ignore"):
        signs = np.nan_to_num(np.sign(blocks[j] - blocks[i]), nan=0.0)
    return np.abs(signs.mean(0))
