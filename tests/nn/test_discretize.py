"""How far one step is from growing: to the last digit where 1 - |a| itself would have none."""

import math

import mpmath
import pytest
import torch

import holdfast
from holdfast.nn import LRU, S4D, DiagonalSSM
from holdfast.nn._discretize import step_margins

mpmath.mp.dps = 60
RULES = ("zoh", "bilinear", "euler")


def exact_margin(lam, dt, rule):
    z = mpmath.mpc(lam.real, lam.imag) * mpmath.mpf(dt)
    factor = {"zoh": mpmath.exp(z), "bilinear": (1 + z / 2) / (1 - z / 2), "euler": 1 + z}[rule]
    return 1 - abs(factor)


def draws(dtype, count=300):
    """Rates from 1e-12 to 1e3 of both signs, frequencies from 0 to 1e4, steps from 1e-6 to 1, as the dtype has them."""
    seed = torch.Generator().manual_seed(0)
    u = torch.rand(4, count, generator=seed, dtype=torch.float64)
    sign = torch.where(torch.arange(count) % 4 == 0, 1.0, -1.0)
    frequency = torch.where(torch.arange(count) % 3 == 0, 0.0, 10 ** (8 * u[1] - 4))
    lam = torch.complex((sign * 10 ** (15 * u[0] - 12)).to(dtype), frequency.to(dtype))
    return lam, (10 ** (-6 * u[2])).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_the_margin_of_a_step_has_its_sign_and_its_digits(rule, dtype):
    lam, dt = draws(dtype)
    for value, rate, step in zip(step_margins(lam, dt, rule).tolist(), lam.tolist(), dt.tolist(), strict=True):
        exact = exact_margin(rate, step, rule)
        z = abs(rate * step)
        # a few roundings of float64, and that of Re z, which an exponential multiplies by Re z; by Euler's rule the terms
        # 2 Re z and |z|^2 may truly cancel
        allowed = 1e-15 * (2 * abs(rate.real * step) + z * z) / (1 + z) if rule == "euler" else 0.0
        assert abs(value - exact) <= (4e-15 + 3e-16 * abs(rate.real * step)) * abs(exact) + allowed or value == float(
            exact
        )
        if abs(exact) > allowed:
            assert math.copysign(1, value) == mpmath.sign(exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
@pytest.mark.parametrize("rate", [1e-9, 1e-7, 1e-5, 1e-2])
def test_a_slow_s4d_has_the_margin_of_its_own_weights(discretization, rate, dtype):
    lam = torch.complex(torch.full((1, 4), -rate), torch.tensor([[0.0, 0.3, 3.0, 30.0]]))
    layer = S4D(1, 8, discretization=discretization, eigenvalues=lam, dt_min=1e-3, dt_max=1e-3).to(dtype)
    step = math.exp(float(layer.log_dt.detach()))
    exact = min(exact_margin(value, step, discretization) for value in layer.eigenvalues().flatten().tolist())
    certificate = holdfast.certify(layer)
    # exp(log_dt) is rounded to the layer's dtype
    assert certificate.margin == pytest.approx(float(exact), rel=4 * torch.finfo(dtype).eps)
    assert certificate.status == "stable"
    assert certificate.time_constant == pytest.approx(-1 / math.log1p(-float(exact)), rel=1e-5)


@pytest.mark.parametrize("margin", [1e-9, 1e-6])
@pytest.mark.parametrize("kind", ["lru", "discrete", "euler"])
def test_slow_layers_of_float32_have_positive_margins(kind, margin):
    torch.manual_seed(0)
    if kind in ("lru", "discrete"):
        layer = LRU(1, 8) if kind == "lru" else DiagonalSSM(1, 8, time="discrete", parameterization="exp")
        torch.nn.init.constant_(layer.w, math.log(-math.log1p(-margin)))  # lam = exp(-exp(w))
    else:
        rates = torch.full((8,), -margin / 0.1, dtype=torch.float64)
        layer = DiagonalSSM(1, 8, discretization="euler", dt=0.1, eigenvalues=rates)
    certificate = holdfast.certify(layer)
    # w of about -20 has a rounding of 1e-6, by which exp(w) moves
    assert certificate.margin == pytest.approx(margin, rel=2e-6)
    assert certificate.status == "stable"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
@pytest.mark.parametrize("log_dt", [-120.0, -100.0, -95.0, -80.0, 80.0, 89.0, 95.0, 120.0])
def test_forward_and_step_of_s4d_agree_at_extreme_steps(log_dt, discretization, dtype):
    torch.manual_seed(0)
    layer = S4D(2, 8, discretization=discretization).to(dtype)
    with torch.no_grad():
        layer.log_dt.fill_(log_dt)
    x = torch.randn(3, 6, 2, dtype=dtype)
    state = torch.randn(3, *layer.state_shape, dtype=dtype)
    y, last = layer(x, state)
    outputs, h = [], state
    with torch.no_grad():
        for t in range(6):
            now, h = layer.step(x[:, t], h)
            outputs.append(now)
    assert y.isfinite().all()
    # rounding of six steps; a bilinear step keeps |a| = 1 at both ends
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(torch.stack(outputs, 1), y, **tolerance)
    torch.testing.assert_close(h, last, **tolerance)
    y.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
