"""elementwise, convolution, mlp_as_ssm: networks of the project's layers against targets with known answers."""

import math

import numpy as np
import pytest
import torch

from holdfast import laws, nn
from holdfast.errors import ArgumentError, ShapeError, UnknownNameError
from holdfast_papers.constructions import Chain, convolution, elementwise, mlp_as_ssm
from holdfast_papers.constructions.sigmoids import fit_sigmoids

EPSILONS = (1e-1, 1e-2, 1e-3)
FUNCTIONS = {
    "sin": (lambda x: np.sin(3 * x), -2.0, 2.0),
    "kink": (np.abs, -1.0, 1.0),
    "square": (np.square, -1.0, 1.0),
}
KERNELS = {
    "power": laws.PowerLaw(1.5),
    "oscillating": laws.OscillatingExponential(0.05, 0.7),
    "rising": lambda t: t * np.exp(-t / 10) / 10,
    "alternating": lambda t: (-0.8) ** t,
}


def recurrent_layers(network):
    return [m for m in network.modules() if isinstance(m, nn.AbstractRecurrent)]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_elementwise_reaches_every_error(name, epsilon):
    f, low, high = FUNCTIONS[name]
    made = elementwise(f, low, high, tolerance=epsilon)
    assert made.status == "ok" and made.reached
    # on points of another grid; between its points the error may be a little larger than where it was measured
    x = torch.rand(4, 500, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * (high - low) + low
    with torch.no_grad():
        y = made.network(x)[0]
    assert float((y - torch.from_numpy(f(x.numpy()))).abs().max()) < 1.1 * epsilon


def test_elementwise_is_two_layers_without_memory():
    made = elementwise(np.sin, tolerance=1e-2)
    layers = recurrent_layers(made.network)
    assert len(layers) == 2
    assert all(not layer.eigenvalues().any() for layer in layers)
    assert made.width == sum(layer.state_size for layer in layers)
    x = torch.randn(2, 7, 1, dtype=torch.float64).clamp(-1, 1)
    y, _ = made.network(x)
    flipped, _ = made.network(x.flip(1))
    torch.testing.assert_close(flipped.flip(1), y, rtol=0, atol=1e-14)  # no position sees another


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_elementwise_error_of_a_smooth_function_falls_fast_with_the_width(activation):
    errors = [
        elementwise(np.sin, -3.0, 3.0, width=w, tolerance=1e-12, activation=activation).error for w in (8, 16, 32)
    ]
    assert errors[1] < 0.05 * errors[0] and errors[2] < 0.1 * errors[1]


@pytest.mark.parametrize(("f", "rate"), [(np.abs, 1.0), (lambda x: np.sqrt(np.abs(x - 1)), 0.5)])
def test_error_at_a_kink_and_at_a_root_falls_like_a_power_of_the_width_and_faster_where_sigmoids_crowd(f, rate):
    x = np.linspace(-1, 1, 20_001)
    errors = [np.abs(fit_sigmoids(f, -1.0, 1.0, w)(x) - f(x)).max() for w in (32, 128)]
    # four times the width at equal distances; how a kink lies between the sigmoids moves the exponent by a little
    assert rate - 0.1 < -math.log(errors[1] / errors[0]) / math.log(4) < rate + 0.4
    assert elementwise(f, width=128, tolerance=1e-12).error < errors[1] / 3


def test_elementwise_of_a_jump_says_that_it_is_not_reached():
    made = elementwise(np.sign, tolerance=1e-2, width=64)
    assert made.status == "tolerance not reached" and not made.reached and "continuous" in made.notes[0]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_convolution_reaches_every_error(name, epsilon):
    rho = KERNELS[name]
    made = convolution(rho, 64, tolerance=epsilon)
    assert made.status == "ok" and made.bound is not None
    # the measured error is that of the worst input, which attains the bound; rounding on top
    assert made.error <= made.bound + 1e-9 <= epsilon + 1e-9
    x = torch.rand(3, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    exact = np.stack([np.convolve(row, np.asarray(rho(np.arange(64.0))))[:64] for row in x.numpy()])
    with torch.no_grad():
        y = made.network(x.unsqueeze(-1))[0][..., 0].numpy()
    assert np.abs(y - exact).max() <= epsilon


def test_convolution_with_a_box_takes_modes_on_a_circle():
    made = convolution(laws.Finite(20.0), 64, tolerance=1e-3)
    assert made.status == "ok" and made.error < 1e-10 and made.details["method"] == "circle"
    assert made.width == 33  # one of each pair of 64


def test_convolution_of_one_decaying_mode_needs_one_state():
    made = convolution(laws.Exponential(0.2), 100, tolerance=1e-6, dt=0.5)
    assert made.width == 1 and made.bound is not None and made.bound < 1e-10
    assert made.details["sum"].rates[0] == pytest.approx(0.2, rel=1e-8)  # in the caller's time


def test_convolution_takes_samples_and_any_finite_kernel():
    """A random kernel has no few modes: as many as its length are used, and it is exact."""
    rho = np.random.default_rng(0).standard_normal(48)
    made = convolution(torch.from_numpy(rho), tolerance=1e-6)
    assert made.status == "ok" and made.error < 1e-6
    assert 24 <= made.width <= 48
    assert made.details["kernel_error"] < 1e-6


def test_convolution_keeps_the_order_and_method_that_were_asked_for():
    made = convolution(laws.PowerLaw(1.5), 200, order=2, method="nonnegative", tolerance=1e-9)
    assert made.width == 2 and made.details["method"] == "nonnegative"
    assert made.status == "tolerance not reached" and "larger order" in made.notes[0]


def test_constructions_stream_like_they_run():
    """Chain has the contract of a layer: states in and out, step by step as in one pass."""
    network = Chain(convolution(laws.PowerLaw(2.0), 64).network, elementwise(np.tanh).network)
    x = torch.rand(2, 20, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole, last = network(x)
    first, state = network(x[:, :7])
    second, _ = network(x[:, 7:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
    state, steps = None, []
    for k in range(20):
        y, state = network.step(x[:, k], state)
        steps.append(y)
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=0, atol=1e-12)
    with pytest.raises(ShapeError, match="one entry for each"):
        network(x, last[:1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("activation", [torch.nn.Tanh, torch.nn.ReLU, torch.nn.GELU, torch.nn.Sigmoid])
def test_an_mlp_is_state_space_layers_to_rounding(activation, dtype):
    torch.manual_seed(0)
    mlp = torch.nn.Sequential(
        torch.nn.Linear(3, 16), activation(), torch.nn.Linear(16, 8, bias=False), activation(), torch.nn.Linear(8, 2)
    ).to(dtype)
    network = mlp_as_ssm(mlp)
    assert len(recurrent_layers(network)) == 3
    x = torch.randn(4, 5, 3, dtype=dtype)
    # the same sums in the same dtype: a few roundings of numbers of size 1
    torch.testing.assert_close(network(x)[0], mlp(x), rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_a_two_layer_mlp_is_a_two_layer_ssm_with_zero_recurrence():
    mlp = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    before = {name: value.clone() for name, value in mlp.state_dict().items()}
    layers = recurrent_layers(mlp_as_ssm(mlp))
    assert len(layers) == 2
    assert all(not layer.eigenvalues().any() for layer in layers)
    assert all(torch.equal(before[name], value) for name, value in mlp.state_dict().items())


def test_what_is_no_alternating_mlp_is_refused(user_mistakes):
    linear, tanh = torch.nn.Linear(2, 2), torch.nn.Tanh()
    for parts in (
        (linear, tanh),
        (tanh, linear, tanh),
        (linear, torch.nn.Softplus(), linear),
        (linear, linear, linear),
    ):
        with pytest.raises(ArgumentError):
            mlp_as_ssm(torch.nn.Sequential(*parts))
    with pytest.raises(ArgumentError):
        mlp_as_ssm(linear)
    with pytest.raises(ArgumentError, match="exact GELU"):
        mlp_as_ssm(torch.nn.Sequential(linear, torch.nn.GELU("tanh"), linear))


def test_bad_arguments_of_elementwise_are_refused(user_mistakes):
    for options in ({"low": 1.0, "high": 0.0}, {"high": math.inf}, {"tolerance": 0.0}, {"width": 2}, {"width": 10**6}):
        with pytest.raises(ArgumentError):
            elementwise(np.sin, **options)
    with pytest.raises(UnknownNameError, match="tanh"):
        elementwise(np.sin, activation="relu")
    with pytest.raises(ArgumentError, match="finite numbers"):
        elementwise(lambda x: 1 / np.where(np.abs(x) < 0.01, np.nan, x))
    with pytest.raises(ArgumentError, match="finite numbers"):
        elementwise(lambda x: x[:-1])


def test_bad_arguments_of_convolution_are_refused(user_mistakes):
    for rho, options, text in (
        (laws.PowerLaw(1.5), {}, "length"),
        (laws.PowerLaw(1.5), {"length": 1}, "length"),
        ([1.0, 0.5], {"length": 3}, "leave length out"),
        (laws.PowerLaw(1.5), {"length": 9, "tolerance": -1.0}, "tolerance"),
        (laws.PowerLaw(1.5), {"length": 9, "dt": 0.0}, "dt"),
        ([1.0, math.nan, 0.2], {}, "NaN"),
        ([0.0, 0.0, 0.0], {}, "0"),
    ):
        with pytest.raises(ArgumentError, match=text):
            convolution(rho, **options)
