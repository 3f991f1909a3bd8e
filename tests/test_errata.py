"""Where docs/errata.md says that a paper is wrong or silent and no other test would notice if the page were."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import expm, logm, solve_continuous_lyapunov

from holdfast import certify, parameterizations
from holdfast.nn import ContinuousRNN
from holdfast_papers.constructions import elementwise, kolmogorov_arnold
from holdfast_papers.experiments._measures import distance_to_instability

ROOT = Path(__file__).parent.parent


def test_every_row_of_the_page_names_a_test():
    rows = [line for line in (ROOT / "docs/errata.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert rows
    for row in rows:
        assert re.search(r"`(?:papers/)?tests/[\w/]+\.py::test_\w+` \|$", row), row


def test_the_authors_inverse_is_one_minus_one_over_w_from_a_half_on():
    w = torch.tensor([0.1, 0.5, 2.0, 10.0], dtype=torch.float64)
    np.testing.assert_allclose(parameterizations.get("inverse", time="discrete")(w), [-1, -1, 0.5, 0.9], rtol=1e-15)
    np.testing.assert_allclose(parameterizations.get("inverse")(w), [-2, -2, -0.5, -0.1], rtol=1e-15)


def test_more_digits_need_more_terms_of_this_construction():
    """2T + 1 = 5 terms, as Thm 3.5 has them, leave what the steps of one copy cross; ten times as many do not."""

    def product(x):
        return x.prod(-1)

    few, many = (kolmogorov_arnold(product, 2, digits=2, terms=terms).error for terms in (5, 50))
    assert few > 3 * many


def test_five_layers_answer_at_one_time_only():
    made = kolmogorov_arnold(lambda x: x[:, 0], 2, digits=1)
    x = torch.rand(100, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = made.network(x)[0][..., 0]
    assert (y[:, 1] - x[:, 0, 0]).abs().max() < made.bound
    # when the third input arrives the convolution still holds the first
    assert (y[:, 2] - x[:, 1, 0]).abs().max() > 2 * made.bound


def test_without_an_activation_the_last_two_layers_are_affine_and_miss_a_square():
    """ssm, eq. 50, prints U5 (U4 z + b4): of all affine functions 1/2 is nearest to z^2 on [-1, 1], and half away."""
    z = np.linspace(-1, 1, 201)
    errors = [np.abs(z**2 - (a * z + b)).max() for a in np.linspace(-1, 1, 21) for b in np.linspace(-1, 1, 21)]
    assert min(errors) == pytest.approx(0.5)
    assert elementwise(np.square, tolerance=1e-2).reached


def abscissa(W):
    return float(np.linalg.eigvals(W).real.max())


def lyapunov(W):
    """P of W'P + PW = -I."""
    return solve_continuous_lyapunov(W.T, -np.eye(len(W)))


def test_exp_and_softplus_of_a_general_matrix_are_not_hurwitz():
    """iat, eq. 16: e^{3i} lies left of the imaginary axis, and 1 + e^{3i} inside the unit circle."""
    M = np.array([[0.0, -3.0], [3.0, 0.0]])
    assert abscissa(-expm(M)) == pytest.approx(-np.cos(3.0)) and -np.cos(3.0) > 0.98
    assert abscissa(-logm(np.eye(2) + expm(M)).real) == pytest.approx(-np.log(2 * np.cos(1.5)))
    # a symmetric M has real eigenvalues, which is all that the paper's argument needs
    symmetric = np.array([[1.0, -3.0], [-3.0, 0.0]])
    assert abscissa(-expm(symmetric)) < 0
    assert abscissa(-logm(np.eye(2) + expm(symmetric)).real) < 0
    # -e^M of a real matrix has no other real eigenvalues than negative ones; the complete form reaches this one
    wanted = torch.tensor([[-0.1, 1.0], [-1.0, -0.1]], dtype=torch.float64)
    form = parameterizations.Hurwitz()
    assert (form(*form.right_inverse(wanted)) - wanted).abs().max() < 1e-12


def test_the_max_norm_does_not_bound_the_cubic_term_of_the_tanh_proof():
    """iat, Lemma A.9: eq. 92 moves a square from the rows to the columns. W = -b I - 11' has entries of about 1.

    W and P are functions of 11', so that 10^4 units need no matrix. The lemma says that the ratio is at most 1.
    """
    m, beta, L = 10_000, 0.1, 0.5
    entry = 1 + beta  # the largest entry of W

    def times_w(v):
        return -beta * v - v.sum()

    def times_p(v):  # P = (-W)^-1 / 2, by the formula of Sherman and Morrison
        return (v - v.sum() / (beta + m)) / (2 * beta)

    v = np.full(m, 0.5 / np.sqrt(m))
    v[0] += np.sqrt(3) / 2
    v *= np.sqrt(beta * L / entry) / np.linalg.norm(v)
    cubic = 2 * abs(times_p(v) @ (v**2 * times_w(v)))
    assert cubic / (L * (v @ v)) > 25
    # with the spectral norm, which eq. 64 assumes to be bounded anyway, and the true |P| the lemma holds
    rng = np.random.default_rng(0)
    for size in (2, 5, 30):
        W = rng.normal(size=(size, size))
        W -= (abscissa(W) + 0.3) * np.eye(size)
        P = lyapunov(W)
        v = rng.normal(size=(size, 1000))
        v *= np.sqrt(L / (2 * np.linalg.norm(P, 2) * np.linalg.norm(W, 2))) / np.linalg.norm(v, axis=0)
        assert (2 * np.abs((v * (P @ (v**2 * (W @ v)))).sum(0)) <= L * (v**2).sum(0)).all()


