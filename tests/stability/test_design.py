"""design_parameterization: the solution of the gradient-scale equation, against the ones known in closed form."""

import math

import pytest
import torch

from holdfast import parameterizations
from holdfast.errors import ArgumentError, RangeError, UnknownNameError
from holdfast.nn import DiagonalSSM
from holdfast.stability import design_parameterization, gradient_scale

W = torch.linspace(-50, 50, 2001, dtype=torch.float64)
# a Gauss-Legendre rule of 16 points on each panel is exact to rounding for smooth G; cumulative sums add a few digits
ACCURATE = 1e-12
PROMISE = 1e-6


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_criterion_proportional_to_the_weight_gives_back_best(time):
    f, best = design_parameterization("L|w|", time=time), parameterizations.get("best", time=time)
    assert float((f(W) - best(W)).abs().max()) < ACCURATE < PROMISE
    assert float((f.margin(W) / best.margin(W) - 1).abs().max()) < ACCURATE
    assert float((f.derivative(W) - best.derivative(W)).abs().max()) < ACCURATE
    assert float((f.gradient_scale(W) - best.gradient_scale(W)).abs().max()) < 1e-10  # numbers up to 100
    lam = best(torch.logspace(-2, 2, 41, dtype=torch.float64))
    assert float((f.inverse(lam) / best.inverse(lam) - 1).abs().max()) < PROMISE
    # the modulus is a numerical sup on a grid of weights for the designed one, a closed form for best
    assert f.modulus(0.3) == pytest.approx(best.modulus(0.3), rel=1e-3)
    assert f.range.low == pytest.approx(best.range.low)
    assert f.range.high == best.range.high
    assert f.range.high_open


@pytest.mark.parametrize(("L", "b"), [(0.6, 2.0), (10.0, 0.1)])
def test_constants_are_those_of_best(L, b):
    f, best = design_parameterization("L|w|", L=L, b=b), parameterizations.get("best", a=L / 2, b=b)
    assert float((f(W) / best(W) - 1).abs().max()) < ACCURATE


@pytest.mark.parametrize(
    ("G", "time", "known"),
    [
        (lambda w: torch.exp(-w), "continuous", "exp"),
        (lambda w: parameterizations.get("softplus").gradient_scale(w), "continuous", "softplus"),
        (lambda w: torch.exp(-w), "discrete", "softplus"),
    ],
)
def test_decreasing_criteria_give_back_the_other_known_ones(G, time, known):
    f, reference = (
        design_parameterization(G, form="decreasing", time=time),
        parameterizations.get(known, time=time),
    )
    w = torch.linspace(-20, 20, 1001, dtype=torch.float64)
    assert float((f.margin(w) / reference.margin(w) - 1).abs().max()) < 1e-10


@pytest.mark.parametrize(
    ("G", "form"),
    [
        (lambda w: 1 + w**3, "even"),
        (lambda w: torch.ones_like(w), "even"),
        (lambda w: 1 / (1 + w**2), "even"),
        (lambda w: 1 / (1 + w**2), "decreasing"),
    ],
)
@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_any_criterion_is_the_gradient_scale_of_its_solution(G, form, time):
    f = design_parameterization(G, form=form, time=time)
    w = torch.linspace(-6, 6, 241, dtype=torch.float64).requires_grad_()
    lam = f(w)
    (slope,) = torch.autograd.grad(lam.sum(), w)
    x = w.detach()
    wanted = G(x.abs() if form == "even" else x)
    margin = -lam.detach() if time == "continuous" else 1 - lam.detach().abs()
    # by autograd through f itself, and by the closed forms of the class; w = 0 is a kink of the even form
    kept = x.abs() > 1e-9
    torch.testing.assert_close((slope.abs() / margin**2)[kept], wanted[kept], rtol=1e-8, atol=0)
    torch.testing.assert_close(f.gradient_scale(x), wanted, rtol=1e-8, atol=0)
    torch.testing.assert_close(f.derivative(x)[kept], slope[kept], rtol=1e-10, atol=1e-14)
    right = x[x >= 0] if form == "even" else x
    torch.testing.assert_close(f.inverse(f(right)), right, rtol=1e-6, atol=1e-6)


def test_a_layer_trains_with_a_designed_parameterization():
    f = design_parameterization(lambda w: 1 + w**2)
    layer = DiagonalSSM(1, 8, parameterization=f)
    assert bool((layer.eigenvalues() < 0).all())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.randn(4, 20, 1, generator=torch.Generator().manual_seed(0))
    before = layer.w.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        layer(x)[0].square().mean().backward()
        optimizer.step()
    assert not torch.equal(layer.w, before)
    assert bool(torch.isfinite(layer(x)[0]).all())


def test_a_criterion_that_fades_too_fast_cannot_reach_the_boundary_and_says_so():
    f = design_parameterization(lambda w: torch.exp(-w))
    assert f.range.high < 0  # u stays below b + 1, so that |f| stays above 1/(b + 1)
    assert f.range.high == pytest.approx(-1 / 1.5)
    with pytest.raises(RangeError, match="eigenvalues outside it"):
        f.inverse(torch.tensor([-0.01], dtype=torch.float64))


@pytest.mark.parametrize(
    ("criterion", "how", "error", "text"),
    [
        (lambda w: w - 1, {}, ArgumentError, "finite and >= 0"),
        (lambda w: 0 * w, {}, ArgumentError, "0 everywhere"),
        (lambda w: w.sum(), {}, ArgumentError, "element by element"),
        ("|w|", {}, UnknownNameError, "L|w|"),
        ("L|w|", {"L": -1.0}, ArgumentError, "above 0"),
        ("L|w|", {"b": 0.0}, ArgumentError, "b must be above 0"),
        ("L|w|", {"b": 0.5, "time": "discrete"}, ArgumentError, "at least 1"),
        ("L|w|", {"b": math.nan}, ArgumentError, "b must be"),
        (torch.exp, {"L": 2.0}, ArgumentError, "got a function; leave L out"),
        (lambda w: torch.exp(-w), {"form": "decreasing", "b": 1.0}, ArgumentError, "only with form='even'"),
        ("L|w|", {"time": "discreet"}, UnknownNameError, "discrete"),
        ("L|w|", {"form": "odd"}, UnknownNameError, "even"),
    ],
)
def test_mistakes_are_named(user_mistakes, criterion, how, error, text):
    with pytest.raises(error, match=text.replace("|", r"\|")):
        design_parameterization(criterion, **how)


def test_the_gradient_scale_of_a_list_is_an_array_and_of_nothing_an_error(user_mistakes):
    assert gradient_scale("exp", 0.0) == 1.0
    assert gradient_scale("exp", [0.0, 0.0]).tolist() == [1.0, 1.0]
    assert gradient_scale("exp", []).tolist() == []
    with pytest.raises(ArgumentError, match="w must be numbers"):
        gradient_scale("exp", None)
