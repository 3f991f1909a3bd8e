"""Options of the measurements: what is sent in, which inputs are tried, how the model is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast._arguments import checked_fields
from holdfast.errors import ArgumentError, HoldfastError, ShapeError
from holdfast.memory._curve import Normalization
from holdfast.memory._subject import INPUT_ERRORS, Layout, Subject
from holdfast.memory.preserve import undisturbed

ProbeName = Literal["heaviside", "impulse", "reversed"]
PROBES: tuple[ProbeName, ...] = ("heaviside", "impulse", "reversed")
InputSearchName = Literal["auto", "grid", "ascent"]
ReversedForm = Literal["auto", "stream", "window"]
AMPLITUDES = (0.1, 1.0, 10.0)
MAX_DIRECTIONS = 64
MAX_COPIED_WEIGHTS = 100_000_000  # weights of which a float64 copy is made without being asked: 0.8 GB
TRIAL_STEPS = 8  # steps that the copy is tried on
ROUNDS_INSIDE = (
    "the model rounds to float32 inside (transformers' models compute norms and logits so): its rounding floor is that of "
    "float32, whatever the dtype of its weights"
)


@checked_fields
@dataclass(frozen=True)
class Probe:
    """The input that `memory_function` sends in, and how the answer is turned into numbers.

    Args:
        name: "heaviside", "impulse" or "reversed".
        normalization: "x" divides by |x|_inf, "x+1" by |x|_inf + 1 ("StableSSM", Def. 2.2).
        norm: order of the norm over several outputs, at least 1; inf takes the largest output.
        dt: duration of one step. It scales the times of the curve and the difference d/dt, not the model.
        burn_in: steps before the probe (of x itself for the reversed probe, of zeros for the others). None: until the
            output stands still.
        max_burn_in: most steps to wait for that. None: 4096, or up to 65536 for a model that continues from a state.
        form: for the reversed probe only. "stream" runs x until the output stands still and then zeros, in one pass.
            "window" is the paper's own form: horizon + 2 inputs that end at the same moment, O(horizon^2) steps. "auto"
            is "stream", or "window" where the output does not settle and the horizon is at most 256.
    """

    name: ProbeName = "heaviside"
    normalization: Normalization = "x"
    norm: float = math.inf
    dt: float = 1.0
    burn_in: int | None = None
    max_burn_in: int | None = None
    form: ReversedForm = "auto"

    def __post_init__(self) -> None:
        if self.form != "auto" and self.name != "reversed":
            raise ArgumentError(f"form={self.form!r} is for name='reversed', got name={self.name!r}; leave form out")
        if not 0 < self.dt < math.inf or not self.norm >= 1:
            raise ArgumentError(f"expected dt > 0 and norm >= 1, got dt={self.dt}, norm={self.norm}")
        # the reversed probe is the input before t = 0: without a step of it there is none
        shortest = 1 if self.name == "reversed" else 0
        if self.burn_in is not None and self.burn_in < shortest:
            raise ArgumentError(f"burn_in must be >= {shortest} for the probe {self.name!r}, got {self.burn_in}")
        if self.max_burn_in is not None and self.max_burn_in < 1:
            raise ArgumentError(f"max_burn_in must be at least 1, got {self.max_burn_in}")
        waits = self.burn_in is None and self.form != "window"
        if self.max_burn_in is not None and not waits:
            raise ArgumentError(
                "max_burn_in limits a burn-in of automatic length; leave it out when burn_in or form='window' is given"
            )
        if self.burn_in is not None and self.form == "window":
            raise ArgumentError("form='window' starts from the zero state without a burn-in; leave burn_in out")


@checked_fields
@dataclass(frozen=True, eq=False)
class InputSearch:
    """Which inputs x `memory_function` tries for the sup.

    Args:
        method: "grid": all sign vectors and unit vectors at all `amplitudes`; where there are more sign vectors than
            `budget`, the unit vectors alone (or random sign vectors, if even these are too many), at the middle
            amplitude. "auto": then the exact sup of a linear model from its responses to the unit vectors; for others
            the sign vectors that these responses point to, and the best directions at all amplitudes. "ascent": after
            "auto", gradient ascent from the best x.
        candidates: the x to try, (rows, input_size), instead of the grid.
        amplitudes: sizes |x|_inf at which a direction is tried, (0.1, 1, 10) if None. They matter for nonlinear models.
        budget: most directions that are tried in one round, 64 if None.
        seed: number or torch.Generator for the random inputs of the checks and of the search.
    """

    method: InputSearchName = "auto"
    candidates: Float[Tensor, "rows inputs"] | None = None
    amplitudes: Sequence[float] | None = None
    budget: int | None = None
    seed: int | torch.Generator = 0

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise ArgumentError(f"budget must be at least 1, got {self.budget}")
        if self.amplitudes is not None and not (
            self.amplitudes and all(math.isfinite(a) and a > 0 for a in self.amplitudes)
        ):
            raise ArgumentError(f"amplitudes must be finite numbers above 0, got {tuple(self.amplitudes)}")
        if self.candidates is None:
            return
        if self.method == "grid" or self.budget is not None or (self.amplitudes and self.method != "ascent"):
            raise ArgumentError("candidates replace the grid; leave out method='grid', budget and amplitudes")
        if self.candidates.ndim != 2 or len(self.candidates) == 0:
            raise ShapeError(
                f"candidates must have shape (rows, inputs), one x per row, got {tuple(self.candidates.shape)}"
            )
        if not bool((self.candidates.abs().amax(-1) > 0).all() and torch.isfinite(self.candidates).all()):
            raise ArgumentError("candidates must be finite and not 0, got a row that is 0, NaN or infinite; remove it")

    @property
    def sizes(self) -> tuple[float, ...]:
        """The amplitudes, increasing."""
        return tuple(sorted(self.amplitudes or AMPLITUDES))

    @property
    def middle(self) -> float:
        """The amplitude of a round that tries one."""
        return self.sizes[len(self.sizes) // 2]

    @property
    def directions(self) -> int:
        """The budget as a number."""
        return self.budget or MAX_DIRECTIONS


@checked_fields
@dataclass(frozen=True)
class Run:
    """How a model is called.

    Args:
        layout: "batch_first", or "time_first" for models that take (time, batch, features).
        mode: "eval" runs the model in evaluation mode, "as is" in the mode that it is in.
        dtype: dtype of the inputs; None is that of the model's first weight, or torch's default.
        device: device of the inputs; None is that of the model's first weight, or the CPU.
    """

    layout: Layout = "batch_first"
    mode: Literal["eval", "as is"] = "eval"
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None

    def subject(self, model: Callable[..., Any], input_size: int, *, double: bool = False) -> Subject:
        """The model as these options say.

        Args:
            model: any model that can be measured.
            input_size: number of input features.
            double: whether a float64 copy runs instead.
        """
        return Subject(model, input_size, layout=self.layout, dtype=self.dtype, device=self.device, double=double)

    def undisturbed(self, model: Callable[..., Any]) -> AbstractContextManager[None]:
        """Puts the model into the mode, and everything back at the end.

        Args:
            model: whose modules are kept as they were.
        """
        return undisturbed(model, evaluate=self.mode == "eval")


def widest(model: Callable[..., Any], input_size: int, layout: Layout = "batch_first") -> tuple[bool, str | None]:
    """Whether to measure a float64 copy, and why not where the model stays in a narrower dtype.

    Args:
        model: as `memory_function` takes it.
        input_size: number of input features.
        layout: "batch_first" or "time_first".
    """
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    kinds = {p.dtype for p in weights if p.is_floating_point()}
    if not isinstance(model, nn.Module) or not kinds:
        return False, "measured in the function's own precision: it has no weights to widen (dtype= sets its inputs')"
    # nothing to widen
    if kinds <= {torch.float64}:
        return False, None
    own = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    count = sum(p.numel() for p in model.parameters())
    if count > MAX_COPIED_WEIGHTS:
        copied = f"{count * 8 / 1e9:.1f} GB"
        return (
            False,
            f"measured in {own}: a float64 copy would take {copied}; memory_function(..., double=True) makes it",
        )
    try:
        with undisturbed(model, evaluate=True), torch.no_grad():
            subject = Subject(model, input_size, layout=layout, double=True)
            # only a run tells: a model may make float32 tensors of its own inside
            subject.raw(subject.zeros(1, TRIAL_STEPS))
    except (HoldfastError, *INPUT_ERRORS) as error:
        cause = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        return False, f"measured in {own}: a float64 copy does not run ({cause[0][:120]})"
    return True, None
