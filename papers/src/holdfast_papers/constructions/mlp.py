"""A multi-layer perceptron as state-space layers with zero recurrence (StableSSM, App. E, Fig. 7)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast.errors import ArgumentError
from holdfast.nn._from_weights import diagonal_layer
from holdfast.parameterizations import AbstractParameterization
from holdfast_papers.constructions.network import Chain

_NAMES: dict[type[nn.Module], str] = {
    nn.Tanh: "tanh",
    nn.ReLU: "relu",
    nn.GELU: "gelu",
    nn.Sigmoid: "sigmoid",
    nn.Identity: "identity",
}


@checked
def mlp_as_ssm(mlp: nn.Sequential, *, parameterization: str | AbstractParameterization = "direct") -> Chain:
    """The same function of every position as `mlp`, as one state-space layer for each of its linear layers.

    h1 = W1 x + b1, h2 = W2 sigma(h1) + b2, ... with recurrent weights 0; W2 is the first layer's readout, and so on (a
    layer is h+ = Lam h + U x + b, y = C sigma(h)). Equal to rounding: the sums are the same, in the same dtype
    (StableSSM, App. E, Fig. 7).

    Args:
        mlp: alternates nn.Linear and Tanh, ReLU, GELU, Sigmoid or Identity, and ends with nn.Linear.
        parameterization: of the recurrent weights, which are 0.
    """
    linears, activations = _read(mlp)
    dtype = linears[0].weight.dtype
    layers = []
    for index, linear in enumerate(linears):
        size = linear.out_features
        eye = torch.eye(size, dtype=dtype)
        last = index == len(linears) - 1
        layers.append(
            diagonal_layer(
                torch.zeros(size),
                linear.weight.detach() if index == 0 else eye,
                eye if last else linears[index + 1].weight.detach(),
                b=_bias(linear),
                activation="identity" if last else activations[index],
                parameterization=parameterization,
                dtype=dtype,
            )
        )
    return Chain(*layers)


def _bias(linear: nn.Linear) -> Tensor:
    return torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach()


def _read(mlp: nn.Sequential) -> tuple[list[nn.Linear], list[str]]:
    if not isinstance(mlp, nn.Sequential) or len(mlp) % 2 == 0:
        kind = type(mlp).__name__
        raise ArgumentError(
            f"expected an nn.Sequential that alternates Linear and activation and ends with Linear, got {kind} of "
            f"{len(mlp) if isinstance(mlp, nn.Sequential) else 'another kind'}"
        )
    linears, activations = [], []
    for index, part in enumerate(mlp):
        if index % 2 == 0:
            if not isinstance(part, nn.Linear):
                raise ArgumentError(f"entry {index} of the MLP must be nn.Linear, got {type(part).__name__}")
            linears.append(part)
            continue
        name = _NAMES.get(type(part))
        if name is None or (isinstance(part, nn.GELU) and part.approximate != "none"):
            known = ", ".join(kind.__name__ for kind in _NAMES)
            raise ArgumentError(f"entry {index} of the MLP must be one of {known} (exact GELU), got {part}")
        activations.append(name)
    return linears, activations
