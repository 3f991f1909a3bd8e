"""Volterra series as networks: known answers, every error reached, a width that does not depend on the length."""

import numpy as np
import pytest
import torch

from holdfast import nn
from holdfast.errors import ArgumentError, ShapeError, UnknownNameError
from holdfast_papers.constructions import volterra


def first(a):
    return 0.5 * np.exp(-a / 6)


def second(a, b):
    """Not separable: a power law of the sum, which non-negative modes approximate to any error."""
    return 0.2 * (1 + (a + b) / 4) ** -4.0


def third(a, b, c):
    return 0.05 * np.exp(-(a + b + c) / 3) * np.cos(0.3 * (a - b)) * np.cos(0.3 * (a - c)) * np.cos(0.3 * (b - c))


KERNELS = {0: 0.3, 1: first, 2: second}


def direct(kernels, x):
    """The series by its definition at the last step, x (time,)."""
    length = len(x)
    lags = np.arange(length)
    past = x[::-1]
    total = float(kernels.get(0, 0.0))
    if 1 in kernels:
        total += kernels[1](lags) @ past
    if 2 in kernels:
        total += past @ kernels[2](lags[:, None], lags[None, :]) @ past
    if 3 in kernels:
        cube = kernels[3](lags[:, None, None], lags[None, :, None], lags[None, None, :])
        total += np.einsum("abc,a,b,c->", cube, past, past, past)
    return total


@pytest.mark.parametrize("epsilon", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("product", ["exact", "network"])
def test_every_error_is_reached(epsilon, product):
    made = volterra(KERNELS, 64, tolerance=epsilon, product=product)
    assert made.status == "ok" and made.reached and made.bound is not None
    assert made.error <= made.bound + 1e-9 and made.bound <= epsilon
    generator = np.random.default_rng(5)
    for _ in range(5):
        x = generator.uniform(-1, 1, 64)
        with torch.no_grad():
            y = made.network(torch.from_numpy(x)[None, :, None])[0][0, -1, 0]
        assert abs(float(y) - direct(KERNELS, x)) <= epsilon


def gone_within_64(a, b):
    """Not separable, and e^-16 at lag 64."""
    return 0.2 * np.exp(-(a + b) / 4) / (1 + (a + b) / 4)


ERRORS = [(1e-1, "exact"), (1e-2, "network"), (1e-3, "exact"), (1e-3, "network")]


@pytest.mark.parametrize(("epsilon", "product"), ERRORS)
@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param({1: first, 2: gone_within_64}, id="order 2"),
        pytest.param({1: first, 3: third}, id="order 3", marks=pytest.mark.slow),
    ],
)
def test_width_does_not_depend_on_the_length(kernels, epsilon, product):
    short, long = (volterra(kernels, length, tolerance=epsilon, product=product) for length in (64, 160))
    assert short.status == long.status == "ok" and long.reached
    assert short.width == long.width
    assert short.parameters == long.parameters


@pytest.mark.slow
def test_width_for_a_power_law_settles_with_the_length():
    """0.6% of the kernel lies after 64 steps, which takes one mode more; after 512 nothing that matters is left."""
    widths = [volterra(KERNELS, length, tolerance=1e-3).width for length in (64, 512, 1024)]
    assert widths[0] <= widths[1] <= widths[0] + 1 and widths[1] == widths[2]


@pytest.mark.parametrize(("epsilon", "product"), ERRORS)
def test_order_three_reaches_every_error(epsilon, product):
    kernels = {0: -0.1, 1: first, 3: third}
    made = volterra(kernels, 40, tolerance=epsilon, product=product)
    assert made.status == "ok" and made.reached
    x = np.random.default_rng(3).choice([-1.0, 1.0], 40)
    with torch.no_grad():
        y = made.network(torch.from_numpy(x)[None, :, None])[0][0, -1, 0]
    assert abs(float(y) - direct(kernels, x)) <= epsilon


