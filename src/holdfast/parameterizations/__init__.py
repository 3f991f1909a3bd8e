"""Stable (and not so stable) parameterizations of recurrent weights: eigenvalues lam = f(w), and dense matrices.

`get(name, time=...)` gives a scalar parameterization, `get_matrix(form, time=...)` one for a dense W, `Custom(f)` makes one
of a plain function.

Scalar: `_base.py` (also: name and constants of each in the state dict) and a file for each name (`_best.py`, `_clip.py`,
`_direct.py`, `_exp.py`, `_inverse.py`, `_relu.py`, `_softplus.py`, `_tanh.py`), `_custom.py`, `_fitting.py` (constants that
hold given eigenvalues), `_modulus.py` (g of StableSSM, Def. 3.2). Matrices: `_matrix.py` and a file for each form
(`_hurwitz.py`, `_schur.py`, `_normal.py` for linear recurrences, `_contraction.py` and `_euler.py` for nonlinear ones),
made of `_factors.py`. `_saved.py` translates free weights of a state dict from one form to another.
"""

from __future__ import annotations

from typing import Any

from holdfast._arguments import checked
from holdfast._factories import members_of
from holdfast._types import Time
from holdfast.errors import ArgumentError, unknown_name
from holdfast.parameterizations._base import AbstractParameterization, Range
from holdfast.parameterizations._best import Best, DiscreteBest
from holdfast.parameterizations._clip import Clip, DiscreteClip
from holdfast.parameterizations._contraction import Contraction
from holdfast.parameterizations._custom import Custom
from holdfast.parameterizations._direct import Direct, DiscreteDirect
from holdfast.parameterizations._euler import EulerContraction
from holdfast.parameterizations._exp import DiscreteExp, Exp
from holdfast.parameterizations._fitting import fit_constants, nearest
from holdfast.parameterizations._hurwitz import Hurwitz
from holdfast.parameterizations._inverse import DiscreteInverse, Inverse
from holdfast.parameterizations._matrix import AbstractMatrixParameterization, spectral_margin
from holdfast.parameterizations._modulus import numerical_modulus
from holdfast.parameterizations._normal import Normal
from holdfast.parameterizations._relu import DiscreteReLU, ReLU
from holdfast.parameterizations._schur import Schur
from holdfast.parameterizations._softplus import DiscreteSoftplus, Softplus
from holdfast.parameterizations._tanh import DiscreteTanh

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
# those above are listed for their order, and for tools that read types; a further one is found by its file. Custom, made of a
# function, has its kind of time from the user
_FOUND = [c for c in members_of(__name__, AbstractParameterization) if hasattr(c, "key") and hasattr(c, "time")]
_TABLE = {(c.key, c.time): c for c in (*_CLASSES, *_FOUND)}
_FORMS = ("complete", "contraction", "normal")


@checked
def names(time: Time = "continuous") -> tuple[str, ...]:
    """The names that `get` knows for that kind of time.

    Args:
        time: "continuous" or "discrete".

    Returns:
        the names; "tanh" is for discrete time alone.

    Raises:
        UnknownNameError: an unknown time.

    Example:
        >>> from holdfast import parameterizations
        >>> parameterizations.names("continuous")
        ('direct', 'relu', 'exp', 'softplus', 'best', 'inverse', 'clip')
    """
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

    Returns:
        the parameterization, a function from weights to eigenvalues with its inverse, derivative and range.

    Raises:
        UnknownNameError: an unknown name or time.
        ArgumentError: constants that it does not take, or any together with an instance; an instance of another time.

    Example:
        >>> import torch
        >>> from holdfast import parameterizations
        >>> f = parameterizations.get("best", b=0.5)  # StableSSM, Sec. 3.3
        >>> f(torch.tensor([0.0, 1.0]))  # -1 / (w^2 + b)
        tensor([-2.0000, -0.6667])
    """
    if isinstance(name, AbstractParameterization):
        if name.time != time or constants:
            raise ArgumentError(
                f"{name!r} is already built and takes neither time nor constants, got {time=}, {constants=}; leave them out, "
                "or pass its name"
            )
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
            has to tolerate.

    Returns:
        the parameterization, a function from free matrices to stable ones.

    Raises:
        UnknownNameError: an unknown form, time or parameterization.
        ArgumentError: constants or a scalar parameterization that the form does not take, or contraction in continuous
            time without `dt`.

    Example:
        >>> from holdfast import parameterizations
        >>> parameterizations.get_matrix(), parameterizations.get_matrix(time="discrete")
        (Hurwitz(), Schur())
    """
    if form in ("complete", "contraction") and parameterization != "exp":
        raise ArgumentError(
            f"form={form!r} has no scalar parameterization, got {parameterization!r}; leave it out, or use form='normal'"
        )
    if form == "contraction" and time == "continuous":
        if set(constants) != {"dt"}:
            raise ArgumentError(
                f"form='contraction' with time='continuous' needs dt=, the Euler step, and nothing else; got {constants}"
            )
        return EulerContraction(**constants)
    if form in ("complete", "contraction"):
        if constants:
            raise ArgumentError(
                f"form={form!r} in {time} time has no constants, got {sorted(constants)}; leave them out"
            )
        return Contraction() if form == "contraction" else Hurwitz() if time == "continuous" else Schur()
    if form == "normal":
        return Normal(get(parameterization, time=time, **constants))
    raise unknown_name("matrix form", form, _FORMS)


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
