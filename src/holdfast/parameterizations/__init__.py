"""Stable (and not so stable) parameterizations of recurrent weights: eigenvalues lam = f(w), and dense matrices.

`get(name, time=...)` gives a scalar parameterization, `get_matrix(form, time=...)` one for a dense W, `Custom(f)`
makes one of a plain function.

Scalar: `base.py` and a file for each name (`best.py`, `clip.py`, `direct.py`, `exp.py`, `inverse.py`, `relu.py`,
`softplus.py`, `tanh.py`), `custom.py`, `fitting.py` (constants that hold given eigenvalues), `modulus.py` (g of
StableSSM, Def. 3.2). Matrices: `matrix.py` and a file for each form (`hurwitz.py`, `schur.py`, `normal.py` for linear
recurrences, `contraction.py` and `euler.py` for nonlinear ones), made of `positive_definite.py`, `contractive.py`,
`energy.py` and `scaling.py`. `named.py` keeps name and constants of all of them in the state dict.
"""

from __future__ import annotations

from typing import Any

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError, unknown_name
from holdfast.parameterizations.base import AbstractParameterization, Range
from holdfast.parameterizations.best import Best, DiscreteBest
from holdfast.parameterizations.clip import Clip, DiscreteClip
from holdfast.parameterizations.contraction import Contraction
from holdfast.parameterizations.custom import Custom
from holdfast.parameterizations.direct import Direct, DiscreteDirect
from holdfast.parameterizations.euler import EulerContraction
from holdfast.parameterizations.exp import DiscreteExp, Exp
from holdfast.parameterizations.fitting import fit_constants, nearest
from holdfast.parameterizations.hurwitz import Hurwitz
from holdfast.parameterizations.inverse import DiscreteInverse, Inverse
from holdfast.parameterizations.matrix import AbstractMatrixParameterization, spectral_margin
from holdfast.parameterizations.modulus import numerical_modulus
from holdfast.parameterizations.normal import Normal
from holdfast.parameterizations.relu import DiscreteReLU, ReLU
from holdfast.parameterizations.schur import Schur
from holdfast.parameterizations.softplus import DiscreteSoftplus, Softplus
from holdfast.parameterizations.tanh import DiscreteTanh

_CLASSES: tuple[type[AbstractParameterization], ...] = (
    Direct,
    ReLU,
    Exp,
    Softplus,
    Best,
    Inverse,
    Clip,
    DiscreteDirect,
    DiscreteReLU,
    DiscreteExp,
    DiscreteSoftplus,
    DiscreteTanh,
    DiscreteBest,
    DiscreteInverse,
    DiscreteClip,
)
_TABLE = {(c.key, c.time): c for c in _CLASSES}
_FORMS = ("complete", "contraction", "normal")


@checked
def names(time: Time = "continuous") -> tuple[str, ...]:
    """The names that `get` knows for that kind of time.

    Args:
        time: "continuous" or "discrete".
    """
    _check_time(time)
    return tuple(key for key, t in _TABLE if t == time)


@checked
def get(
    name: str | AbstractParameterization, *, time: Time = "continuous", **constants: float
) -> AbstractParameterization:
    """The scalar parameterization called `name`; an instance is given back as it is.

    Args:
        name: one of `names(time)`, such as "best" or "exp".
        time: "continuous" or "discrete".
        constants: of the parameterization, by name, such as b of "best".
    """
    _check_time(time)
    if isinstance(name, AbstractParameterization):
        if name.time != time or constants:
            raise ArgumentError(f"{name!r} is already built; it cannot become time={time!r}, constants={constants}")
        return name
    if (name, time) not in _TABLE:
        raise unknown_name(f"{time} parameterization", name, names(time))
    try:
        return _TABLE[name, time](**constants)
    except TypeError as error:
        raise ArgumentError(f"{time} {name!r} does not take the constants {sorted(constants)}: {error}") from error


@checked
def get_matrix(
    form: str = "complete",
    *,
    time: Time = "continuous",
    parameterization: str | AbstractParameterization = "exp",
    **constants: Any,
) -> AbstractMatrixParameterization:
    """The parameterization of a dense W: the matrix form "complete", "contraction" or "normal".

    Args:
        form: "complete": Hurwitz or Schur, any W whose eigenvalues are stable, for linear recurrences. "contraction":
            for nonlinear ones. "normal": a normal W.
        time: "continuous" or "discrete".
        parameterization: of the eigenvalues of the normal form.
        constants: of that parameterization; or `dt` for the contraction form in continuous time, the Euler step that it
            has to bear.
    """
    _check_time(time)
    if form in ("complete", "contraction") and parameterization != "exp":
        raise ArgumentError(f"the {form} form has no scalar parameterization; leave it out, or use form='normal'")
    if form == "contraction" and time == "continuous":
        if set(constants) != {"dt"}:
            raise ArgumentError(f"the contraction form in continuous time needs dt=, the Euler step; came {constants}")
        return EulerContraction(**constants)
    if form in ("complete", "contraction"):
        if constants:
            raise ArgumentError(f"the {form} form in {time} time has no constants; came {sorted(constants)}")
        return Contraction() if form == "contraction" else Hurwitz() if time == "continuous" else Schur()
    if form == "normal":
        return Normal(get(parameterization, time=time, **constants))
    raise unknown_name("matrix form", form, _FORMS)


def _check_time(time: str) -> None:
    if time not in ("continuous", "discrete"):
        raise unknown_name("kind of time", time, ("continuous", "discrete"))


__all__ = [
    "AbstractMatrixParameterization",
    "AbstractParameterization",
    "Contraction",
    "Custom",
    "EulerContraction",
    "Hurwitz",
    "Normal",
    "Range",
    "Schur",
    "fit_constants",
    "get",
    "get_matrix",
    "names",
    "nearest",
    "numerical_modulus",
    "spectral_margin",
    *sorted(c.__name__ for c in _CLASSES),
]
