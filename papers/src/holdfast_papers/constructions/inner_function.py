"""The inner function of Kolmogorov's superposition theorem, made digit by digit (Sprecher; Braun and Griebel 2009).

In base g, with beta(r) = (n^r - 1)/(n - 1) for n variables, phi is defined on numbers with k digits:

    phi(d) = d for one digit; else, with last digit i,
    phi(d) = phi(d without i) + i g^-beta(k)                      for i < g - 1
    phi(d) = (phi(d - g^-k) + phi(d + g^-k)) / 2                  for i = g - 1

and lambda_1 = 1, lambda_p = sum_r g^-(p-1)beta(r). Then xi(d) = sum_p lambda_p phi(d_p) takes a different value at each
of the g^(nk) points with k digits (Braun and Griebel, Thm 2.1 and Lemma 3.2; Koeppen's corrected recursion).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from jaxtyping import Float64

from holdfast.errors import ArgumentError

_CLOSEST = 1e-12  # least distance of values of xi that float64 still tells apart safely: 4500 roundings of 1


def beta(r: int, variables: int) -> int:
    """(n^r - 1)/(n - 1) = 1 + n + ... + n^(r-1)."""
    return sum(variables**j for j in range(r))


def inner_values(base: int, digits: int, variables: int) -> Float64[np.ndarray, " points"]:
    """phi at 0, g^-k, 2 g^-k, ..., 1: exact fractions, rounded once."""
    values = [Fraction(i, base) for i in range(base + 1)]
    for k in range(2, digits + 1):
        finer: list[Fraction] = []
        for index, value in enumerate(values[:-1]):
            finer += [value + Fraction(i, base ** beta(k, variables)) for i in range(base - 1)]
            # the last digit sits half-way to the next point of the coarser grid
            finer.append((finer[-1] + values[index + 1]) / 2)
        values = [*finer, values[-1]]
    return np.array([float(value) for value in values])


def decay_factors(base: int, digits: int, variables: int) -> Float64[np.ndarray, " modes"]:
    """g^-beta(r), r = 1, 2, ...: lambda_p is the sum of their (p-1)-th powers, a kernel of decaying modes."""
    return np.array([float(base) ** -beta(r, variables) for r in range(1, digits + 2)])


def weights(base: int, digits: int, variables: int) -> Float64[np.ndarray, " variables"]:
    """lambda_1 = 1, lambda_p = sum_r g^-(p-1)beta(r), summed to one term past the digits."""
    factors = decay_factors(base, digits, variables)
    return np.array([1.0] + [float((factors**p).sum()) for p in range(1, variables)])


def plateaus(base: int, digits: int, variables: int) -> tuple[Float64[np.ndarray, " cells"], np.ndarray]:
    """All values of xi in order, and for each the flat index of its cell; refuses what float64 cannot tell apart."""
    phi, lam = inner_values(base, digits, variables), weights(base, digits, variables)
    xi = np.zeros(1)
    for weight in lam:
        xi = (xi[:, None] + weight * phi).ravel()
    order = np.argsort(xi)
    closest = float(np.diff(xi[order]).min())
    if closest < _CLOSEST:
        raise ArgumentError(
            f"values of xi must be at least {_CLOSEST:.0e} apart in float64, got {closest:.1e} with base {base} and {digits} "
            f"digits in {variables} variables; use fewer digits or a smaller base"
        )
    return xi[order], order
