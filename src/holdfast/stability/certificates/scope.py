"""Whether what the weights promise holds from every state or near the equilibrium only, and the words for it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from holdfast.nn import AbstractRecurrent
from holdfast.stability.certificates.contracting import Contracting, settles

Scope = Literal["global", "local"]
LOCAL = "local: the numbers hold for small deviations from the equilibrium; "
GATED = LOCAL + "gates bound the state, but it may have other places of rest"


def layer_scope(layer: AbstractRecurrent) -> tuple[Scope, tuple[str, ...]]:
    """Scope and notes of a layer of ours that has a matrix or eigenvalues."""
    network = layer.rate_network()
    if network is None or network.activation == "linear":
        return "global", layer.remarks
    W = network.W.detach()
    if W.ndim == 1 or (bool(torch.isfinite(W).all()) and settles(W, network.dt)):
        return "global", (
            f"global: on a constant input every state comes to rest, at Euler steps up to dt = {network.dt:g}; on a changing "
            "one tanh and hardtanh move each unit by at most dt a step",
        )
    if network.activation in ("tanh", "hardtanh"):
        return "local", (
            "local: linearised at the equilibrium W h = -b, where the slope of the activation is 1; states far from it may "
            "behave otherwise (iat, Fig. 11)",
        )
    return "local", (
        f"local: {network.activation} is outside the activations of iat, Thm 3.9: it has no equilibrium at which its slope is "
        "1, so that these numbers are those of W alone",
    )


def torch_scope(module: nn.RNNBase, contracting: Contracting | None) -> tuple[Scope, tuple[str, ...]]:
    """Scope and notes of a torch module, given by what it contracts."""
    if not isinstance(module, nn.RNN):
        return "local", (GATED,)
    if contracting is None:
        return "local", (
            LOCAL + "no scaling was found in which W has a numerical radius below 1, so that units which saturate or "
            "switch off may make far states grow: stabilize(model, allow_change=True) takes a W that has one",
        )
    return "global", (
        f"global: two states on the same input come nearer by {contracting.factor:.6g} at least at each step, and from "
        f"rest |h| <= {contracting.gain:.4g} sup |W_ih x + b|",
    )
