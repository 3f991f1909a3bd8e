"""The memory bound of StableSSM, Thm 3.1, against the measured memory, and the weights that a horizon asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64

from holdfast._arguments import checked
from holdfast.errors import ArgumentError
from holdfast.memory import MemoryCurve, Probe, memory_function
from holdfast.nn import AbstractRecurrent
from holdfast.nn._activations import MAX_SLOPES


@dataclass(frozen=True, eq=False)
class MemoryBound:
    """M(t) <= constant e^{-rate t} with constant = (d+1) L0 theta_max^2, next to the measured M(t).

    Args:
        constant: (d+1) L0 theta_max^2.
        rate: beta0, the slowest rate of the model.
        weight_norm: theta_max.
        ratio: the largest measured / bound over times where the memory is above the rounding of its measurement.
        time: the times.
        measured: M at these times.
    """

    constant: float
    rate: float
    weight_norm: float
    ratio: float
    time: Float64[np.ndarray, " time"]
    measured: Float64[np.ndarray, " time"]

    @property
    def holds(self) -> bool:
        """Whether no measured value lies above the bound, up to a rounding of 1e-9."""
        return self.ratio <= 1 + 1e-9

    def at(self, time: float) -> float:
        """The bound at a time."""
        return self.constant * math.exp(-self.rate * time)


@checked
def memory_bound(layer: AbstractRecurrent, horizon: int = 200) -> MemoryBound:
    """Both sides of StableSSM, Thm 3.1, for a real diagonal model with eigenvalues <= -beta0.

    M(t) <= (d+1) L0 theta_max^2 e^{-beta0 t}, with theta_max = max(|C|_2, |Lam|_2, |U|_2, |b|_2), L0 the largest slope
    of the activation, d the number of inputs and M with the |x| + 1 normalization. Time is in units of the layer's dt
    times steps; in discrete time e^{-beta0} is the spectral radius. Measured in float64.

    Args:
        layer: a real diagonal layer that is solved exactly, such as DiagonalSSM.
        horizon: steps over which the memory is measured.

    Returns:
        a MemoryBound: the `constant` and the `rate` per unit of time, M `measured`, (horizon + 1,), at the times `time`, and
        the largest `ratio` of measured to bound; `holds` says whether it is at most 1.

    Raises:
        ArgumentError: a layer that is not real and diagonal, or not discretized exactly.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.DiagonalSSM(1, 2, eigenvalues=torch.tensor([-0.5, -0.1]))
        >>> bound = holdfast.stability.memory_bound(layer, horizon=50)
        >>> round(bound.rate, 3), bound.holds
        (0.1, True)
    """
    model = layer.state_space_model()
    if model is None:
        raise ArgumentError(
            f"the bound holds for real diagonal layers with exact discretization, got {type(layer).__name__}; build a diagonal "
            "layer with discretization='zoh'"
        )
    lam = model.lam.detach().double()
    if model.time == "continuous":
        rate = -float(lam.max())
    else:
        radius = float(lam.abs().max())
        rate = -math.log(radius) if radius > 0 else math.inf
    weights = [model.C, model.U] + ([] if model.b is None else [model.b.unsqueeze(-1)])
    norms = [float(torch.linalg.matrix_norm(w.detach().double(), 2)) for w in weights]
    largest = max(*norms, float(lam.abs().max()))
    constant = (layer.features + 1) * MAX_SLOPES[model.activation] * largest**2
    probe = Probe(dt=model.dt, normalization="x+1")
    curve = memory_function(layer, input_size=layer.features, horizon=horizon, probe=probe, double=True)
    return MemoryBound(constant, rate, largest, _ratio(curve, constant, rate), curve.time, curve.values)


def _ratio(curve: MemoryCurve, constant: float, rate: float) -> float:
    # values near the floor are rounding in part, and would decide the ratio
    floor = np.zeros_like(curve.values) if curve.floor is None else 10 * curve.floor
    bound = constant * np.exp(-rate * curve.time)
    seen = curve.values > floor
    return float((curve.values[seen] / np.maximum(bound[seen], 1e-300)).max()) if seen.any() else 0.0


@checked
def weight_bound(rate: float, horizon: float, memory: float, *, inputs: int = 1, lipschitz: float = 1.0) -> float:
    """theta_max that a diagonal model with eigenvalues <= -rate needs to have memory M(T) = `memory` at T = `horizon`.

    theta_max^2 >= e^{rate T} M(T) / ((d+1) L0) (StableSSM, eq. 56): exponential in T for any target that decays slower.
    inf where that is beyond float64.

    Args:
        rate: slowest rate of the model.
        horizon: T, a time.
        memory: M(T).
        inputs: d, the number of input features.
        lipschitz: L0, the largest slope of the activation.

    Returns:
        theta_max, in the units of the weights; 0 for no memory.

    Raises:
        ArgumentError: a rate, horizon or memory below 0, inputs below 1, or a lipschitz that is not finite and above 0.

    Example:
        >>> from holdfast.stability import weight_bound
        >>> [round(weight_bound(0.1, horizon, memory=0.01), 2) for horizon in (50, 100, 200)]
        [0.86, 10.49, 1557.51]
    """
    if not (rate >= 0 and horizon >= 0 and memory >= 0 and inputs >= 1 and 0 < lipschitz < math.inf):
        raise ArgumentError(
            f"expected rate, horizon and memory >= 0, inputs >= 1 and a finite lipschitz > 0, got {rate=}, {horizon=}, "
            f"{memory=}, {inputs=}, {lipschitz=}"
        )
    if memory == 0:
        return 0.0
    # in logs, since e^{rate T} overflows at rate T = 710
    exponent = (rate * horizon + math.log(memory / ((inputs + 1) * lipschitz))) / 2
    return math.exp(exponent) if exponent < 700 else math.inf
