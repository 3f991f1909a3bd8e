"""Everything that `holdfast stability` tells of a model, or of a family of them by width, as one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.errors import ArgumentError
from holdfast.laws import AbstractLaw
from holdfast.memory.preserve import undisturbed
from holdfast.stability._verdict import HARMLESS_SHARE, StabilityVerdict, assess_stability
from holdfast.stability.perturbation import Metric, PerturbationCurve, perturbation_error
from holdfast.stability.perturbation._curve import Censored, stability_radius
from holdfast.stability.perturbation._error import first_run
from holdfast.stability.perturbation._options import as_search

SINGLE_WIDTH = 0  # the width under which the curve of a single model stands


@dataclass(frozen=True, eq=False)
class StabilityStudy:
    """Error curves by width, and the family's verdict, or a single model's radius at `level`.

    Args:
        target: what outputs were compared with, in words.
        curves: the perturbation curve of each width; that of a single model stands under 0.
        verdict: of a family; None for a single model.
        radius: of a single model, the largest beta up to which its error stays at or below `level`; None for a family.
        censored: where the radius is only a bound "at least" or "at most"; "" where it is known.
        level: the error at which a single model counts as broken; None for a family.
    """

    target: str
    curves: dict[int, PerturbationCurve]
    verdict: StabilityVerdict | None = None
    radius: float | None = None
    censored: Censored = ""
    level: float | None = None

    @property
    def bad(self) -> bool:
        """Unstable or no approximation; or, for one model, not finite within the radii or broken at the smallest of them."""
        if self.verdict is not None:
            return self.verdict.verdict in ("unstable", "no approximation")
        return self.censored == "at most" or not bool(np.isfinite(self.curves[SINGLE_WIDTH].errors).all())

    def conclusion(self) -> list[str]:
        """The verdict, or the radius of a single model, in words."""
        return self._of_one() if self.verdict is None else _of_family(self.verdict)

    def _of_one(self) -> list[str]:
        assert self.radius is not None and self.level is not None
        sign = {"": "=", "at least": ">=", "at most": "<="}[self.censored]
        lines = [
            f"radius {sign} {self.radius:.3g}: weights may change by so much before outputs are off by {self.level:.3g}"
        ]
        curve = self.curves[SINGLE_WIDTH]
        # above half of the level a radius would measure the fit and not its stability
        if curve.at_zero > self.level / 2:
            lines.append(
                f"no approximation: without perturbation the error is {curve.at_zero:.3g}, more than half of that level"
            )
        diverged = ~np.isfinite(curve.errors)
        if diverged.any():
            lines.append(f"not finite from radius {curve.radii[diverged][0]:.3g} on")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, for JSON."""
        return {
            "target": self.target,
            "curves": {str(width): curve.to_dict() for width, curve in self.curves.items()},
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
            "radius": self.radius,
            "censored": self.censored,
            "level": self.level,
        }


def _of_family(v: StabilityVerdict) -> list[str]:
    marks = {"": "", "at least": ">= ", "at most": "<= "}
    radii = ", ".join(
        f"m = {m:g}: {marks[kind]}{r:.3g}" for m, r, kind in zip(v.widths, v.radii, v.censored, strict=True)
    )
    lines = [f"radii at level {v.levels.max():.3g}: {radii}"]
    if v.crossings:
        lines.append("curves cross: " + ", ".join(f"{c.narrow:g}/{c.wide:g} at {c.radius:.3g}" for c in v.crossings))
    return [*lines, f"{v.verdict.upper()}: {v.explanation}"]


