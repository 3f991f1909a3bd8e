"""Volterra series by products of linear state-space kernels, at a width that does not depend on the length (ssm, 3.9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast.approximate._pencil import main_subspace, shift_modes
from holdfast.errors import ArgumentError, unknown_name
from holdfast_papers.constructions.network import Construction
from holdfast_papers.constructions.products import Factorised, real_modes
from holdfast_papers.constructions.separate import squares, symmetric, triples
from holdfast_papers.constructions.series import THIRD, Series, VolterraKernel

Product = Literal["exact", "network"]

_MOST_MODES = 32
_INPUTS = 16


@checked
def volterra(
    kernels: Mapping[int, VolterraKernel],
    length: int,
    *,
    tolerance: float = 1e-2,
    amplitude: float = 1.0,
    product: Product = "exact",
) -> Construction:
    """y_t = h0 + sum_n sum_{tau_1..tau_n < length} h_n(tau_1, ..., tau_n) x_{t-tau_1} ... x_{t-tau_n}, n up to 3.

    Construction (ssm, eq. 18 and 57-58): modes z that all kernels share (matrix pencil on their fibres), kernels
    projected on products of z^tau, and the small cores separated: eigenvectors for order 2, CP for order 3. One linear
    layer with one output for each factor, then products. The number of modes and factors grows until the error is
    within the tolerance; it depends on the kernels, not on the length.

    `bound` of the result is sum_n amplitude^n sum |h_n - its approximation| over all lags (order 3 with more than 48
    lags: by quadrature over about 48 of them), plus the products' own error. Its `error` is measured on the network at
    the last step against the sums above, for inputs of random signs moved up the error's gradient (order 3: signs at 48
    steps, zeros elsewhere).

    Args:
        kernels: maps the order n to the kernel: a number for 0, a function of n arrays of lags, or a tensor with n axes
            of `length`. Kernels may be of any symmetry; only their symmetric part acts.
        length: number of lags.
        tolerance: error that is accepted for inputs up to `amplitude`.
        amplitude: largest |x|.
        product: "exact" multiplies; "network" takes squares and cubes by sigmoids (by polarisation: two more layers
            without recurrence, a pure state-space model).
    """
    if product not in ("exact", "network"):
        raise unknown_name("product", product, ("exact", "network"))
    if not (tolerance > 0 and amplitude > 0):
        raise ArgumentError(f"tolerance and amplitude must be above 0, got {tolerance!r}, {amplitude!r}")
    series = Series.read(kernels, length)
    budget = tolerance * (0.5 if product == "exact" else 0.4)
    modes, spent = _find_modes(series, amplitude, budget)
    factors, spent = _separate(series, modes, amplitude, spent, 2 * budget)
    if product == "exact":
        network, extra = factors.exact_network(series.constant), 0.0
    else:
        network, extra = factors.sigmoid_network(series.constant, amplitude, length, tolerance * 0.2)
    error = _measured(network, series, amplitude)
    bound = spent + extra
    return Construction.judged(
        network,
        error,
        tolerance,
        ok=bound <= tolerance,
        advice=f"{len(modes)} modes leave {bound:.3g}; do the kernels decay?",
        probes=_INPUTS,
        bound=bound,
        details={
            "modes": modes,
            "state_size": factors.basis_size,
            "rank_2": factors.square.shape[1],
            "rank_3": factors.triple[0].shape[1],
            "length": length,
        },
    )


def _upper(modes: np.ndarray) -> np.ndarray:
    """Real modes, and one of each conjugate pair; only decaying ones."""
    real = np.abs(modes.imag) < 1e-9 * np.abs(modes)
    tidy = np.where(real, modes.real.astype(complex), modes)
    return tidy[(tidy.imag >= 0) & (np.abs(tidy) < 1 - 1e-9) & (np.abs(tidy) > 1e-12)]


def _cores(series: Series, modes: np.ndarray) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Triangular factor R of the modes (modes = Q R) and the kernels as coefficients of Q: order 1, 2, 3."""
    columns = real_modes(modes, np.arange(series.length))
    Q, R = np.linalg.qr(columns)
    cores = {}
    if series.first is not None:
        cores[1] = Q.T @ series.first
    if series.second is not None:
        cores[2] = Q.T @ series.second @ Q
    if series.third is not None:
        some = Q if series.length <= THIRD else Q[series.lags]
        inverse = np.linalg.pinv(some, rcond=1e-12)
        cube = series.cube(series.lags)
        cores[3] = symmetric(np.einsum("abc,ia,jb,kc->ijk", cube, inverse, inverse, inverse, optimize=True))
    return R, cores


def _sizes(series: Series, Q: np.ndarray) -> dict[int, Callable[[np.ndarray], float]]:
    """For each order the sum of |kernel| over all lags, for a kernel given by its core."""
    some = Q[series.lags]
    steps = np.gradient(series.lags.astype(float)) if series.length > THIRD else np.ones(len(series.lags))

    def cube(core: np.ndarray) -> float:
        values = np.einsum("ijk,ai,bj,ck->abc", core, some, some, some, optimize=True)
        return float(np.einsum("abc,a,b,c->", np.abs(values), steps, steps, steps, optimize=True))

    return {
        1: lambda core: float(np.abs(Q @ core).sum()),
        2: lambda core: float(np.abs(Q @ core @ Q.T).sum()),
        3: cube,
    }


