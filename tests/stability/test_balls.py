"""Balls of perturbations: draws lie where they should, projections are nearest, steepest directions reach the dual norm."""

import pytest
import torch

from holdfast.errors import UnknownNameError
from holdfast.nn import LRU, S4D, ContinuousGRU, ContinuousRNN, DiagonalSSM, LinearRNN
from holdfast.stability.perturbation._balls import Euclidean, MaxAbs, Spectral, ball_of, select_weights

BALLS = (Spectral(), Euclidean(), MaxAbs())
SHAPES = ((4, 4), (3, 7), (7, 2), (2, 3, 4))
ROUNDING = 1e-12  # float64, matrices of at most 24 entries


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def true_norm(ball, delta):
    """By torch's own norms, one perturbation at a time."""
    if isinstance(ball, Spectral):
        return torch.stack([torch.linalg.matrix_norm(d.reshape(len(d), -1), 2) for d in delta])
    return torch.linalg.vector_norm(delta.flatten(1), torch.inf if isinstance(ball, MaxAbs) else 2, dim=1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("ball", BALLS, ids=lambda b: b.name)
def test_norm_is_the_one_of_torch(ball, shape):
    delta = torch.randn(5, *shape, dtype=torch.float64, generator=generator())
    # the Gram matrix squares the condition, but not of the largest singular value
    torch.testing.assert_close(ball.norm(delta), true_norm(ball, delta), rtol=1e-10, atol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("ball", BALLS, ids=lambda b: b.name)
def test_draws_lie_on_the_sphere_or_in_the_ball(ball, shape):
    like = torch.zeros(shape)
    on = true_norm(ball, ball.draw(like, 50, generator(), "sphere"))
    torch.testing.assert_close(on, torch.ones_like(on), rtol=1e-10, atol=0)
    inside = true_norm(ball, ball.draw(like, 50, generator(), "ball"))
    assert bool((inside <= 1 + ROUNDING).all())
    assert float(inside.min()) < 0.999


def test_draws_in_a_ball_fill_its_volume_evenly():
    # the share of a ball of n dimensions within radius r is r^n; 4000 draws leave a standard error of 0.008
    norms = Euclidean().draw(torch.zeros(3), 4000, generator(), "ball").norm(dim=1)
    assert float((norms < 0.5).double().mean()) == pytest.approx(0.125, abs=0.03)


@pytest.mark.parametrize("ball", BALLS, ids=lambda b: b.name)
def test_projection_is_inside_and_nearest(ball):
    delta = 3 * torch.randn(6, 4, 5, dtype=torch.float64, generator=generator())
    radius = torch.linspace(0.1, 1.0, 6, dtype=torch.float64)
    projected = ball.project(delta, radius)
    assert bool((true_norm(ball, projected) <= radius + ROUNDING).all())
    torch.testing.assert_close(ball.project(projected, radius), projected, rtol=0, atol=ROUNDING)
    distance = (delta - projected).flatten(1).norm(dim=1)
    for other in ball.draw(delta[0], 20, generator(1), "ball"):
        assert bool(((delta - radius.reshape(-1, 1, 1) * other).flatten(1).norm(dim=1) >= distance - ROUNDING).all())


@pytest.mark.parametrize("ball", BALLS, ids=lambda b: b.name)
def test_steepest_direction_reaches_the_dual_norm(ball):
    gradient = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator())
    way = ball.steepest(gradient)
    assert bool((true_norm(ball, way) <= 1 + 1e-10).all())
    reached = (gradient * way).flatten(1).sum(1)
    if isinstance(ball, Spectral):
        dual = torch.linalg.matrix_norm(gradient, "nuc")
    else:
        dual = torch.linalg.vector_norm(gradient.flatten(1), 1 if isinstance(ball, MaxAbs) else 2, dim=1)
    torch.testing.assert_close(reached, dual)


def test_complex_weights_are_drawn_complex():
    like = torch.zeros(3, 2, dtype=torch.complex64)
    for ball in BALLS:
        drawn = ball.draw(like, 4, generator(), "sphere")
        assert drawn.is_complex()
        assert bool((drawn.imag.abs() > 0).any())


def test_spectral_norm_of_a_vector_is_its_length_and_of_a_diagonal_recurrence_its_largest_entry():
    assert isinstance(ball_of("spectral", torch.Size([5]), diagonal=False), Euclidean)
    assert isinstance(ball_of("spectral", torch.Size([5, 1]), diagonal=False), Euclidean)
    assert isinstance(ball_of("spectral", torch.Size([5, 2]), diagonal=False), Spectral)
    assert isinstance(ball_of("spectral", torch.Size([5]), diagonal=True), MaxAbs)
    assert isinstance(ball_of("frobenius", torch.Size([5]), diagonal=True), Euclidean)
    assert isinstance(ball_of("max-abs", torch.Size([5, 2]), diagonal=False), MaxAbs)


@pytest.mark.parametrize(
    ("layer", "recurrent", "kinds"),
    [
        (DiagonalSSM(1, 4), {"w"}, {"w": MaxAbs, "U": Euclidean, "b": Euclidean, "C": Euclidean}),
        (LRU(2, 4), {"w", "phase"}, {"w": MaxAbs, "phase": MaxAbs, "B": Spectral}),
        (S4D(2, 4), {"w", "frequency", "log_dt"}, {"w": MaxAbs, "C": Spectral}),
        (LinearRNN(2, 4), {"recurrence.free.0", "recurrence.free.1"}, {"recurrence.free.0": Spectral}),
        (LinearRNN(2, 4, structure="diagonal"), {"recurrence.free.0"}, {"recurrence.free.0": MaxAbs}),
        (ContinuousRNN(2, 4, parameterization="direct"), {"recurrence.free.0"}, {"recurrence.free.0": Spectral}),
        (ContinuousGRU(2, 4), {"U"}, {"U": Spectral}),
        (torch.nn.LSTM(2, 4), {"weight_hh_l0"}, {"weight_hh_l0": Spectral}),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, torch.nn.Module) else "",
)
def test_every_weight_gets_its_own_ball(layer, recurrent, kinds):
    assert {w.name for w in select_weights(layer, "recurrent", "spectral")} == recurrent
    weights = {w.name: w.ball for w in select_weights(layer, "all", "spectral")}
    assert set(weights) == {name for name, _ in layer.named_parameters()}
    for name, kind in kinds.items():
        assert isinstance(weights[name], kind), name


def test_unknown_norm_is_refused_with_the_known_ones(user_mistakes):
    with pytest.raises(UnknownNameError, match="spectral"):
        select_weights(DiagonalSSM(1, 4), "all", "spectrum")
