import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

import holdfast
from cases import PARAMETERIZATIONS, STABLE
from holdfast import parameterizations
from holdfast.errors import ArgumentError, DtypeError, RangeError, UnknownNameError

every = pytest.mark.parametrize("f", PARAMETERIZATIONS, ids=repr)
stable = pytest.mark.parametrize("f", STABLE, ids=repr)

# both signs, from the smallest weight worth the name to the largest float
magnitudes = (0.0, 1e-300, 1e-30, 1e-8, 1e-3, 0.1, 0.49, 0.71, 1.0, 3.0, 20.0, 90.0, 700.0, 1e4, 1e30, 1e150, 1.7e308)
EXTREME = torch.tensor([s * m for m in magnitudes for s in (1, -1)], dtype=torch.float64)
KINKS = (0.0, 0.5, -1e-4, -0.1, 0.9999, 0.9, -0.9999, -0.9)  # where a clamp or relu has no derivative


def away_from_kinks(w):
    return all(abs(w - kink) > 1e-6 for kink in KINKS)


@every
@settings(max_examples=20)
@given(st.floats(-30, 30))
def test_value_lies_in_the_range(f, w):
    lam = f(torch.tensor(w, dtype=torch.float64))
    # the saturated ends of an open range are nudged inside, so that no rounding reaches them
    assert bool(f.range.contains(lam))


@every
@settings(max_examples=20)
@given(st.floats(-8, 8))
def test_inverse_gives_back_a_weight_with_the_same_value(f, w):
    lam = f(torch.tensor(w, dtype=torch.float64))
    again = f(f.inverse(lam))
    torch.testing.assert_close(again, lam, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    "f", [p for p in PARAMETERIZATIONS if p.key not in ("direct", "clip", "relu", "inverse")], ids=repr
)
@settings(max_examples=20)
@given(st.floats(0.01, 6))
def test_inverse_gives_back_the_weight_where_f_is_one_to_one(f, w):
    weight = torch.tensor(w, dtype=torch.float64)
    condition = float(f(weight).abs() / (f.derivative(weight).abs() * w))
    if f.time == "discrete":
        condition += 1 / float(f.margin(weight))
    # an eigenvalue that is off by one rounding moves the weight by the condition number times as much
    assert float(f.inverse(f(weight))) == pytest.approx(w, rel=4e-16 * max(condition, 10) * 4, abs=1e-12)


@every
@settings(max_examples=20)
@given(st.floats(-20, 20).filter(away_from_kinks))
def test_derivative_equals_autograd(f, w):
    weight = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(f(weight), weight)
    # autograd takes 1 - y of a y that was rounded: one rounding, absolute
    torch.testing.assert_close(f.derivative(weight.detach()), slope, rtol=1e-9, atol=3e-16)


@every
@settings(max_examples=20)
@given(st.floats(-12, 12).filter(away_from_kinks))
def test_gradient_scale_equals_its_definition_by_autograd(f, w):
    """Table 1 of StableSSM, in the corrected form |f'|/(1-|f|)^2 for discrete time."""
    weight = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    lam = f(weight)
    (slope,) = torch.autograd.grad(lam, weight)
    lam = lam.detach()
    margin = float(-lam) if f.time == "continuous" else 1 - abs(float(lam))
    if margin <= 1e-10 or float(slope) == 0:
        return  # the quotient has no digits left; test_gradient_scale_at_the_boundary covers these
    # 1 - |f| carries an absolute error of one rounding, twice in the square
    tolerance = 1e-10 + 4 * 2.3e-16 / margin
    assert float(f.gradient_scale(weight.detach())) == pytest.approx(abs(float(slope)) / margin**2, rel=tolerance)


TABLE_1 = {
    ("relu", "continuous"): lambda w: 1 / w**2,
    ("exp", "continuous"): lambda w: math.exp(-w),
    ("softplus", "continuous"): lambda w: math.exp(w) / ((1 + math.exp(w)) * math.log(1 + math.exp(w)) ** 2),
    ("best", "continuous"): lambda w: 2 * abs(w),
    ("relu", "discrete"): lambda w: math.exp(-w) / (1 - math.exp(-w)) ** 2,
    ("exp", "discrete"): lambda w: math.exp(w - math.exp(w)) / (1 - math.exp(-math.exp(w))) ** 2,
    ("softplus", "discrete"): lambda w: math.exp(-w),
    ("tanh", "discrete"): lambda w: math.exp(2 * w),
    ("best", "discrete"): lambda w: 2 * abs(w),
}


