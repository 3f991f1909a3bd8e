"""What a layer says of its own recurrence, for perturbed weights in a batch, and the impulse responses of linear ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from holdfast.nn import AbstractRecurrent
from holdfast.parameterizations import AbstractMatrixParameterization

Kernels = Float[Tensor, "groups draws time outputs inputs"]


class System(nn.Module):
    """factor, B, b, C, D of the layer's linear system, as a module whose weights can be replaced."""

    def __init__(self, layer: AbstractRecurrent) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> tuple[Tensor, ...]:
        """The tensors of `nn.system.LinearSystem`."""
        system = self.layer.linear_system()
        assert system is not None
        return system.tensors()


def stack_systems(system: nn.Module, weights: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """What `system()` gives for every draw, computed in `dtype`; weights of its `layer` that are not given stay."""
    wide = {f"layer.{name}": value.to(dtype) for name, value in weights.items()}
    fixed = {
        name: value.detach().to(dtype)
        for name, value in (*system.named_parameters(), *system.named_buffers())
        if name not in wide
    }
    if not any(isinstance(m, AbstractMatrixParameterization) for m in system.modules()):
        return vmap(lambda w: functional_call(system, {**fixed, **w}, ()))(wide)
    # Cholesky factors and matrix roots with their own gradients have no batching rule
    draws = [dict(zip(wide, row, strict=True)) for row in zip(*(v.unbind() for v in wide.values()), strict=True)]
    each = [functional_call(system, {**fixed, **draw}, ()) for draw in draws]
    return tuple(torch.stack(tensors) for tensors in zip(*each, strict=True))


def kernels(system: System, weights: Mapping[str, Tensor], steps: int) -> Kernels:
    """Impulse responses for `steps` steps, one system a group; the last input is the bias.

    `weights` are (draws, *shape) by the layer's own names.
    """
    # float64: powers of a factor near 1 lose a digit for every tenfold of steps
    factor, B, b, C, D = stack_systems(system, weights, torch.float64)
    # the bias as one more input that is 1 at all times
    B = torch.cat([B, b.unsqueeze(-1)], dim=-1)
    response = _dense(factor, B, C, steps) if factor.ndim == 4 else _diagonal(factor, B, C, steps)
    direct = torch.cat([D, torch.zeros_like(D[..., :1])], dim=-1).unsqueeze(2)
    rest = direct.new_zeros(*direct.shape[:2], steps - 1, *direct.shape[3:])
    return (response + torch.cat([direct, rest], dim=2)).transpose(0, 1)


def _diagonal(
    factor: Float[Tensor, "draws groups n"] | Complex[Tensor, "draws groups n"], B: Tensor, C: Tensor, steps: int
) -> Float[Tensor, "draws groups time outputs inputs"]:
    """sum_n C_on factor_n^k B_ni; with k = width j + i only 2 sqrt(steps) powers of each factor are needed."""
    width = math.isqrt(max(steps - 1, 0)) + 1
    high = -(-steps // width)
    fine = _powers(factor, width + 1)
    coarse = _powers(fine[:, :, width], high)
    # (coarse outputs, n) and (fine inputs, n)
    left = coarse.unsqueeze(3) * C.unsqueeze(2)
    right = fine[:, :, :width].unsqueeze(3) * B.mT.contiguous().unsqueeze(2)
    product = left.flatten(2, 3) @ right.flatten(2, 3).mT
    shaped = product.unflatten(2, (high, C.shape[2])).unflatten(4, (width, B.shape[3]))
    ordered = shaped.transpose(3, 4).flatten(2, 3)[:, :, :steps]
    return ordered.real if ordered.is_complex() else ordered


def _powers(base: Tensor, count: int) -> Tensor:
    """1, base, base^2, ... along a new dimension before the last; products of neighbours cost a tenth of pow."""
    powers = [torch.ones_like(base)]
    for _ in range(count - 1):
        powers.append(powers[-1] * base)
    return torch.stack(powers, dim=-2)


def _dense(
    W: Float[Tensor, "draws groups n n"], B: Tensor, C: Tensor, steps: int
) -> Float[Tensor, "draws groups time outputs inputs"]:
    """C W^k B, one product a step."""
    state, outputs = B, []
    for _ in range(steps):
        outputs.append(C @ state)
        state = W @ state
    return torch.stack(outputs, dim=2)