def test_the_square_of_one_mode_is_one_state_and_exact():
    """(sum_j 0.9^j x_{t-j})^2 at every step."""
    made = volterra({2: lambda a, b: 0.9 ** (a + b)}, 50, tolerance=1e-6)
    assert made.width == 1 and made.details["rank_2"] == 1
    x = torch.rand(3, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state, expected = torch.zeros(3, dtype=torch.float64), []
    for k in range(50):
        state = 0.9 * state + x[:, k]
        expected.append(state**2)
    with torch.no_grad():
        y = made.network(x.unsqueeze(-1))[0][..., 0]
    torch.testing.assert_close(y, torch.stack(expected, 1), rtol=1e-9, atol=0)


def test_only_the_symmetric_part_of_a_kernel_acts():
    made = volterra({2: lambda a, b: 0.8**a * 0.5**b}, 30, tolerance=1e-8)
    turned = volterra({2: lambda a, b: 0.5**a * 0.8**b}, 30, tolerance=1e-8)
    x = torch.rand(1, 30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(made.network(x)[0], turned.network(x)[0], rtol=0, atol=1e-10)
    assert made.error < 1e-8 and made.width == 2


def test_kernels_may_be_tensors():
    lags = torch.arange(24, dtype=torch.float64)
    tensor = torch.from_numpy(third(lags.numpy()[:, None, None], lags.numpy()[:, None], lags.numpy()))
    made = volterra({1: torch.exp(-lags / 6) / 2, 3: tensor}, 24, tolerance=1e-3)
    same = volterra({1: first, 3: third}, 24, tolerance=1e-3)
    assert made.status == "ok" and made.width == same.width


def test_oscillating_kernels_get_complex_modes():
    made = volterra({1: lambda a: 0.95**a * np.cos(0.6 * a)}, 100, tolerance=1e-6)
    assert made.status == "ok" and made.width == 2
    assert isinstance(made.network.layers[0], nn.LinearRNN)


def test_the_pure_network_is_made_of_state_space_layers_only():
    made = volterra(KERNELS, 64, tolerance=1e-2, product="network")
    assert all(isinstance(layer, nn.AbstractRecurrent) for layer in made.network.layers)
    assert len(made.network.layers) == 3


def test_amplitude_scales_what_the_inputs_may_be():
    made = volterra(KERNELS, 32, tolerance=1e-2, amplitude=3.0, product="network")
    assert made.status == "ok" and made.reached
    x = 3 * np.random.default_rng(0).choice([-1.0, 1.0], 32)
    with torch.no_grad():
        y = made.network(torch.from_numpy(x)[None, :, None])[0][0, -1, 0]
    assert abs(float(y) - direct(KERNELS, x)) <= 1e-2


def test_kernels_that_do_not_decay_say_that_the_tolerance_is_not_reached():
    kernel = np.random.default_rng(0).standard_normal(200)
    made = volterra({1: kernel}, 200, tolerance=1e-3)
    assert made.status == "tolerance not reached" and "decay" in made.notes[0]


def test_bad_kernels_are_refused(user_mistakes):
    for kernels, length, error in (
        ({4: first}, 10, ArgumentError),
        ({0: 1.0}, 10, ArgumentError),
        ({}, 10, ArgumentError),
        ({1: first}, 1, ArgumentError),
        ({1: first}, 10**5, ArgumentError),
        ({0: float("nan"), 1: first}, 10, ArgumentError),
        ({1: torch.zeros(9)}, 10, ShapeError),
        ({2: torch.full((10, 10), float("nan"))}, 10, ArgumentError),
        ({1: lambda a: a * np.nan}, 10, ArgumentError),
        ({1: lambda a: 0.0 * a}, 10, ArgumentError),
    ):
        with pytest.raises(error):
            volterra(kernels, length)
    with pytest.raises(UnknownNameError, match="exact"):
        volterra({1: first}, 10, product="sigmoid")
    with pytest.raises(ArgumentError, match="above 0"):
        volterra({1: first}, 10, tolerance=0.0)
