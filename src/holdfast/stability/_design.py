"""design_parameterization: the f whose gradient scale is a given function, by solving StableSSM's ODE numerically.

|f'| / f^2 = G says that 1/|f| grows at the rate G: with u = 1/|f| (in discrete time 1/(1 - f)), u' = G. StableSSM,
App. G, solves this for G = L|w| only and leaves other criteria open.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError, unknown_name
from holdfast.parameterizations import AbstractParameterization, Range
from holdfast.parameterizations._base import below_one

ScaleForm = Literal["even", "decreasing"]
MAX_WEIGHT = 1e4  # |w| up to which G is integrated; beyond it the weight is held
PANEL_NODES = 16
PANEL_COUNT = 400
BISECTION_STEPS = 200


class Designed(AbstractParameterization):
    """f = -1/u(w), or 1 - 1/u(w) in discrete time, with u' = G integrated on panels.

    "even": u(w) = b + int_0^|w| G. "decreasing": u(w) = int_w^inf G (plus 1 in discrete time), for a G that is integrable
    to the right. Inside a panel the integral is a Gauss-Legendre rule of 16 points, exact to rounding for a smooth G.
    """

    key = "designed"

    def __init__(
        self, criterion: Callable[[Tensor], Tensor], *, time: Time, form: ScaleForm, b: float, name: str
    ) -> None:
        super().__init__()
        self.time = time
        self.form: ScaleForm = form
        self.b = float(b)
        self._criterion = criterion
        self._name = name
        nodes, weights = np.polynomial.legendre.leggauss(PANEL_NODES)
        self.register_buffer("nodes", torch.from_numpy((nodes + 1) / 2), persistent=False)
        self.register_buffer("node_weights", torch.from_numpy(weights / 2), persistent=False)
        # geometric panels: G may change near 0 and far out, and a rule of 16 nodes is exact on each
        side = np.geomspace(1e-6, MAX_WEIGHT, PANEL_COUNT)
        edges = np.concatenate([[0.0], side]) if form == "even" else _line(criterion)
        self.register_buffer("edges", torch.from_numpy(edges), persistent=False)
        if criterion(self.edges).shape != self.edges.shape:
            raise ArgumentError(
                f"{name} must work element by element on tensors, got values of shape {tuple(criterion(self.edges).shape)} for "
                f"weights of shape {tuple(self.edges.shape)}"
            )
        panels = self._within(self.edges[:-1], self.edges[1:])
        _check_panels(panels, self.edges, name)
        if form == "even":
            values = torch.cat([panels.new_full((1,), self.b), self.b + panels.cumsum(0)])
        else:
            # in continuous time u falls to 0 at the right end and must not reach it
            least = torch.finfo(torch.float64).tiny if time == "continuous" else 1.0
            values = torch.cat([panels.flip(0).cumsum(0).flip(0), panels.new_zeros(1)]) + least
        self.register_buffer("values", values, persistent=False)

    edges: Tensor
    values: Tensor
    nodes: Tensor
    node_weights: Tensor

    @property
    def range(self) -> Range:
        fast, slow = (self.values[0], self.values[-1]) if self.form == "even" else (self.values[-1], self.values[0])
        # a u that grows a thousandfold over the span is taken to grow for ever
        endless = float(slow) > 1e3 * float(fast)
        edge = 0.0 if self.time == "continuous" else 1.0
        low = -math.inf if self.form == "decreasing" and self.time == "continuous" else edge - 1 / float(fast)
        high = edge if endless else edge - 1 / float(slow)
        return Range(low, high, low_open=self.form == "decreasing", high_open=endless)

    def constants(self) -> dict[str, float]:
        return {}  # b has entered the integrals

    def _identity(self) -> str:
        return repr(self)

    def _within(self, start: Tensor, stop: Tensor) -> Tensor:
        """The integral of G over [start, stop], elementwise, by one rule."""
        length = stop - start
        points = start.unsqueeze(-1) + length.unsqueeze(-1) * self.nodes
        return length * (self._criterion(points) * self.node_weights).sum(-1)

    def _u(self, w: Tensor) -> Tensor:
        wide = w.double()
        x = wide.abs() if self.form == "even" else wide
        # beyond the last edge u is held: f then has slope 0 and stays stable
        x = x.clamp(float(self.edges[0]), float(self.edges[-1]))
        panel = (torch.searchsorted(self.edges, x.detach().contiguous(), right=True) - 1).clamp(0, len(self.edges) - 2)
        if self.form == "even":
            return self.values[panel] + self._within(self.edges[panel], x)
        return self.values[panel + 1] + self._within(x, self.edges[panel + 1])

    def _value(self, w: Tensor) -> Tensor:
        u = self._u(w)
        if self.time == "continuous":
            return (-1 / u).to(w.dtype)
        return (1 - 1 / u).to(w.dtype).clamp(max=below_one(w.dtype))

    def _margin(self, w: Tensor) -> Tensor:
        m = 1 / self._u(w)
        return (m if self.time == "continuous" else torch.minimum(m, 2 - m)).to(w.dtype)

    def _derivative(self, w: Tensor) -> Tensor:
        x = w.double().abs() if self.form == "even" else w.double()
        # f = -1/u: f' = u'/u^2, with u' = G up to the sign of the half line
        sign = torch.sign(w.double()) if self.form == "even" else -torch.ones_like(x)
        return (sign * self._criterion(x) / self._u(w) ** 2).to(w.dtype)

    def _scale(self, w: Tensor) -> Tensor:
        x = w.double().abs() if self.form == "even" else w.double()
        G = self._criterion(x).to(w.dtype)
        return G if self.time == "continuous" else torch.where(self._u(w) >= 1, G, super()._scale(w)).to(w.dtype)

    def _inverse(self, lam: Tensor) -> Tensor:
        # u of that eigenvalue; u is monotone in w, so that bisection finds it
        target = -1 / lam.detach().double() if self.time == "continuous" else 1 / (1 - lam.detach().double())
        low = torch.full_like(target, float(self.edges[0]))
        high = torch.full_like(target, float(self.edges[-1]))
        for _ in range(BISECTION_STEPS):
            middle = (low + high) / 2
            above = self._u(middle) > target
            go_left = above if self.form == "even" else ~above
            high, low = torch.where(go_left, middle, high), torch.where(go_left, low, middle)
        return ((low + high) / 2).to(lam.dtype)

    def __repr__(self) -> str:
        constant = f", b={self.b:g}" if self.form == "even" else ""
        return f"designed({self.time}, G = {self._name}{constant})"


@checked
def design_parameterization(
    criterion: str | Callable[[Tensor], Tensor],
    *,
    time: Time = "continuous",
    form: ScaleForm = "even",
    L: float | None = None,
    b: float | None = None,
) -> Designed:
    """A parameterization whose gradient scale G_f(w) is the criterion: |f'|/f^2 = G, or |f'|/(1 - |f|)^2 = G.

    Solves the equation of StableSSM, App. G, for u = 1/|f| (in discrete time 1/(1 - f)), which grows at the rate G.
    Accurate to rounding for smooth G, |w| up to 1e4 (even) or from -700 on (decreasing).

    Args:
        criterion: a function G of tensors (float64, elementwise, not negative), or "L|w|", whose solution is `best`
            with a = L/2.
        time: "continuous" or "discrete".
        form: "even": G is taken at |w|, and u grows with |w| from b at w = 0. "decreasing": u = int_w^inf G, plus 1 in
            discrete time, for a criterion that fades to the right; e^-w gives exp, and the discrete softplus.
        L: slope of "L|w|"; 2 by default.
        b: u at w = 0 of the even form: 0.5 by default, in discrete time 1, and at least 1 there so that f stays in [0,
            1).

    Returns:
        the parameterization f, elementwise on tensors of any shape, which layers and `stabilize` take; f(w) is the eigenvalue
        of a mode, per unit of time in continuous time.

    Raises:
        UnknownNameError: a time, a form or a criterion that is not known.
        ArgumentError: a criterion that fails on tensors, an L or b out of its range, or one that belongs to another form.

    Example:
        >>> import torch
        >>> from holdfast.stability import design_parameterization
        >>> f = design_parameterization("L|w|", L=2.0)  # -1 / (w^2 + 0.5)
        >>> [round(float(f(torch.tensor(w))), 3) for w in (0.0, 1.0, 2.0)]
        [-2.0, -0.667, -0.222]
    """
    if time not in ("continuous", "discrete"):
        raise unknown_name("kind of time", time, ("continuous", "discrete"))
    if form not in ("even", "decreasing"):
        raise unknown_name("form", form, ("even", "decreasing"))
    if isinstance(criterion, str):
        if criterion.replace(" ", "") != "L|w|":
            raise unknown_name("criterion", criterion, ("L|w|",))
        slope = 2.0 if L is None else float(L)
        if not (math.isfinite(slope) and slope > 0):
            raise ArgumentError(f"L must be a finite number above 0, got {L!r}")
        function: Callable[[Tensor], Tensor] = lambda w: slope * w.abs()  # noqa: E731
        name = f"{slope:g}|w|"
    elif L is not None:
        raise ArgumentError("L is used only with criterion='L|w|', got a function; leave L out")
    else:
        function, name = criterion, getattr(criterion, "__name__", "G(w)")
        try:
            function(torch.ones(2, dtype=torch.float64))
        except Exception as error:
            raise ArgumentError(
                f"criterion must be a function of float64 tensors; it failed on one: {error}"
            ) from error
    if form == "decreasing" and b is not None:
        raise ArgumentError("b (1/|f| at w = 0) is used only with form='even', got form='decreasing'; leave b out")
    start = (0.5 if time == "continuous" else 1.0) if b is None else float(b)
    if not (math.isfinite(start) and start >= (0.0 if time == "continuous" else 1.0) and start > 0):
        raise ArgumentError(f"b must be above 0, and at least 1 in discrete time so that f stays in [0, 1); got {b!r}")
    return Designed(function, time=time, form=form, b=start, name=name)


def _line(criterion: Callable[[Tensor], Tensor]) -> np.ndarray:
    """Edges on the whole line: a G as steep as e^-w grows tenfold within 2.3, one as slow as 1/w^2 ends at 1e15."""
    line = np.concatenate([np.arange(-700.0, 50.0), np.geomspace(50.0, 1e15, PANEL_COUNT)])
    values = criterion(torch.from_numpy(line)).numpy()
    finite = np.isfinite(values)
    # to the left G may overflow; from there on the weight is held
    return line[np.flatnonzero(~finite)[-1] + 1 :] if not finite.all() else line


def _check_panels(panels: Tensor, edges: Tensor, name: str) -> None:
    bad = ~(torch.isfinite(panels) & (panels >= 0))
    if bool(bad.any()):
        where = float(edges[:-1][bad][0])
        raise ArgumentError(f"{name} must be finite and >= 0, got another value near w = {where:.4g}")
    if not bool((panels > 0).any()):
        raise ArgumentError(f"{name} must be above 0 somewhere, got 0 everywhere, for which f would be constant")