def study_stability(
    model: nn.Module | Mapping[int, nn.Module],
    radii: Float[np.ndarray, " radii"],
    *,
    law: AbstractLaw | None = None,
    shape: tuple[int, int, int] = (32, 100, 1),
    level: float = HARMLESS_SHARE,
    progress: Callable[[str, int, int], None] | None = None,
    **options: Any,
) -> StabilityStudy:
    """Perturbs the weights of a model within every radius and says how far its outputs move.

    What `holdfast stability` prints. Inputs are normal sequences. For a family it also says whether the radius that a
    model survives shrinks with its width (iat, Def. 3.5).

    Args:
        model: one module, or a family {width: module}.
        radii: sizes beta of the perturbation, increasing.
        law: targets are then the linear functional with this kernel, of the mean over the features; None: targets are
            the model's own outputs.
        shape: of the inputs: (batch, length, input_size).
        level: the error up to which a model counts as unharmed, as a share of the norm of the targets.
        progress: called as `progress(label, done, total)` along the way.
        options: `metric`, `norm`, `draws` and `search` of `perturbation_error`; the seed of the search also sets the inputs.

    Returns:
        a StabilityStudy: the `curves` of errors, in units of the outputs, by width; of a family the `verdict`, of one model
        its `radius`, in units of the weights, and the `level` that it belongs to.

    Raises:
        ArgumentError: a shape that is not three numbers above 0, or radii that do not increase.
        UnknownNameError: a metric, a norm or a search that is not known.
        ModelError: a model that does not take inputs of `shape`, keeps a state between calls or draws noise.

    Example:
        >>> import numpy as np, torch, holdfast
        >>> _ = torch.manual_seed(0)
        >>> model, radii = torch.nn.RNN(1, 4, batch_first=True), np.array([0.01, 0.1, 1.0])
        >>> study = holdfast.stability.study_stability(model, radii, shape=(2, 20, 1), draws=4)
        >>> round(study.radius, 2), study.bad
        (0.09, False)
    """
    if len(shape) != 3 or min(shape) < 1:
        raise ArgumentError(f"shape must be (batch, length, input_size), each at least 1; got {shape}")
    search, metric = as_search(options.pop("search", "random"), options.pop("draws", None)), options.get("metric")
    time_first = isinstance(metric, Metric) and metric.layout == "time_first"
    family = dict(model) if isinstance(model, Mapping) else {SINGLE_WIDTH: model}
    curves: dict[int, PerturbationCurve] = {}
    for width, module in family.items():
        x, y = _data(module, law, shape, search.seed, time_first=time_first)
        label = "perturbing" if width == SINGLE_WIDTH else f"width {width}"
        told = search if progress is None else replace(search, progress=partial(progress, label))
        curves[width] = perturbation_error(module, x, y, radii, search=told, **options)
    described = "the model's own outputs" if law is None else f"a linear functional with kernel {law.name}"
    if isinstance(model, Mapping):
        return StabilityStudy(described, curves, assess_stability(curves, level=level))
    curve = curves[SINGLE_WIDTH]
    assert curve.target_norm is not None
    highest = level * curve.target_norm
    radius = stability_radius(curve, highest)
    return StabilityStudy(described, curves, None, radius.value, radius.censored, highest)


def _data(
    module: nn.Module, law: AbstractLaw | None, shape: Sequence[int], seed: int | torch.Generator, *, time_first: bool
) -> tuple[Tensor, Tensor]:
    """Normal inputs and their targets, in the layout that the model reads."""
    # a generator is left where it was for the perturbations
    generator = torch.Generator().manual_seed(seed if isinstance(seed, int) else seed.initial_seed())
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    given = x.transpose(0, 1).contiguous().to(dtype) if time_first else x.to(dtype)
    # targets are the outputs of the model as it is used: dropout off
    with undisturbed(module), torch.no_grad():
        y = first_run(module, given)
    if law is None:
        return given, y
    # in float64 and then rounded once: the target is not to carry the error of its own making
    wanted = _functional(law, x.mean(-1)).to(dtype).unsqueeze(-1)
    wanted = wanted.transpose(0, 1) if time_first else wanted
    return given, wanted.expand_as(y).contiguous()


def _functional(law: AbstractLaw, x: Float[Tensor, "batch time"]) -> Float[Tensor, "batch time"]:
    """y_t = sum_k x_{t-k} int_k^{k+1} rho: what a held input adds over each step, exact where rho changes within one."""
    steps = x.shape[1]
    k = torch.arange(steps, dtype=torch.float64)
    # twice as long, or the end would wrap around to the start
    signal = torch.fft.rfft(x, 2 * steps) * torch.fft.rfft(law.integral(k, k + 1), 2 * steps)
    return torch.fft.irfft(signal, 2 * steps)[:, :steps]