def _misfit(series: Series, modes: np.ndarray, amplitude: float) -> float:
    """sum_n amplitude^n sum |h_n - its projection on the modes|."""
    columns = real_modes(modes, np.arange(series.length))
    Q, _ = np.linalg.qr(columns)
    _, cores = _cores(series, modes)
    total = 0.0
    if series.first is not None:
        total += amplitude * float(np.abs(series.first - Q @ cores[1]).sum())
    if series.second is not None:
        total += amplitude**2 * float(np.abs(series.second - Q @ cores[2] @ Q.T).sum())
    if series.third is not None:
        some = Q[series.lags]
        steps = np.gradient(series.lags.astype(float)) if series.length > THIRD else np.ones(len(series.lags))
        rest = series.cube(series.lags) - np.einsum("ijk,ai,bj,ck->abc", cores[3], some, some, some, optimize=True)
        total += amplitude**3 * float(np.einsum("abc,a,b,c->", np.abs(rest), steps, steps, steps, optimize=True))
    return total


def _find_modes(series: Series, amplitude: float, budget: float) -> tuple[np.ndarray, float]:
    """The fewest shared modes whose misfit is within the budget, or the best there are; and the misfit."""
    signals = series.signals()
    if not np.any(signals):
        raise ArgumentError("expected a kernel that is not 0 everywhere, got zeros only")
    basis, sizes = main_subspace(signals, longest=256)
    most = int(min(_MOST_MODES, (sizes > 1e-13 * sizes[0]).sum()))
    best: tuple[np.ndarray, float] | None = None
    for count in range(1, most + 1):
        modes = _upper(shift_modes(basis[:, :count]))
        if len(modes) == 0:
            continue
        misfit = _misfit(series, modes, amplitude)
        if best is None or misfit < best[1]:
            best = (modes, misfit)
        if best[1] <= budget:
            break
    if best is None:
        raise ArgumentError("expected kernels that decay, got kernels in which no decaying mode was found")
    return best


def _separate(
    series: Series, modes: np.ndarray, amplitude: float, spent: float, budget: float
) -> tuple[Factorised, float]:
    """The cores as few products; what is left of the budget is shared by orders 2 and 3."""
    Q, R = np.linalg.qr(real_modes(modes, np.arange(series.length)))
    _, cores = _cores(series, modes)
    size = _sizes(series, Q)
    left = max(budget - spent, 0.0) / 2
    m = R.shape[0]
    empty = np.zeros((m, 0))
    linear = cores.get(1, np.zeros(m))
    square, signs = empty, np.zeros(0)
    triple = (empty, empty, empty)
    if 2 in cores:
        square, signs = squares(cores[2], size[2], left / amplitude**2)
        spent += amplitude**2 * size[2](cores[2] - (square * signs) @ square.T)
    if 3 in cores:
        triple = triples(cores[3], size[3], left / amplitude**3)
        spent += amplitude**3 * size[3](cores[3] - symmetric(np.einsum("ir,jr,kr->ijk", *triple)))

    # from coefficients of Q to coefficients of the modes themselves
    def onto(weights: np.ndarray) -> np.ndarray:
        return np.linalg.solve(R, weights)

    factorised = Factorised(
        modes, onto(linear), onto(square), signs, (onto(triple[0]), onto(triple[1]), onto(triple[2]))
    )
    return factorised, spent


def measured_error(
    network: nn.Module, kernels: Mapping[int, VolterraKernel], length: int, *, amplitude: float = 1.0
) -> float:
    """The `error` of a construction at another length than the one it was built for.

    Args:
        network: from one input to one output, like `Construction.network`.
        kernels: of the series, as `volterra` takes them.
        length: number of lags, and of steps before the output that is looked at.
        amplitude: largest |x|.
    """
    return _measured(network, Series.read(kernels, length), amplitude)


def _measured(network: nn.Module, series: Series, amplitude: float) -> float:
    """Largest |network - series| at the last step, for random signs, each moved three times up the error's gradient."""
    generator = np.random.default_rng(0)
    lags = _probe_lags(series, generator)
    signs = torch.from_numpy(generator.choice([-1.0, 1.0], (_INPUTS, len(lags))))
    worst = 0.0
    for _ in range(4):
        x = (amplitude * signs).requires_grad_()
        error = _last_output(network, x, lags, series.length) - _exact(series, x, lags)
        worst = max(worst, float(error.detach().abs().max()))
        (gradient,) = torch.autograd.grad(error.abs().sum(), x)
        signs = torch.where(gradient >= 0, 1.0, -1.0).double()
    return worst


def _probe_lags(series: Series, generator: np.random.Generator) -> np.ndarray:
    """Where the inputs are not 0: everywhere, or with a kernel of order 3 at 48 lags, recent ones more often."""
    every = np.arange(series.length)
    if series.third is None or series.length <= THIRD:
        return every
    chance = 1 / (every + 8.0)
    return np.sort(generator.choice(series.length, THIRD, replace=False, p=chance / chance.sum()))


def _last_output(network: nn.Module, x: Tensor, lags: np.ndarray, length: int) -> Tensor:
    inputs = x.new_zeros(len(x), length)
    inputs[:, torch.from_numpy(length - 1 - lags)] = x
    y, _ = network(inputs.unsqueeze(-1))
    return y[:, -1, 0]


def _exact(series: Series, x: Tensor, lags: np.ndarray) -> Tensor:
    """The series for inputs that are x at `lags` and 0 elsewhere, one per row."""
    total = torch.full((len(x),), series.constant, dtype=torch.float64)
    if series.first is not None:
        total = total + x @ torch.from_numpy(series.first[lags])
    if series.second is not None:
        total = total + torch.einsum("na,ab,nb->n", x, torch.from_numpy(series.second[np.ix_(lags, lags)]), x)
    if series.third is not None:
        total = total + torch.einsum("abc,na,nb,nc->n", torch.from_numpy(series.cube(lags)), x, x, x)
    return total
