"""What every scalar parameterization lam = f(w) of a recurrent eigenvalue offers."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast._readers import holds_numbers
from holdfast._types import Time
from holdfast.errors import ArgumentError, DtypeError, RangeError
from holdfast.parameterizations._modulus import numerical_modulus


class Named(nn.Module):
    """A module that writes `key`, `time` and its constants into the state dict, as one tensor of bytes.

    A tensor, because safetensors holds nothing else, and of bytes, because `.to(bfloat16)` rounds every other kind.
    Loaded into a module of the same name the constants are taken over, into one of another name they are refused:
    the same free weights would mean another recurrence. Layers translate them first (`_saved.py`).
    """

    key: ClassVar[str]
    time: Time

    def constants(self) -> dict[str, float]:
        """The numbers that the map depends on beside its free weights."""
        return {name: value for name, value in self.__dict__.items() if isinstance(value, float)}

    def _identity(self) -> str:
        return self.key

    def get_extra_state(self) -> Tensor:
        """Name, time and constants."""
        text = json.dumps({"name": self._identity(), "time": self.time, "constants": self.constants()})
        # as bytes in a tensor: safetensors keeps nothing else
        return torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        """Takes the constants over where the name is the same; raises otherwise."""
        saved = decoded(state)
        got, here = (saved.get("name"), saved.get("time")), (self._identity(), self.time)
        constants = saved.get("constants")
        if got != here or not isinstance(constants, dict) or set(constants) != set(self.constants()):
            raise ArgumentError(
                f"expected a state dict for the parameterization {here[0]!r} ({here[1]} time), got one for {got[0]!r} "
                f"({got[1]} time), whose free weights mean other eigenvalues; build the layer with the saved "
                "parameterization, call stabilize(...) with the arguments used before saving, or undo() it before "
                "saving"
            )
        self._check_constants(constants)
        for name, value in constants.items():
            setattr(self, name, float(value))

    def _check_constants(self, constants: dict[str, Any]) -> None:
        """Refuses constants that the constructor refuses: best with a = b = -5 is unstable for every weight."""
        if constants:
            # built and dropped: the constructor has the checks
            type(self)(**constants)


def decoded(state: Any) -> dict[str, Any]:
    """Name, time and constants as they were saved."""
    try:
        description = json.loads(bytes(state.cpu().tolist()))
    except (AttributeError, TypeError, ValueError):
        description = None
    if not isinstance(description, dict):
        raise ArgumentError(
            "the parameterization's name in the state dict cannot be read, so the file was converted or truncated; save it "
            "again with model.state_dict()"
        )
    return description


@dataclass(frozen=True)
class Range:
    """An interval of real numbers: the values that f takes.

    Args:
        low: left end.
        high: right end.
        low_open: whether the left end itself is left out.
        high_open: whether the right end itself is left out.
    """

    low: float
    high: float
    low_open: bool = True
    high_open: bool = True

    def contains(self, values: Float[Tensor, "*any"]) -> Tensor:
        """True where one of the `values` lies inside; NaN lies nowhere."""
        above = values > self.low if self.low_open else values >= self.low
        below = values < self.high if self.high_open else values <= self.high
        return above & below

    def __str__(self) -> str:
        return f"{'(' if self.low_open else '['}{self.low:g}, {self.high:g}{')' if self.high_open else ']'}"


class AbstractParameterization(Named, ABC):
    """A map lam = f(w) from a free weight to an eigenvalue, elementwise.

    Continuous time: dh/dt = lam h, stable for lam < 0. Discrete time: h+ = lam h, stable for |lam| < 1. For complex
    eigenvalues f gives the real part (continuous) or the modulus (discrete). An instance has no weights of its own and
    can be handed to `torch.nn.utils.parametrize.register_parametrization`. Its name and constants are in the state dict.
    """

    @property
    @abstractmethod
    def range(self) -> Range:
        """The interval of values of f."""

    @abstractmethod
    def _value(self, w: Tensor) -> Tensor: ...

    @abstractmethod
    def _inverse(self, lam: Tensor) -> Tensor: ...

    @abstractmethod
    def _derivative(self, w: Tensor) -> Tensor: ...

    def _margin(self, w: Tensor) -> Tensor:
        lam = self._value(w)
        return -lam if self.time == "continuous" else 1 - lam.abs()

    def _scale(self, w: Tensor) -> Tensor:
        """The corrected gradient scale; overridden where the quotient loses digits or overflows."""
        margin = self._margin(w)
        scale = self._derivative(w).abs() / margin**2
        return torch.where(margin > 0, scale, torch.full_like(scale, math.inf))

    def _printed_scale(self, w: Tensor) -> Tensor:
        """The paper's formula; overridden where Table 1 prints another one."""
        if self.time == "continuous":
            return self._scale(w)
        return self._derivative(w).abs() / (1 - self._value(w)) ** 2

    def _modulus(self, beta: float) -> float:
        return numerical_modulus(self._value, self.time, beta)

    def forward(self, w: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """lam = f(w)."""
        return self._value(_floating(w, "w"))

    def inverse(self, lam: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """A weight w with f(w) = lam (the non-negative one where there are two); refuses values outside `range`."""
        if not holds_numbers(_floating(lam, "lam")):
            raise ArgumentError(
                f"lam must be a tensor whose values can be read, got a {type(lam).__name__} on {lam.device}"
            )
        inside = self.range.contains(lam)
        if not bool(inside.all()):
            outside = lam.detach()[~inside].flatten()
            shown = ", ".join(f"{v:.6g}" for v in outside[:8].tolist()) + (", ..." if len(outside) > 8 else "")
            raise RangeError(
                f"lam must be in the range {self.range} of {self!r}, got {len(outside)} of {lam.numel()} eigenvalues "
                f"outside it: {shown}; change them, or choose a parameterization or constants with a range that holds "
                "them"
            )
        return self._inverse(lam)

    def right_inverse(self, lam: Tensor) -> Tensor:
        """`inverse` of lam, by the name that torch.nn.utils.parametrize looks for."""
        return self.inverse(lam)

    def derivative(self, w: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """f'(w)."""
        return self._derivative(_floating(w, "w"))

    def margin(self, w: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """Distance of f(w) to the stability boundary: -f(w), or 1 - |f(w)|; negative where unstable.

        Computed without the cancellation of 1 - |f(w)|, so accurate also where f(w) rounds to 1.
        """
        return self._margin(_floating(w, "w"))

    @checked
    def gradient_scale(
        self, w: Float[Tensor, "*any"], *, form: Literal["corrected", "printed"] = "corrected"
    ) -> Float[Tensor, "*any"]:
        """G_f(w), the factor by which the gradient with respect to w is bounded (StableSSM, Thm 3.4 and Table 1).

        Continuous |f'|/f^2; discrete |f'|/(1 - |f|)^2. Where the recurrence is unstable G is inf.

        Args:
            w: free weights.
            form: "corrected" is the formula above. "printed" gives the paper's (1 - f)^2 in discrete time, right only
                for f >= 0.
        """
        w = _floating(w, "w")
        if form == "corrected":
            return self._scale(w)
        if form != "printed":
            raise ArgumentError(f"form must be 'corrected' or 'printed', got {form!r}")
        return self._printed_scale(w)

    @checked
    def modulus(self, beta: float) -> float:
        """g(beta) = sup_w |f(w)| sup_{|v-w|<=beta} int_0^inf |e^{f(v)t} - e^{f(w)t}| dt (StableSSM, Def. 3.2).

        In discrete time the sum over k of |f(v)^k - f(w)^k|, times 1 - |f(w)|. inf where no bound exists: then f is
        not a stable reparameterization.
        """
        if not (math.isfinite(beta) and beta >= 0):
            raise ArgumentError(f"beta must be a finite number >= 0, got {beta!r}")
        return 0.0 if beta == 0 else float(self._modulus(float(beta)))

    def __repr__(self) -> str:
        constants = [f"{name}={value:g}" for name, value in self.constants().items()]
        return f"{self.key}({', '.join([self.time, *constants])})"


def _floating(x: Tensor, name: str) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise DtypeError(f"{name} must be a real floating-point tensor, got {got}; convert it first")
    if x.is_nested or x.layout is not torch.strided:
        kind = "a nested tensor" if x.is_nested else f"layout {x.layout}"
        raise ArgumentError(f"{name} must be a dense tensor, got {kind}; call .to_dense() or pad it")
    return x


def below_one(dtype: torch.dtype) -> float:
    """The largest number of `dtype` under 1: an eigenvalue that rounds to 1 would never forget."""
    return 1 - torch.finfo(dtype).eps / 2


# e^w rounds w first: one part in 1/eps less keeps exp(limit) finite
_EXP_LIMITS = {
    dtype: math.log(torch.finfo(dtype).max) * (1 - 2 * torch.finfo(dtype).eps)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}


def exp_limit(dtype: torch.dtype) -> float:
    """The largest w whose exponential is finite in `dtype`."""
    return _EXP_LIMITS[dtype]
