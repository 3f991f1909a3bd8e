"""How far a promise reaches: whether a nonlinear recurrence contracts, from which states, and what has to be said."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from holdfast.errors import RangeError
from holdfast.nn import RecurrenceView
from holdfast.nn._views.rest import PATIENT_STEPS, Equilibria
from holdfast.nn._views.view import MemoryWeight
from holdfast.parameterizations import Contraction, EulerContraction
from holdfast.parameterizations._factors import contractive_factor
from holdfast.stability.certificates._lyapunov import DEFECTIVE_CONDITION, MatrixAnalysis

CertificateScope = Literal["global", "local", "stated"]
LOCAL_NOTE = "local: the numbers hold for small deviations from the equilibrium; "
GATED_NOTE = LOCAL_NOTE + "gates bound the state, but it may have other places of rest"


def scope_of(view: RecurrenceView) -> tuple[CertificateScope, tuple[str, ...], ContractionBound | None]:
    """Scope and notes of a recurrence, and by what a nonlinear one contracts."""
    if view.stated:
        return "stated", view.remarks, None
    if not view.nonlinear:
        return *_of_linear(view), None
    if view.elementwise:
        return _of_matrix(view)
    return "local", view.remarks or (GATED_NOTE,), None


def _of_linear(view: RecurrenceView) -> tuple[CertificateScope, tuple[str, ...]]:
    network = view.network()
    if network is None or network.activation == "linear":
        return "global", view.remarks
    W = network.W.detach()
    # a diagonal W couples no units: each comes to rest by itself
    if W.ndim == 1 or (bool(torch.isfinite(W).all()) and settles(W, network.dt)):
        return "global", (
            f"global: on a constant input every state comes to rest, at Euler steps up to dt = {network.dt:g}; on a changing "
            "one tanh and hardtanh move each unit by at most dt a step",
        )
    if network.activation in ("tanh", "hardtanh"):
        return "local", (
            "local: linearized at the equilibrium W h = -b, where the slope of the activation is 1; states far from it may "
            "behave otherwise (iat, Fig. 11)",
        )
    return "local", (
        f"local: {network.activation} is outside the activations of iat, Thm 3.9: it has no equilibrium at which its slope is "
        "1, so that these numbers are those of W alone",
    )


def _of_matrix(view: RecurrenceView) -> tuple[CertificateScope, tuple[str, ...], ContractionBound | None]:
    """h+ = sigma(W h + ...) with tanh or ReLU: global where W contracts."""
    contracting = contraction_of(view.weights[0])
    if contracting is None:
        note = (
            LOCAL_NOTE
            + "no scaling was found in which W has a numerical radius below 1, so that units which saturate or "
            "switch off may make far states grow: stabilize(model, allow_change=True) takes a W that has one"
        )
        return "local", (note,), None
    note = (
        f"global: two states on the same input come nearer by {contracting.factor:.6g} at least at each step, and from "
        f"rest |h| <= {contracting.gain:.4g} sup |W_ih x + b|"
    )
    return "global", (note,), contracting


@dataclass(frozen=True)
class ContractionBound:
    """Two states that see the same inputs come nearer by `factor` at each step, in a norm that is the form's own.

    From rest |h|_2 <= gain sup |drive|_2, drive = W_ih x + b, at all times and for all inputs.
    """

    factor: float
    gain: float


def contraction_of(weight: MemoryWeight) -> ContractionBound | None:
    """That of h+ = sigma(W h + ...); of its own free weights where it was stabilized, else of W if the form holds it."""
    W = weight.value.cpu().double()
    form, free = Contraction(), None
    if parametrize.is_parametrized(weight.module, weight.name):
        stack = weight.module.parametrizations[weight.name]  # type: ignore[index]
        # its own free weights prove more than a search for others would: the inverse may miss a W near the boundary
        if isinstance(stack[0], Contraction):
            free = tuple(getattr(stack, f"original{i}").detach().cpu() for i in range(3))
    try:
        return _measured(form, form.right_inverse(W) if free is None else free)
    except RangeError:
        return None


def _measured(form: Contraction, free: tuple[Tensor, ...]) -> ContractionBound:
    factor = float(torch.linalg.matrix_norm(contractive_factor(free[0].double()), 2))
    # |h| in the 2-norm from h'Hh, whose smallest eigenvalue is the worst direction
    H = form.metric(*free)
    largest = float(form.scales(*free).max())
    smallest = float(torch.linalg.eigvalsh(H)[0])
    # |D v|^2 (1 + A) <= 2 |D v|^2
    gain = math.sqrt(2 / smallest) * largest / (1 - factor) if smallest > 0 and factor < 1 else math.inf
    return ContractionBound(factor, gain)


def settles(W: Tensor, dt: float) -> bool:
    """Whether Euler steps of `dt` come to rest on every constant input, by the form that says so."""
    try:
        EulerContraction(dt).right_inverse(W.detach().cpu().double())
    except RangeError:
        return False
    return True


@dataclass(frozen=True)
class EulerStep:
    """Euler's rule with step dt: stable only while |1 + dt lam| < 1, up to `largest_dt` (0 where no step is)."""

    dt: float
    radius: float
    largest_dt: float

    @property
    def stable(self) -> bool:
        """Whether every mode shrinks from step to step."""
        return self.radius < 1


def remarks(analysis: MatrixAnalysis, euler: EulerStep | None, equilibria: Equilibria | None) -> list[str]:
    """A long Euler step, few digits, no Lyapunov solution, other equilibria."""
    notes = []
    if euler is not None and not euler.stable and analysis.margin > 0:
        notes.append(
            f"the generator is stable but Euler's step dt = {euler.dt:g} is not: |1 + dt lam| reaches {euler.radius:.4g}; "
            f"take dt below {euler.largest_dt:.4g}"
        )
    if analysis.eigenvector_condition > DEFECTIVE_CONDITION:
        notes.append(
            f"the matrix is defective or nearly so (eigenvector condition {analysis.eigenvector_condition:.1e}): its "
            "eigenvalues, and the margin, are known to few digits only"
        )
    if analysis.margin > 0 and analysis.lyapunov is None:
        notes.append("so near to the boundary that the Lyapunov equation has no solution in float64")
    if equilibria is not None:
        notes += _equilibrium_notes(equilibria)
    return notes


def _equilibrium_notes(equilibria: Equilibria) -> list[str]:
    points = equilibria.points
    notes = []
    if not equilibria.settled:
        notes.append(
            f"from 0 the state has not settled after up to {PATIENT_STEPS:,} steps on zero input; the numbers are those of an "
            "equilibrium that a search found"
        )
    stable = sum(point.stable for point in points)
    if points[0].stable and stable < len(points):
        first = points[0].state
        # the nearest unstable one is on the border of what comes back
        near = min((p for p in points if not p.stable), key=lambda p: float(np.linalg.norm(p.state - first)))
        notes.append(
            f"{len(points) - stable} unstable equilibria beside it, the nearest at distance "
            f"{float(np.linalg.norm(near.state - first)):.4g} with margin {near.margin:.4g}: states beyond need not come back"
        )
    if stable > 1:
        notes.append(f"{stable} stable equilibria: an input can move the state from one to another for good, no decay")
    return notes
