"""The gated residual in torch's operators, on any device and in any dtype."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


def gate_reference(
    y: Float[Tensor, "*batch width"],
    x: Float[Tensor, "*batch width"],
    weight: Float[Tensor, "double width"],
    bias: Float[Tensor, " double"],
) -> Float[Tensor, "*batch width"]:
    """x + p o sigmoid(q), [p | q] = gelu(y) weight' + bias, in torch's own operators.

    Args:
        y: what is gated (*batch, width).
        x: the residual (*batch, width).
        weight: weights of both halves [p | q] (2 width, width).
        bias: their bias (2 width,).
    """
    return x + functional.glu(functional.linear(functional.gelu(y, approximate="tanh"), weight, bias), dim=-1)
