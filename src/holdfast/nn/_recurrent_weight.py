"""A recurrent weight, dense or diagonal, through any parameterization."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast._types import Time
from holdfast.errors import RangeError, ShapeError, unknown_name
from holdfast.nn._export_loop import refuse_onnx
from holdfast.nn._initial_weights import Device, placeable, placed, starting_values
from holdfast.nn._loading import check_elements
from holdfast.nn._pace import held_by_form
from holdfast.nn._precision import widened
from holdfast.parameterizations import (
    AbstractMatrixParameterization,
    AbstractParameterization,
    EulerContraction,
    Normal,
    fit_constants,
    get,
    get_matrix,
    names,
)
from holdfast.parameterizations._saved import held_by, in_sequence, other_form

Structure = Literal["dense", "diagonal"]


class RecurrentWeight(nn.Module):
    """W = f(free weights): called without arguments it gives W, (n, n), or its diagonal, (n,).

    Args:
        size: n.
        structure: "dense" or "diagonal".
        parameterization: for a dense W "direct" (W itself), "complete" (any W whose eigenvalues are stable),
            "contraction" (a W that keeps nonlinear recurrences stable too), or a scalar name such as "best" (normal W
            with such eigenvalues). For a diagonal W a scalar name. Or an object of `holdfast.parameterizations`.
        time: "continuous" or "discrete": which eigenvalues are stable.
        initial: where W starts. None is a weight well inside the stable region: for a dense W -1/2 I plus a skew matrix
            (continuous) or 0.95 times a rotation (discrete), for a diagonal one rates geometric on [0.01, 1].
        dt: longest Euler step for which "contraction" is to hold, in continuous time.
        device: of the weights; None is the default one.
        dtype: of the weights, a floating one; None is the default one.
    """

    @checked
    @placeable
    def __init__(
        self,
        size: int,
        structure: Structure,
        parameterization: str | AbstractParameterization | AbstractMatrixParameterization,
        time: Time,
        initial: Tensor | None = None,
        dt: float | None = None,
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        positive(size=size)
        if structure not in ("dense", "diagonal"):
            raise unknown_name("structure", structure, ("dense", "diagonal"))
        self.time: Time = time
        self.structure = structure
        check_elements(size**2 if structure == "dense" else size)
        # numbers also on the meta device: how many eigenvalues are pairs decides the shapes of the free weights
        W = starting_values(initial, lambda: _default(size, structure, time), home=torch.device("cpu"))
        expected = (size, size) if structure == "dense" else (size,)
        if tuple(W.shape) != expected:
            raise ShapeError(
                f"expected a {structure} recurrent weight W (`initial`) of shape {expected}, got {tuple(W.shape)}"
            )
        home = torch.get_default_device()
        with torch.device("cpu"):  # numbers are needed also where the layer is built on the meta device
            self.parameterization = self._choose(parameterization, W, dt)
            W = W.to(torch.get_default_dtype())
            if initial is None and isinstance(self.parameterization, EulerContraction):
                try:
                    W = self.parameterization.project(W)  # a long step asks for a slower start
                except np.linalg.LinAlgError as error:
                    raise RangeError(
                        f"dt must be short enough for a contraction, got {dt}, at which no initial weight is one; use "
                        "a shorter dt"
                    ) from error
            self._store(W, home)

    def _choose(
        self, wanted: str | nn.Module, W: Tensor, dt: float | None
    ) -> AbstractParameterization | AbstractMatrixParameterization:
        if isinstance(wanted, AbstractMatrixParameterization):
            return wanted
        if self.structure == "diagonal":
            return fit_constants(get(wanted, time=self.time), W)  # type: ignore[arg-type]
        if wanted == "direct":
            return get("direct", time=self.time)
        if wanted == "contraction" and dt is not None:
            return get_matrix("contraction", time=self.time, dt=dt)
        if wanted in ("complete", "contraction"):
            return get_matrix(str(wanted), time=self.time)
        if isinstance(wanted, str) and wanted not in names(self.time):
            raise unknown_name(
                "parameterization of a dense weight", wanted, ("complete", "contraction", *names(self.time))
            )
        eigenvalues = torch.linalg.eigvals(W.double())
        size = eigenvalues.real if self.time == "continuous" else eigenvalues.abs()
        return Normal(fit_constants(get(wanted, time=self.time), size))  # type: ignore[arg-type]

    def _store(self, W: Tensor, home: torch.device) -> None:
        free = self.parameterization.right_inverse(W)
        self.free = nn.ParameterList(placed(x, home) for x in (free if isinstance(free, tuple) else (free,)))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Free weights of another form become those of this one, for the same W; refused where it cannot hold W."""
        inside = f"{prefix}parameterization."
        if (saved := other_form(state_dict, inside, self.parameterization)) is not None:
            W = saved(*in_sequence(state_dict, f"{prefix}free."))
            fitted, free = held_by(self.parameterization, W, prefix.removesuffix("."))
            # the saved form may have more free weights than this one: strict loading would name the rest
            for key in [k for k in state_dict if k.startswith((inside, f"{prefix}free."))]:
                del state_dict[key]
            state_dict.update({f"{prefix}free.{i}": weight for i, weight in enumerate(free)})
            state_dict.update({inside + key: value for key, value in fitted.state_dict().items()})
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self) -> Tensor:
        """W of the present free weights."""
        if isinstance(self.parameterization, AbstractMatrixParameterization):
            refuse_onnx(f"the factorizations of {type(self.parameterization).__name__}")
        return self.parameterization(*self.sources())

    def sources(self) -> tuple[Tensor, ...]:
        """The free weights, as `tuple(self.free)` gives them."""
        # torch looks up every entry of a ParameterList by its name as text: a sixth of a step of a stream
        own = tuple(self.free._parameters.values())
        return own if len(own) == len(self.free) else tuple(self.free)  # type: ignore[return-value]

    def eigenvalues(self) -> Tensor:
        """Eigenvalues of W: real for a diagonal one, complex for a dense one."""
        W = self._apart(self.parameterization(*map(widened, self.free)))
        return torch.linalg.eigvals(W) if W.ndim == 2 else W

    def own_value(self) -> Tensor:
        """W, never the weight itself: what is done to it stays with the caller."""
        return self._apart(self())

    def _apart(self, W: Tensor) -> Tensor:
        return W.clone() if W is self.free[0] else W

    @torch.no_grad()
    def switch_(
        self,
        parameterization: AbstractParameterization | AbstractMatrixParameterization,
        W: Tensor | None = None,
    ) -> None:
        """Changes the parameterization; the recurrent weight stays as it is, or becomes `W`.

        Args:
            parameterization: the new one.
            W: the new recurrent weight; None keeps the present one.
        """
        W = self() if W is None else W
        # new parameters train by default, and a frozen layer has to stay frozen
        trained = any(p.requires_grad for p in self.free)
        self.parameterization = parameterization
        self._store(W, W.device)
        self.free.requires_grad_(trained)

    def settle_(self) -> None:
        """Makes W itself the free weight, where it is dense: nothing keeps it stable from here on."""
        if self.structure == "dense":
            self.switch_(get("direct", time=self.time))

    @torch.no_grad()
    def set_(self, W: Tensor) -> None:
        """Moves the free weights so that the recurrent weight is `W`."""
        free = self.parameterization.right_inverse(W.to(self.free[0]))
        for weight, value in zip(self.free, free if isinstance(free, tuple) else (free,), strict=True):
            weight.copy_(value)

    @torch.no_grad()
    def set_eigenvalues_(self, lam: Tensor) -> None:
        """Moves the free weights so that the eigenvalues are `lam`, or the nearest that the parameterization holds.

        The eigenvectors of a dense weight stay as they are; constants of a scalar parameterization change where `lam`
        lies outside of its range.

        Args:
            lam: the eigenvalues, in the order of `eigenvalues()`; of a dense weight in conjugate pairs.
        """
        form, W = self.parameterization, self().detach()
        if self.structure == "diagonal":
            assert isinstance(form, AbstractParameterization)
            self.parameterization, lam = held_by_form(form, lam)
            self.set_(lam)
            return
        if isinstance(form, Normal):
            scalar, lam = held_by_form(form.scalar, lam)
            # a new one only where constants changed: it forgets the basis that it keeps
            self.parameterization = form = form if scalar is form.scalar else Normal(scalar).to(W)
        W = _with_eigenvalues(W, lam)
        self.set_(form.project(W) if isinstance(form, AbstractMatrixParameterization) else W)


def _with_eigenvalues(W: Tensor, lam: Tensor) -> Tensor:
    """The real matrix with the eigenvectors of W and the eigenvalues `lam`, in the order of `torch.linalg.eigvals`."""
    _, V = torch.linalg.eig(W.double())
    return torch.linalg.solve(V, V * lam.to(V), left=False).real.to(W)


def _default(size: int, structure: Structure, time: Time) -> Tensor:
    if structure == "diagonal":
        rates = torch.logspace(-2, 0, size, dtype=torch.float64)
        return -rates if time == "continuous" else torch.exp(-rates)
    A = torch.randn(size, size, dtype=torch.float64)
    if time == "discrete":
        # a rotation: its eigenvalues come in pairs, so that layers of one size have weights of one shape
        return 0.95 * torch.linalg.matrix_exp(A - A.mT)
    return (A - A.mT) / (2 * size) ** 0.5 - 0.5 * torch.eye(size, dtype=torch.float64)
