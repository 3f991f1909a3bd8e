"""Linear functionals of a decay law: targets whose memory is known exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Complex128, Float64, Int64
from torch import Tensor

from holdfast import laws
from holdfast._arguments import checked, positive
from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.data._draws import generated_sizes, normal
from holdfast.errors import ArgumentError


class FunctionalTask(AbstractTask):
    """The functional y_t = sum over s <= t of k_s x_{t-s} of white noise x, with k from a decay law rho.

    "sampled" takes k_s = dt rho(s dt), the sum of the papers (iat, eq. 3 and Fig. 1; stable, Fig. 3); "held" takes the integral
    of rho over [s dt, (s + 1) dt], exact for the continuous functional where the input is held for each step. The sums are
    computed by Fourier transforms in float64 and given in float32, so their error is that of the last rounding. x is
    standard normal, drawn from (seed, split, index).

    Args:
        law: a decay law, or its name in `laws.LAWS`.
        constants: of a law that is named, by position or by name: [1.1] or {"exponent": 1.1}.
        length: steps of a sequence.
        dt: time between two steps.
        weights: "sampled" or "held".
        features: inputs at each step, each with a functional of its own.
        train: number of training samples; None: generated endlessly.
        valid: number of validation samples; 0: no such split.
        test: number of test samples; 0: no such split.
        seed: of the noise.
    """

    @checked
    def __init__(
        self,
        law: laws.AbstractLaw | str = "power",
        constants: Sequence[float] | Mapping[str, float] = (1.5,),
        length: int = 100,
        *,
        dt: float = 1.0,
        weights: Literal["sampled", "held"] = "sampled",
        features: int = 1,
        train: int | None = None,
        valid: int = 1024,
        test: int = 1024,
        seed: int = 0,
    ) -> None:
        positive(length=length, features=features, train=train)
        if isinstance(law, str):
            law = _law(law, constants)
        space = Space("features", features)
        super().__init__("functional", "regress", space, space, length, generated_sizes(train, valid, test))
        self.law, self.dt, self.weights, self.seed = law, dt, weights, seed
        self.kernel = _kernel(law, length, dt, weights)
        # a transform of twice the length keeps the end of the kernel from wrapping onto the start
        self._points = 1 << (2 * length - 1).bit_length()
        self._spectrum: Complex128[Tensor, " frequencies"] = torch.fft.rfft(self.kernel, self._points)

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        features = self.inputs.size
        # features before time: the transforms run along the last dimension
        x = normal(self.seed, split, indices, self.length * features).view(-1, features, self.length)
        y = torch.fft.irfft(torch.fft.rfft(x, self._points) * self._spectrum, self._points)[..., : self.length]
        return Batch(x.mT.float(), y.mT.float())

    def describe(self) -> str:
        return f"linear functional of {self.law.name}, {self.weights} with dt {self.dt:g}, {self.length:,} steps of white noise"

    def identity(self) -> dict[str, Any]:
        return {
            "task": self.name, "law": self.law.name, "dt": self.dt, "weights": self.weights, "length": self.length,
            "features": self.inputs.size, "seed": self.seed, "sizes": dict(self._sizes),
        }  # fmt: skip


def _law(name: str, constants: Sequence[float] | Mapping[str, float]) -> laws.AbstractLaw:
    return laws.get(name, **constants) if isinstance(constants, Mapping) else laws.get(name, *constants)


def _kernel(law: laws.AbstractLaw, length: int, dt: float, weights: str) -> Float64[Tensor, " time"]:
    if not 0 < dt < float("inf"):
        raise ArgumentError(f"dt must be a finite number above 0, got {dt!r}")
    times = dt * torch.arange(length, dtype=torch.float64)
    kernel = dt * law(times) if weights == "sampled" else law.integral(times, times + dt)
    if not bool(kernel.isfinite().all()):
        step = int((~kernel.isfinite()).nonzero()[0])
        raise ArgumentError(
            f"expected a law with finite weights, got {law.name}, whose weight at step {step} (t = {step * dt:g}) is not; "
            "choose another law or constants"
        )
    return kernel
