"""ExponentialSum: values, errors against closed forms, and the layers that have it as their kernel."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from holdfast import laws, nn, parameterizations
from holdfast.approximate import ExponentialSum, fit_exponential_sum, load_layer, save_layer
from holdfast.errors import ArgumentError, DamagedResultError, ShapeError

REAL = ExponentialSum(rates=np.array([0.05, 0.3, 1.5]), coefficients=np.array([0.2, -0.5, 1.0]))
COMPLEX = ExponentialSum(
    rates=np.array([0.1 + 0.7j, 0.1 - 0.7j, 0.4]), coefficients=np.array([0.3 - 0.2j, 0.3 + 0.2j, 0.5])
)
ONE = ExponentialSum(rates=np.ones(1), coefficients=np.ones(1))


def impulse_response(layer, steps):
    x = torch.zeros(1, steps, 1, dtype=next(layer.parameters()).dtype)
    x[0, 0] = 1
    with torch.no_grad():
        return layer(x)[0][0, :, 0].double().numpy()


def test_values_are_the_sum_for_numbers_arrays_and_tensors():
    expected = 0.2 * math.exp(-0.1) - 0.5 * math.exp(-0.6) + math.exp(-3)
    assert REAL(2.0) == pytest.approx(expected, rel=1e-15)
    assert REAL(np.array([[2.0]])).shape == (1, 1)
    assert REAL(torch.tensor([2.0])).dtype == torch.float32
    assert COMPLEX(2.0) == pytest.approx(
        2 * math.exp(-0.2) * (0.3 * math.cos(1.4) - 0.2 * math.sin(1.4)) + 0.5 * math.exp(-0.8), rel=1e-14
    )


def test_errors_equal_their_closed_form():
    """e^-t against e^-t/2: L1 distance 2 - 1, sup 1/4 at t = 2 log 2, and 2(1 - e^-1/2) - (1 - e^-1) up to t = 1."""
    found = ONE.measure(laws.Exponential(0.5), horizon=1.0)
    assert found.l1_error == pytest.approx(1.0, rel=1e-10)  # Gauss rule on 1500 panels
    assert found.l1_inside == pytest.approx(2 * -math.expm1(-0.5) + math.expm1(-1.0), rel=1e-10)
    assert found.sup_error == pytest.approx(0.25, rel=1e-5)  # the rule's nearest time, second order in its distance
    assert (found.tail, found.error) == ("exact", found.l1_error)


def test_the_tail_of_a_law_is_in_the_error():
    """(1+t)^-1.5 has 2/sqrt(1+t) left after t: far more than its error up to 100."""
    found = ONE.measure(laws.PowerLaw(1.5), horizon=100.0)
    inside = quad(lambda t: abs((1 + t) ** -1.5 - math.exp(-t)), 0, 100, points=[0.1, 1, 10], limit=400)[0]
    assert found.l1_inside == pytest.approx(inside, rel=1e-6)
    assert found.l1_error == pytest.approx(inside + 2 / math.sqrt(101), rel=1e-6)


def test_errors_of_samples_are_sums_over_them_and_the_tail_is_not_known():
    time = np.array([0.0, 1.0, 3.0])
    found = ONE.measure(np.exp(-time) + np.array([0.1, 0.0, -0.2]), time=time)
    assert found.l1_error == pytest.approx(0.1 * 0.5 + 0.2 * 1.0)
    assert found.sup_error == pytest.approx(0.2)
    assert found.tail == "not known"


def test_weight_norms_and_law():
    assert REAL.weight_norms == pytest.approx({"l1": 1.7, "l2": math.sqrt(1.29), "max": 1.0})
    assert REAL.law()(2.0) == pytest.approx(REAL(2.0), rel=1e-15)
    with pytest.raises(ArgumentError, match="complex"):
        COMPLEX.law()


@pytest.mark.parametrize("name", ["direct", "exp", "softplus", "best", "tanh", "inverse"])
@pytest.mark.parametrize("dt", [1.0, 0.25])
def test_a_discrete_layer_has_the_samples_as_its_kernel(name, dt):
    layer = REAL.to_layer(name, time="discrete", dt=dt, dtype=torch.float64)
    assert isinstance(layer, nn.DiagonalSSM)
    # the inverse of the parameterization rounds eigenvalues by some 1e-16, over 50 steps
    np.testing.assert_allclose(impulse_response(layer, 50), REAL(np.arange(50) * dt), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["exp", "softplus", "best"])
def test_a_discrete_layer_of_complex_modes_is_an_lru(name):
    layer = COMPLEX.to_layer(name, time="discrete", dt=0.5, dtype=torch.float64)
    assert isinstance(layer, nn.LRU) and layer.state_size == 2
    np.testing.assert_allclose(impulse_response(layer, 50), COMPLEX(np.arange(50) * 0.5), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("given", "kind"), [(REAL, nn.DiagonalSSM), (COMPLEX, nn.S4D)])
@pytest.mark.parametrize("name", ["exp", "softplus", "best"])
def test_a_continuous_layer_integrates_the_kernel_over_held_inputs(given, kind, name):
    """Answer to a held unit step: the integral of s up to then."""
    layer = given.to_layer(name, dt=0.25, dtype=torch.float64)
    assert isinstance(layer, kind)
    with torch.no_grad():
        y = layer(torch.ones(1, 40, 1, dtype=torch.float64))[0][0, :, 0].numpy()
    ends = 0.25 * np.arange(1, 41)
    exact = [(given.coefficients * -np.expm1(-given.rates * t) / given.rates).sum().real for t in ends]
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-13)


def test_layers_follow_the_default_dtype_and_draw_no_random_numbers():
    before = torch.random.get_rng_state()
    for given in (REAL, COMPLEX):
        for time in ("discrete", "continuous"):
            assert next(given.to_layer(time=time).parameters()).dtype == torch.float32
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("given", [REAL, COMPLEX], ids=["real", "complex"])
@pytest.mark.parametrize("time", ["discrete", "continuous"])
@pytest.mark.parametrize("name", ["exp", "best", "direct"])
def test_a_saved_layer_comes_back_bit_by_bit(tmp_path, given, time, name):
    layer = given.to_layer(name, time=time, dtype=torch.float64)
    save_layer(layer, tmp_path / "layer.safetensors")
    loaded = load_layer(tmp_path / "layer.safetensors")
    assert type(loaded) is type(layer)
    x = torch.randn(2, 30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(layer(x)[0], loaded(x)[0])
    assert repr(loaded.parameterization) == repr(layer.parameterization)


def test_what_cannot_be_saved_or_read_is_refused(tmp_path):
    path = tmp_path / "layer.safetensors"
    with pytest.raises(ArgumentError, match="ContinuousGRU"):
        save_layer(nn.ContinuousGRU(1, 2), path)
    custom = parameterizations.Custom(lambda w: -torch.exp(w))
    with pytest.raises(ArgumentError, match="a named parameterization"):
        save_layer(nn.DiagonalSSM(1, 2, parameterization=custom), path)
    layer = REAL.to_layer()
    with pytest.raises(ArgumentError, match="create it first"):
        save_layer(layer, tmp_path / "nowhere" / "layer.safetensors")
    with pytest.raises(ArgumentError, match="which does not exist"):
        load_layer(path)
    save_layer(layer, path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DamagedResultError, match="not a complete"):
        load_layer(path)
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, path)
    with pytest.raises(ArgumentError, match="a file that save_layer wrote"):
        load_layer(path)


@pytest.mark.parametrize(
    ("rates", "coefficients", "error"),
    [
        ([1.0, 2.0], [1.0], ShapeError),
        ([], [], ShapeError),
        ([[1.0]], [[1.0]], ShapeError),
        ([0.0], [1.0], ArgumentError),
        ([-1.0], [1.0], ArgumentError),
        ([math.nan], [1.0], ArgumentError),
        ([1.0], [math.inf], ArgumentError),
    ],
)
def test_a_sum_that_does_not_decay_or_fit_together_is_refused(rates, coefficients, error, user_mistakes):
    with pytest.raises(error):
        ExponentialSum(rates=rates, coefficients=coefficients)


def test_lists_and_tensors_are_taken_too(user_mistakes):
    for rates in ([0.05, 0.3, 1.5], torch.tensor([0.05, 0.3, 1.5], dtype=torch.float64)):
        made = ExponentialSum(rates=rates, coefficients=[0.2, -0.5, 1.0])
        assert made(2.0) == REAL(2.0) and made.rates.dtype == np.float64


def test_json_form_is_plain_and_repr_is_one_line():
    import json

    found = fit_exponential_sum(laws.PowerLaw(1.5), 3)
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["order"] == 3 and plain["rates"] == found.rates.tolist()
    assert json.loads(json.dumps(COMPLEX.to_dict()))["rates"][0] == [0.1, 0.7]
    assert "\n" not in repr(found) and "nonnegative" in repr(found)


@pytest.mark.parametrize(
    "forged",
    [
        {"choices": "{}"},
        {"choices": "[" * 100_000},
        {"choices": '{"parameterization": ["exp"]}'},
        {"layer": "Sequential"},
        {"layer": None},
        {"features": 10**9},
        {"state_size": "4"},
        {"constants": {"b": "x"}},
    ],
    ids=str,
)
def test_forged_metadata_of_a_layer_is_damage(tmp_path, forged):
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = tmp_path / "layer.safetensors"
    save_layer(REAL.to_layer(), path)
    with safe_open(path, framework="pt") as file:
        described, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    inside = {name: value for name, value in forged.items() if name not in ("layer", "choices")}
    described["choices"] = forged.get("choices") or json.dumps(json.loads(described["choices"]) | inside)
    if "layer" in forged:
        described.pop("layer")
        described |= {"layer": forged["layer"]} if forged["layer"] else {}
    save_file(tensors, path, metadata=described)
    with pytest.raises(DamagedResultError, match="does not describe the layer"):
        load_layer(path)


@pytest.mark.parametrize("law", [laws.Finite(10.0), laws.Finite(10.0, 1.0), laws.Finite(200.0), laws.Finite(0.02)])
@pytest.mark.parametrize("horizon", [1.0, 1e4, math.inf])
def test_the_sup_error_of_a_law_that_ends_is_seen_at_its_end(law, horizon):
    random = np.random.default_rng(0)
    horizon = horizon if horizon > 1 else 1.5 * law.support
    ends = np.array([np.nextafter(law.support, 0.0), law.support])
    grid = np.concatenate([np.linspace(0, 3 * law.support, 200_001), ends])
    for _ in range(4):
        s = ExponentialSum(rates=random.uniform(0.01, 1, 3) / law.support, coefficients=random.normal(size=3))
        worst = np.abs(law(grid) - s(grid)).max()
        # a smooth maximum between two nodes: their distance squared
        assert s.measure(law, horizon=horizon).sup_error >= worst * (1 - 1e-5)
        assert s.measure(law, horizon=horizon).sup_error >= np.abs(law(ends) - s(ends)).max() * (1 - 1e-14)