@pytest.mark.parametrize(("name", "time"), TABLE_1)
@pytest.mark.parametrize("w", [0.05, 0.3, 1.0, 2.5, 6.0])
def test_gradient_scale_equals_the_printed_table_where_f_is_not_negative(name, time, w):
    formula = TABLE_1[name, time]
    # 1 - exp(-w) in the formula cancels to one part in 1/w
    assert holdfast.gradient_scale(name, w, time=time) == pytest.approx(formula(w), rel=1e-12)


@pytest.mark.parametrize("w", [-2.0, -0.4])
def test_printed_form_differs_from_the_corrected_one_where_f_is_negative(w):
    assert holdfast.gradient_scale("tanh", w, time="discrete", form="printed") == pytest.approx(math.exp(2 * w))
    assert holdfast.gradient_scale("tanh", w, time="discrete") == pytest.approx(math.exp(-2 * w))


def test_paper_constant_of_discrete_best_is_unsound_and_ours_is_not():
    """StableSSM takes b = 0.5: f(0) = -1, and the gradient scale is unbounded near 0."""
    paper, ours = (parameterizations.get("best", time="discrete", b=b) for b in (0.5, 1.0))
    zero = torch.zeros(1, dtype=torch.float64)
    assert float(paper(zero)) == -1.0
    assert float(paper.gradient_scale(zero)) == math.inf
    assert float(paper.gradient_scale(zero + 1e-3)) > 1e5
    assert paper.modulus(0.01) == math.inf
    assert float(ours(zero)) == 0.0
    w = torch.linspace(-5, 5, 1001, dtype=torch.float64)
    torch.testing.assert_close(ours.gradient_scale(w), 2 * w.abs())
    assert ours.modulus(0.01) < 0.011


def test_gradient_scale_is_infinite_where_the_recurrence_is_unstable():
    assert holdfast.gradient_scale("direct", 0.5) == math.inf
    assert holdfast.gradient_scale("direct", -0.5) == 4.0
    assert holdfast.gradient_scale("direct", 1.5, time="discrete") == math.inf
    for time in ("continuous", "discrete"):
        assert holdfast.gradient_scale("relu", 0.0, time=time) == math.inf  # an integrator: f is 0, or 1
        assert holdfast.gradient_scale("relu", -3.0, time=time) == math.inf
        assert holdfast.gradient_scale("relu", -3.0, time=time, form="printed") == 0.0
    assert holdfast.gradient_scale("inverse", 0.5, time="discrete") == math.inf  # f = -1
    assert holdfast.gradient_scale("inverse", 0.2, time="discrete") == math.inf
    assert holdfast.gradient_scale("inverse", 0.2) == 0.0  # f = -2 is stable, and nothing moves it


@pytest.mark.parametrize("f", [p for p in STABLE if p.key in ("exp", "softplus", "best", "tanh", "inverse")], ids=repr)
@pytest.mark.parametrize("beta", [0.003, 0.7, 2.0])
def test_exact_modulus_equals_the_numerical_sup(f, beta):
    searched = parameterizations.numerical_modulus(f, f.time, beta)
    # discrete: the sup is reached as 1 - f -> 0, where the search stops at 1e-9 and 1 - f has 7 digits left
    assert f.modulus(beta) == pytest.approx(
        searched, rel=1e-9 if f.time == "continuous" else 2e-4 * min(1, 0.01 / beta)
    )


@pytest.mark.parametrize("edge", [1e-4, 0.1])
@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_clip_is_stable_with_a_modulus_of_beta_over_edge(time, edge):
    f = parameterizations.get("clip", time=time, edge=edge)
    for beta in (0.01, 0.3):
        assert f.modulus(beta) == pytest.approx(beta / edge)
        assert parameterizations.numerical_modulus(f, time, beta) == pytest.approx(beta / edge, rel=1e-6)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
@pytest.mark.parametrize("name", ["direct", "relu"])
def test_direct_and_relu_have_no_modulus(name, time):
    f = parameterizations.get(name, time=time)
    assert f.modulus(1e-6) == math.inf
    assert parameterizations.numerical_modulus(f, time, 1e-3) == math.inf


