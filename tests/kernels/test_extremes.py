"""Discretization where numbers end: steps from e^-120 to e^120, eigenvalues near 0 and huge, in both precisions."""

import itertools
import math

import mpmath
import pytest
import torch

from holdfast.kernels import s4d
from holdfast.kernels.s4d import s4d_step
from holdfast.kernels.s4d._reference import discretize

LOG_STEPS = (-120, -104, -100, -95, -88, -58, -30, -7, 0, 7, 30, 60, 88, 95, 120)
RATES = (-1e-36, -1e-6, -1.0, -1e6, -9e37)
FREQUENCIES = (0.0, 1e-36, 1.0, 1e6, 9e37)
C, H0, TIME = complex(1.0, -0.5), complex(1.0, 0.5), 3
WAYS = {
    "scan": {"algorithm": "scan"}, "fft": {"algorithm": "fft"}, "chunked": {"backend": "chunked"},
    "reference": {"backend": "reference"},
}  # fmt: skip


def grid(dtype):
    """Each pair of a step and an eigenvalue as a feature of one mode."""
    points = list(itertools.product(LOG_STEPS, RATES, FREQUENCIES))
    log_dt, re, im = (torch.tensor(values, dtype=dtype) for values in zip(*points, strict=True))
    return torch.exp(log_dt), re.unsqueeze(-1), im.unsqueeze(-1)


def exact(dt, lam, discretization, state):
    """Three outputs for inputs of 1 by 400 bits: the numbers of both precisions reach from 1e-324 to 1e308."""
    with mpmath.workprec(400):
        dt, lam, h = mpmath.mpf(dt), mpmath.mpc(lam), mpmath.mpc(H0 if state else 0)
        if discretization == "zoh":
            a = mpmath.exp(dt * lam)
            b = mpmath.expm1(dt * lam) / lam
        else:
            a, b = (1 + dt * lam / 2) / (1 - dt * lam / 2), dt / (1 - dt * lam / 2)
        outputs = []
        for _ in range(TIME):
            h = a * h + b
            outputs.append(float(2 * (C * h).real))
        return outputs


def run(way, discretization, dtype, state):
    dt, re, im = grid(dtype)
    features = len(dt)
    u = torch.ones(1, TIME, features, dtype=dtype)
    c = torch.full((features, 1), C, dtype=re.dtype.to_complex())
    h0 = torch.tensor([H0.real, H0.imag], dtype=dtype).expand(1, features, 1, 2) if state else None
    if way != "step":
        return s4d(u, dt, re, im, c.real, c.imag, None, h0, discretization=discretization, **WAYS[way])[0][0]
    factor, gain = discretize(dt.unsqueeze(-1), torch.complex(re, im), discretization)
    h = torch.zeros(1, features, 1, 2, dtype=dtype) if h0 is None else h0
    outputs = []
    with torch.no_grad():
        for t in range(TIME):
            y, h = s4d_step(u[:, t], h, factor, gain, torch.view_as_real(c), torch.zeros(features, dtype=dtype))
            outputs.append(y[0])
    return torch.stack(outputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
@pytest.mark.parametrize(
    ("way", "state"),
    [(way, state) for way in (*WAYS, "step") for state in (False, True) if (way, state) != ("fft", True)],
)
def test_outputs_at_the_extremes_are_those_of_exact_arithmetic(way, state, discretization, dtype):
    y = run(way, discretization, dtype, state).double()
    dt, re, im = grid(dtype)
    largest, eps = torch.finfo(dtype).max, torch.finfo(torch.float64).eps
    # modes are made in double and rounded once; the kernel's smallest gain is 8e-25 in float32
    relative, absolute = (1e-5, 1e-20) if dtype == torch.float32 else (1e-7, 1e-150)
    for i in range(len(dt)):
        step, lam = min(float(dt[i]), largest), complex(float(re[i]), float(im[i]))
        expected = torch.tensor(exact(step, lam, discretization, state), dtype=torch.float64)
        if expected.abs().max() > largest / 16:  # overflows on the way
            continue
        assert y[:, i].isfinite().all(), (step, lam)
        phase = abs(lam.imag) * step
        if discretization == "zoh" and phase * eps > relative / 100 and step * lam.real > -800:
            # its digits are behind the point of dt lam: the modulus is all that is known
            assert y[:, i].abs().max() <= 8 * max(expected.abs().max(), 1.2) + 8 / abs(lam), (step, lam)
            continue
        bound = relative * expected.abs().max() + absolute
        assert (y[:, i] - expected).abs().max() <= bound, (step, lam, y[:, i], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
@pytest.mark.parametrize("way", ["scan", "fft", "chunked"])
def test_gradients_at_the_extremes_are_finite_and_those_of_the_reference(way, discretization, dtype):
    log_steps = torch.tensor([-120.0, -100, -95, -30, -7, 0, 7, 30, 60], dtype=dtype)
    features = len(log_steps)
    leaves = [
        torch.exp(log_steps),
        torch.full((features, 2), -0.5, dtype=dtype),
        torch.tensor([0.3, 2.0], dtype=dtype).repeat(features, 1),
        torch.ones(features, 2, dtype=dtype),
        torch.ones(features, 2, dtype=dtype),
    ]
    u = torch.linspace(-1, 1, 2 * 5 * features, dtype=dtype).view(2, 5, features)

    def gradients(**how):
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        y, _ = s4d(u, *own, discretization=discretization, **how)
        return torch.autograd.grad(y.sum(), own)

    for got, expected in zip(gradients(**WAYS[way]), gradients(backend="reference"), strict=True):
        assert got.isfinite().all()
        scale = expected.abs().flatten(1).amax(1) if expected.ndim > 1 else expected.abs()
        error = (got - expected).abs()
        error = error.flatten(1).amax(1) if error.ndim > 1 else error
        # sums of five steps; what dt gives at large steps is a difference of terms that cancel, below 1e-15
        assert (error <= (2e-5 if dtype == torch.float32 else 1e-9) * scale + 1e-15).all(), (got, expected)


def test_a_step_that_is_not_a_number_stays_one():
    y, _ = s4d(torch.ones(1, 2, 1), torch.full((1,), math.nan), -torch.ones(1, 1), None, torch.ones(1, 1), None)
    assert y.isnan().all()
