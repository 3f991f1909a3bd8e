"""The weights of a layer: where they start, in memory of their own and with numbers where a number is needed.

A layer may be built on the meta device and filled later. A diagonal recurrence then takes no memory, and the constants
of its parameterization come with the state dict; a matrix is still computed on the CPU, since the number of its complex
pairs decides the shapes of its free weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, ParamSpec

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast._types import Time
from holdfast.errors import ArgumentError, DtypeError, ShapeError
from holdfast.nn._precision import project, state_dtype, widened
from holdfast.parameterizations import AbstractParameterization, fit_constants, get

P = ParamSpec("P")
Device = torch.device | str

# Step sizes and rates are held inside these, wherever the weights go: exp(89) is inf and exp(-104) is 0 in float32, and
# either ends a recurrence in NaN. Inside, |lam dt|^2 stays below 3e36, so that complex quotients are finite too.
MIN_DT, MAX_DT = 1e-12, 1e6
MAX_RATE = 1e12  # of -Re lam and |Im lam|, per unit of time
ReadOut = Literal["plain", "scaled"]
MARK = "readout_is_scaled"  # buffer that keeps weights of one kind out of a layer of the other


def placeable(init: Callable[P, None]) -> Callable[P, None]:
    """A constructor whose keyword arguments `device` and `dtype` are those of all tensors that it makes.

    They are torch's defaults while it runs, so that what it builds inside follows. The default dtype belongs to the process:
    another thread that makes tensors meanwhile would see it.
    """

    @functools.wraps(init)
    def build(*args: P.args, **kwargs: P.kwargs) -> None:
        device, dtype = kwargs.get("device"), kwargs.get("dtype")
        if device is None and dtype is None:
            return init(*args, **kwargs)
        assert device is None or isinstance(device, Device)
        assert dtype is None or isinstance(dtype, torch.dtype)
        with _defaults(device, dtype):
            init(*args, **kwargs)
        if dtype is not None and dtype is not state_dtype(dtype):
            _round(args[0], dtype, {m for value in args[1:] if isinstance(value, nn.Module) for m in value.modules()})
        return None

    return build


@contextmanager
def _defaults(device: Device | None, dtype: torch.dtype | None) -> Iterator[None]:
    """torch's default device and dtype; float32 of half precision, in which no weight can be solved for."""
    before = torch.get_default_dtype()
    if dtype is not None and not dtype.is_floating_point:
        raise DtypeError(f"dtype must be a floating one, such as torch.float32, got {dtype}")
    try:
        torch.set_default_dtype(before if dtype is None else state_dtype(dtype))
        with torch.device(torch.get_default_device() if device is None else device):
            yield
    finally:
        torch.set_default_dtype(before)


def _round(module: object, dtype: torch.dtype, given: set[nn.Module]) -> None:
    """Rounds all weights to half precision but those of modules that were passed as arguments."""
    assert isinstance(module, nn.Module)
    for own in module.modules():
        if own not in given:
            own._apply(lambda t: t.to(dtype) if t.is_floating_point() else t, recurse=False)


def uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """A weight drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), torch's rule for linear layers."""
    return nn.Parameter(torch.empty(*shape).uniform_(-(fan_in**-0.5), fan_in**-0.5))


def free_weight(
    parameterization: str | AbstractParameterization, time: Time, lam: Float[Tensor, "*any"]
) -> tuple[AbstractParameterization, nn.Parameter]:
    """The parameterization with constants that hold `lam`, real and on the CPU, and the weight that gives it.

    Of `lam` on the meta device only the shape is known: the constants stay the default ones.
    """
    if lam.is_meta:
        return get(parameterization, time=time), placed(lam.to(torch.get_default_dtype()))
    # constants are numbers, and reading them back from a GPU would make the host wait
    with torch.device("cpu"):
        f = fit_constants(get(parameterization, time=time), lam)
        free = f.inverse(lam.to(torch.get_default_dtype()))
    return f, placed(free)


def placed(values: Tensor, home: torch.device | None = None) -> nn.Parameter:
    """A weight in memory of its own, on the device `home`; None is the default device."""
    moved = values.to(home or torch.get_default_device())
    # an expanded start would be one number under many names
    return nn.Parameter(moved.clone(memory_format=torch.contiguous_format))