def speed_at_rest(W, U, b, x):
    """The largest entry of dh/dt = tanh(W h + U x + b) after 40 units of time under the constant input x."""
    h = np.zeros(len(W))
    for _ in range(4000):
        v = np.tanh(W @ h + U * x + b)
        h = h + 0.01 * v
    return np.abs(v).max()


def test_fewer_inputs_than_units_hide_a_growing_mode():
    """iat, Lemma A.7 starts v in a ball around 0; sigma(U x + b) fills one only if there are as many inputs as units."""
    W, U = np.diag([-1.0, 1.0]), np.array([1.0, 0.0])
    for x in (0.1, 1.0, 5.0):
        assert speed_at_rest(W, U, np.zeros(2), x) < 1e-12
    # what saves Thm 3.9: b is perturbed too, and starts of an open set cannot all lie on a stable manifold
    assert speed_at_rest(W, U, np.array([0.0, 1e-3]), 1.0) > 0.9


def test_an_impulse_of_finite_height_vanishes_in_continuous_time():
    """iat, App. F: x at t = 0 alone is 0 almost everywhere. Held for a step, its response falls with dt; x / dt does not."""

    def response(dt):
        model = ContinuousRNN(1, 1, activation="linear", parameterization="direct", dt=dt, W=torch.tensor([[-1.0]]))
        with torch.no_grad():
            model.U.fill_(1.0)
            model.C.fill_(1.0)
            x = torch.zeros(1, round(1 / dt) + 1, 1)
            x[:, 0] = 1.0
            return float(model(x)[0][0, -1, 0] - model(0 * x)[0][0, -1, 0])

    held = [response(dt) for dt in (0.1, 0.05, 0.025)]
    assert held[0] / held[2] == pytest.approx(4, rel=0.1)
    # Dirac's impulse gives rho(1) = e^-1, to the 1.2% of Euler steps of 0.025
    assert held[2] / 0.025 == pytest.approx(np.exp(-1), rel=0.02)


def shifted(m):
    return -0.6 * np.eye(m) + np.diag(np.ones(m - 1), 1)


def test_eigenvalues_do_not_bound_the_lyapunov_solution_of_theorem_3_9_but_a_stability_radius_does():
    """Every eigenvalue is -0.6 and |W| < 1.6, yet |P| is 1e17 times 1 / (2 * 0.6) at m = 40.

    The tanh case of iat, Thm 3.9, needs sup |P_m| and takes it from eigenvalues. It follows from what the theorem
    assumes: if no (complex) change of norm r makes W unstable, |(iw - W)^-1| <= 1/r, and Parseval's
    u'Pu = (1/2 pi) int |(iw - W)^-1 u|^2 dw gives |P| <= (2 M / r^2 + 1 / M) / pi with M = |W|.
    """
    norms = {m: np.linalg.norm(lyapunov(shifted(m)), 2) for m in (5, 40)}
    assert norms[5] == pytest.approx(35, abs=0.5)
    assert norms[40] == pytest.approx(3.7e16, rel=0.02)
    W = torch.from_numpy(shifted(5))
    certificate = certify(ContinuousRNN(1, 5, parameterization="direct", dt=0.1, W=W).double())
    assert certificate.lyapunov.norm == pytest.approx(norms[5])
    # such a family is not stable: what makes it unstable shrinks by 0.6 with every unit
    reach = [distance_to_instability(torch.from_numpy(shifted(m))) for m in (5, 10, 15)]
    assert reach[0] / reach[1] > 0.6**-4 and reach[1] / reach[2] > 0.6**-4
    rng = np.random.default_rng(1)
    for W in [shifted(5), shifted(12), *(rng.normal(size=(6, 6)) - 4 * np.eye(6) for _ in range(20))]:
        r = distance_to_instability(torch.from_numpy(W))
        if r > 0:
            M = np.linalg.norm(W, 2)
            # the distance is the smallest over a grid of frequencies, at most 2% above the true one here
            assert np.linalg.norm(lyapunov(W), 2) <= 1.05 * (2 * M / r**2 + 1 / M) / np.pi