@stable
def test_modulus_vanishes_at_zero_and_grows(f):
    values = [f.modulus(beta) for beta in (0.0, 1e-6, 1e-3, 0.1, 1.0)]
    assert values[0] == 0
    assert values == sorted(values)
    # g(beta) -> 0 is what makes a reparameterization stable; the steepest here is clip, 1e4 beta
    assert values[1] <= 1.1e-2


@every
def test_whole_float_range_gives_no_nan_and_finite_gradients(f):
    for dtype in (torch.float64, torch.float32):
        w = EXTREME.to(dtype)
        w = w[torch.isfinite(w)].requires_grad_()
        lam = f(w)
        assert bool(torch.isfinite(lam).all())
        (slope,) = torch.autograd.grad(lam.sum(), w)
        assert bool(torch.isfinite(slope).all())
        for quantity in (f.derivative(w), f.margin(w), f.gradient_scale(w)):
            assert not bool(quantity.isnan().any())


@stable
def test_no_float_weight_reaches_the_stability_boundary(f):
    for dtype in (torch.float64, torch.float32):
        w = EXTREME.to(dtype)
        lam = f(w[torch.isfinite(w)])
        assert bool((lam < 0).all() if f.time == "continuous" else (lam.abs() < 1).all())


def test_margin_keeps_its_digits_where_the_eigenvalue_rounds_to_one():
    f = parameterizations.get("softplus", time="discrete")
    w = torch.tensor(-60.0, dtype=torch.float64)
    assert float(f.margin(w)) == pytest.approx(math.exp(-60.0), rel=1e-14)


@every
def test_torch_parametrize_keeps_the_eigenvalues(f):
    layer = nn.Module()
    inside = f(torch.tensor([-3.0, -0.6, 0.8, 2.0], dtype=torch.float64))
    layer.weight = nn.Parameter(inside.clone())
    parametrize.register_parametrization(layer, "weight", f)
    torch.testing.assert_close(layer.weight, inside, rtol=1e-12, atol=1e-15)
    layer.weight.sum().backward()
    assert layer.parametrizations.weight.original.grad is not None


@pytest.mark.parametrize(
    ("name", "time", "bad"),
    [
        ("exp", "continuous", 0.5),
        ("best", "continuous", -3.0),
        ("softplus", "discrete", 1.0),
        ("best", "discrete", -0.1),
    ],
)
def test_eigenvalues_outside_the_range_are_refused_with_their_values(name, time, bad):
    f = parameterizations.get(name, time=time)
    inside = float(f(torch.tensor(0.3)))
    with pytest.raises(RangeError, match=rf"1 of 2 eigenvalues outside it: {bad:.6g}"):
        f.inverse(torch.tensor([inside, bad], dtype=torch.float64))


def test_nan_lies_outside_every_range():
    with pytest.raises(RangeError, match="nan"):
        parameterizations.get("exp").inverse(torch.tensor([math.nan]))


@pytest.mark.usefixtures("user_mistakes")
def test_wrong_names_types_and_constants_are_refused():
    with pytest.raises(UnknownNameError, match=r"continuous parameterization 'sofplus'. Did you mean 'softplus'\?"):
        parameterizations.get("sofplus")
    with pytest.raises(UnknownNameError, match=r"Known: .*best"):
        parameterizations.get("tanh", time="continuous")
    with pytest.raises(UnknownNameError, match="time 'discret'"):
        parameterizations.get("exp", time="discret")
    with pytest.raises(ArgumentError, match=r"does not take the constants \['c'\]"):
        parameterizations.get("best", c=1.0)
    with pytest.raises(ArgumentError, match=r"b >= 0\.5"):
        parameterizations.get("best", time="discrete", b=0.4)
    with pytest.raises(ArgumentError, match="finite a > 0 and b > 0"):
        parameterizations.get("best", b=0.0)
    with pytest.raises(DtypeError, match=r"real floating-point tensor, got a tensor of torch\.int64"):
        parameterizations.get("exp")(torch.arange(3))
    with pytest.raises(ArgumentError, match="beta must be"):
        parameterizations.get("exp").modulus(-1.0)
    with pytest.raises(ArgumentError, match=r"unknown form 'wrong'\. Known: corrected, printed"):
        parameterizations.get("exp").gradient_scale(torch.zeros(1), form="wrong")
