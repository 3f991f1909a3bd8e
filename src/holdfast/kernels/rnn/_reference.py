"""The nonlinear RNN as a plain loop over time: what the other backends are measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from holdfast.kernels._common import checks

Activation = Literal["tanh", "hardtanh", "relu", "sigmoid", "linear"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "hardtanh": F.hardtanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "linear": lambda z: z,
}


class RNNTensors(NamedTuple):
    """The tensors of every fast version, all in one real dtype."""

    x: Tensor  # (batch, time, features)
    w: Tensor  # (state, state), or (state,) for a diagonal W
    u: Tensor  # (state, features)
    b: Tensor | None  # (state,)
    h0: Tensor | None  # (batch, state)
    dts: Tensor | None  # step sizes (batch, time), where they are not one number
    lengths: Tensor | None  # (batch,)


class RNNSettings(NamedTuple):
    """The arguments of the recurrence that are not tensors."""

    activation: str
    dt: float | None  # None without Euler steps, 1 where dts has them
    reverse: bool
    backend: str  # what was asked for: chosen when the operator runs


class RNNSaved(NamedTuple):
    """What backward reads; b is not among it."""

    x: Tensor
    w: Tensor
    u: Tensor
    h0: Tensor | None
    dts: Tensor | None
    lengths: Tensor | None
    h: Tensor  # states (batch, time, state)
    y: Tensor  # activations of Euler steps, shaped like h; empty without them


def state_dtype(x: Tensor) -> torch.dtype:
    """The dtype of states and sums: float32 for bfloat16 and float16 inputs, else that of x."""
    return torch.float32 if x.dtype in checks.HALF else x.dtype


def rnn_reference(
    x: Float[Tensor, "batch time features"],
    w: Float[Tensor, "state state"] | Float[Tensor, " state"],
    u: Float[Tensor, "state features"],
    b: Float[Tensor, " state"] | None = None,
    h0: Float[Tensor, "batch state"] | None = None,
    *,
    dt: float | Float[Tensor, "batch time"] | None = None,
    activation: Activation = "tanh",
    lengths: Int64[Tensor, " batch"] | None = None,
    reverse: bool = False,
) -> tuple[Float[Tensor, "batch time state"], Float[Tensor, "batch state"]]:
    """States of the RNN at all steps and after the last one, by a plain loop; `holdfast.kernels.rnn` has the formula.

    Differentiable any number of times by autograd, in any real dtype; keeps O(batch time state) numbers several times
    over.

    Args:
        x: inputs (batch, time, features).
        w: recurrent weights (state, state), or (state,) for a diagonal W.
        u: input weights (state, features).
        b: bias (state,), or None.
        h0: state before the first step (batch, state); None is zero.
        dt: None for the discrete form; else the Euler step, a number or (batch, time).
        activation: a name in ACTIVATIONS.
        lengths: int64 (batch,): padding, the steps past a row's length, is never read, so it may hold anything, NaN
            included.
        reverse: run from the last step to the first.
    """
    dtype, sigma = state_dtype(x), ACTIVATIONS[activation]
    w, u = w.to(dtype), u.to(dtype)
    h = x.new_zeros((x.shape[0], u.shape[0]), dtype=dtype) if h0 is None else h0.to(dtype)
    states: list[Tensor] = [h] * x.shape[1]
    for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        live = None if lengths is None else (t < lengths)[:, None]
        inputs = x[:, t].to(dtype)
        if (
            live is not None
        ):  # before the product: padding may be NaN, and a mask after it would keep NaN in the gradient
            inputs = torch.where(live, inputs, 0)
        z = inputs @ u.T + (h * w if w.ndim == 1 else h @ w.T)
        following = sigma(z if b is None else z + b.to(dtype))
        if dt is not None:
            step = dt[:, t, None].to(dtype) if isinstance(dt, Tensor) else dt
            if live is not None and isinstance(step, Tensor):
                step = torch.where(live, step, 0)
            following = h + step * following
        h = following if live is None else torch.where(live, following, h)
        states[t] = h if live is None else torch.where(live, h, 0)
    stacked = torch.stack(states, dim=1) if states else h.new_zeros((h.shape[0], 0, h.shape[1]))
    return stacked.to(x.dtype), h
