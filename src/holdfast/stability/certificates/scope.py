"""Whether what the weights promise holds from every state or near the equilibrium only, and the words for it."""

from __future__ import annotations

from typing import Literal

import torch

from holdfast.nn import RecurrenceView
from holdfast.stability.certificates.contracting import Contracting, contraction_of, settles

Scope = Literal["global", "local", "stated"]
LOCAL = "local: the numbers hold for small deviations from the equilibrium; "
GATED = LOCAL + "gates bound the state, but it may have other places of rest"


def scope_of(view: RecurrenceView) -> tuple[Scope, tuple[str, ...], Contracting | None]:
    """Scope and notes of a recurrence, and by what a nonlinear one contracts."""
    if view.stated:
        return "stated", view.remarks, None
    if not view.nonlinear:
        return *_of_linear(view), None
    if view.elementwise:
        return _of_matrix(view)
    return "local", view.remarks or (GATED,), None


def _of_linear(view: RecurrenceView) -> tuple[Scope, tuple[str, ...]]:
    network = view.network()
    if network is None or network.activation == "linear":
        return "global", view.remarks
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


def _of_matrix(view: RecurrenceView) -> tuple[Scope, tuple[str, ...], Contracting | None]:
    """h+ = sigma(W h + ...) with tanh or ReLU: global where W contracts."""
    contracting = contraction_of(view.weights[0])
    if contracting is None:
        note = (
            LOCAL + "no scaling was found in which W has a numerical radius below 1, so that units which saturate or "
            "switch off may make far states grow: stabilize(model, allow_change=True) takes a W that has one"
        )
        return "local", (note,), None
    note = (
        f"global: two states on the same input come nearer by {contracting.factor:.6g} at least at each step, and from "
        f"rest |h| <= {contracting.gain:.4g} sup |W_ih x + b|"
    )
    return "global", (note,), contracting
