"""What has to be said of a certificate in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.nn._views.rest import Equilibria
from holdfast.stability.certificates.lyapunov import DEFECTIVE, MatrixAnalysis


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
    if analysis.eigenvector_condition > DEFECTIVE:
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
        notes.append("from 0 the state does not settle on zero input; the numbers are those of another equilibrium")
    stable = sum(point.stable for point in points)
    if points[0].stable and stable < len(points):
        first = points[0].state
        near = min((p for p in points if not p.stable), key=lambda p: float(np.linalg.norm(p.state - first)))
        notes.append(
            f"{len(points) - stable} unstable equilibria beside it, the nearest at distance "
            f"{float(np.linalg.norm(near.state - first)):.4g} with margin {near.margin:.4g}: states beyond need not come back"
        )
    if stable > 1:
        notes.append(f"{stable} stable equilibria: an input can move the state from one to another for good, no decay")
    return notes