def starting_values(given: Tensor | None, make: Callable[[], Tensor], *, home: torch.device | None = None) -> Tensor:
    """`given`, or what `make` gives on the device `home`; None is the CPU, or meta where the layer is built there."""
    if given is not None:
        return given.detach() if given.is_meta else given.detach().cpu()
    meta = torch.get_default_device().type == "meta"
    with home or torch.device("meta" if meta else "cpu"):
        return make()


def own_values(parameterization: AbstractParameterization, w: Tensor) -> Tensor:
    """f(w), in float32 of half precision, and never the weight itself: what is done to it stays with the caller."""
    values = parameterization(widened(w))
    if parameterization.time == "continuous":
        return values.clamp(min=-MAX_RATE)
    return values.clone() if values is w else values


def read_out(features: int, out_features: int) -> nn.Parameter | None:
    """A matrix E (out_features, features) behind a layer whose outputs are its features; None where they are as many."""
    return None if out_features == features else uniform(out_features, features, fan_in=features)


def mixed(y: Float[Tensor, "*any features"], E: Tensor | None) -> Float[Tensor, "*any out"]:
    """E y, or y where there is no E."""
    return y if E is None else project(y, E)


def step_bias(count: int, dt_min: float, dt_max: float) -> Tensor:
    """Biases whose softplus is log-uniform between `dt_min` and `dt_max`."""
    target = torch.exp(torch.rand(count) * math.log(dt_max / dt_min) + math.log(dt_min))
    # the inverse of softplus without overflow: log(e^x - 1) = x + log(1 - e^-x)
    return target + torch.log(-torch.expm1(-target))


def held_bias(bias: Tensor) -> Tensor:
    """A bias of softplus whose own step stays finite; what inputs add to it has no bound."""
    return bias.clamp(max=min(MAX_DT, torch.finfo(bias.dtype).max))


def input_steps(raw: Tensor, bias: Tensor, dt: Tensor | float | None) -> Tensor:
    """Step sizes softplus(raw + bias) (..., channels) times `dt`, a number or (...)."""
    delta = functional.softplus(raw + held_bias(bias))
    return delta if dt is None else delta * (dt.unsqueeze(-1) if isinstance(dt, Tensor) else dt)


def check_step_range(dt_min: float, dt_max: float) -> None:
    """Refuses a range of step sizes that is empty or reaches 0 or infinity."""
    if not 0 < dt_min <= dt_max < math.inf:
        raise ArgumentError(f"expected 0 < dt_min <= dt_max, both finite, got dt_min={dt_min!r}, dt_max={dt_max!r}")


def as_eigenvalues(given: Tensor, shape: tuple[int, ...], *, real: bool, layer: str) -> Tensor:
    """Checks eigenvalues that a user gave: shape, and real where the layer's are."""
    if tuple(given.shape) != shape:
        raise ShapeError(f"{layer}: expected eigenvalues of shape {shape}, got {tuple(given.shape)}")
    if real and given.is_complex():
        if bool((given.imag != 0).any()):
            raise ArgumentError(f"{layer}: expected real eigenvalues, got some with an imaginary part")
        given = given.real
    return given.detach()


def check_read_out(layer: nn.Module, readout: ReadOut) -> None:
    """Refuses what is neither; marks a layer whose C is scaled, so that a state dict of the other kind does not load."""
    if readout not in ("plain", "scaled"):
        raise ArgumentError(f"readout must be 'plain' or 'scaled', got {readout!r}")
    if readout == "scaled":
        # a buffer that only one kind has: torch names it as missing or unexpected
        layer.register_buffer(MARK, torch.ones(()))


def read_scale(f: AbstractParameterization, w: Tensor, modes: int) -> Tensor:
    """margin(f(w_i)) / sqrt(m): |f(w_i)| in continuous time, 1 - |f(w_i)| in discrete time, over the root of the modes.

    A mode c e^{f t} has the L1 norm |c| / |f|, so that a change of gamma in c_i = gamma_i |f(w_i)| / sqrt(m) by beta in the
    2-norm changes the kernel by at most sum_i |beta_i| / sqrt(m) <= beta in L1.

    Args:
        f: the parameterization of the rates.
        w: their free weights.
        modes: m, of one output.
    """
    return f._margin(widened(w)) / math.sqrt(modes)  # `margin` checks its arguments, which torch.compile cannot trace
