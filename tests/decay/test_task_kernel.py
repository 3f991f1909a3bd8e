"""The regression behind study_task: normal equations in float64, every length, and intervals that hold the truth."""

import tracemalloc

import numpy as np
import pytest

from holdfast.decay._task_data import MAX_NUMBERS, MAX_SIDE, make_rows, read_data
from holdfast.decay._task_kernel import (
    ENOUGH,
    RIDGES,
    _by_length,
    _choose_ridge,
    _with_errors,
    absolute_ridge,
    fit_task_kernel,
    refined_inverse,
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def noisy_rows(shape):
    """More answers than columns ("tall"), or fewer ("wide"), of a kernel of two steps with noise."""
    x = normal(8, 53, 2) if shape == "tall" else normal(5, 40, 6)
    y = x[..., :2] + 0.5 * np.roll(x[..., 1:3] if shape == "wide" else x, 2, axis=1)
    rows = make_rows(read_data(x, y + 0.3 * normal(*y.shape, seed=1)), 3 if shape == "tall" else 20)
    assert (rows.fitted < rows.A.shape[1]) == (shape == "wide")
    return rows


def solved(A, b, r):
    return np.linalg.solve(A.T @ A + r * np.eye(A.shape[1]), A.T @ b)


def split(rows):
    return rows.A[: rows.fitted], rows.b[: rows.fitted], rows.A[rows.fitted :], rows.b[rows.fitted :]


@pytest.mark.parametrize("shape", ["tall", "wide"])
def test_either_form_gives_the_answers_of_the_normal_equations(shape):
    rows = noisy_rows(shape)
    A, b, held, asked = split(rows)
    missed, ridge, answers = _choose_ridge(rows)
    plain = {r: held @ solved(A, b, absolute_ridge(A, r)) for r in RIDGES}
    # the condition number is at most 1e8 times the columns: 1e-5 of the answers are its roundings in float64
    np.testing.assert_allclose(answers, plain[ridge], rtol=0, atol=1e-5 * np.abs(answers).max())
    assert missed == pytest.approx(min(np.square(asked - p).sum() for p in plain.values()), rel=1e-5)


@pytest.mark.parametrize("shape", ["tall", "wide"])
def test_one_factor_serves_every_length(shape):
    rows = noisy_rows(shape)
    A, b, held, asked = split(rows)
    r = absolute_ridge(A, 1e-2)
    missed = _by_length(rows, 1e-2).sum(1)
    for k in (0, 1, 2, rows.lags):
        c = (k + 1) * rows.features
        plain = np.square(asked - held[:, :c] @ solved(A[:, :c], b, r)).sum()
        assert missed[k] == pytest.approx(plain, rel=1e-9)  # a well-conditioned system: roundings only
    limit = np.square(asked).sum() * (1 - ENOUGH) + ENOUGH * missed.min()
    assert int(np.argmax(missed <= limit)) == 2  # of the kernel, where the wide form only bisects


@pytest.mark.parametrize("shape", ["tall", "wide"])
def test_the_kernel_is_ridge_regression_after_three_refinements(shape):
    rows = noisy_rows(shape)
    r = absolute_ridge(rows.A, 1e-2)
    kernel, errors, size_error = _with_errors(rows, 1e-2)
    refined = np.zeros((rows.A.shape[1], rows.b.shape[1]))
    for _ in range(4):
        refined += solved(rows.A, rows.b - rows.A @ refined, r)
    np.testing.assert_allclose(kernel.reshape(refined.shape), refined, atol=1e-10)
    assert (errors > 0).all() and (size_error > 0).all()
    # both forms are one function of A'A: f(A'A) A' = A' f(AA')
    G, K = refined_inverse(rows.A.T @ rows.A, r), refined_inverse(rows.A @ rows.A.T, r)
    np.testing.assert_allclose(G @ rows.A.T, rows.A.T @ K, atol=1e-10)


KERNELS = {
    "power law": (1 + np.arange(260.0)) ** -1.5,
    "exponential": 0.9 ** np.arange(260.0),
    "delay of 100": np.eye(1, 260, 100)[0],
}


def filtered(x, kernel):
    return np.stack([np.convolve(row, kernel)[: len(row)] for row in x])[..., None]


def inside(found, truth):
    """Whether each weight's interval holds the truth."""
    return np.abs(found.weights[..., 0] - truth) <= found.quantile * found.errors[..., 0]


def test_intervals_hold_the_true_kernel_as_often_as_they_say():
    x = normal(40, 260)
    held = []
    for seed, kernel in enumerate(KERNELS.values(), start=1):
        clean = filtered(x, kernel)
        y = clean + 0.3 * clean.std() * normal(*clean.shape, seed=seed)
        found = fit_task_kernel(make_rows(read_data(x[..., None], y), None), classes=False)
        assert found.rows.lags == 130
        held.append(inside(found, kernel[:131, None]).mean())
    # of 393 weights 95% +- 1.1% are inside, where errors are independent; 4 standard deviations
    assert np.mean(held) == pytest.approx(0.95, abs=0.045)


def test_intervals_of_products_hold_the_adding_problem():
    generator = np.random.default_rng(0)
    x = generator.uniform(size=(1500, 40, 2))
    x[..., 1] = 0
    marks = np.argsort(generator.uniform(size=(1500, 40)), axis=1)[:, :2]
    np.put_along_axis(x[..., 1], marks, 1.0, axis=1)
    y = (x[..., 0] * x[..., 1]).sum(1, keepdims=True)
    noisy = y + 0.2 * generator.normal(size=y.shape)
    found = fit_task_kernel(make_rows(read_data(x, noisy).with_products(), None), classes=False)
    assert found.steps >= 37  # of 39: marks lie anywhere
    # features: value, mark, value^2, value mark, mark^2; mark^2 = mark, so that only their sum is determined
    determined = inside(found, np.array([0, 0, 0, 1.0, 0]))[:, [0, 2, 3]]
    # 120 weights: 2% is one standard deviation, and those of one lag hang together
    assert determined.mean() > 0.95 - 0.08


def test_a_large_task_is_sampled_and_stays_below_200_megabytes():
    x = normal(300, 400, 4)
    data = read_data(x, np.roll(x, 5, axis=1))
    tracemalloc.start()
    try:
        rows = make_rows(data, None)
        found = fit_task_kernel(rows, classes=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.steps == 5
    assert rows.A.size <= MAX_NUMBERS and min(rows.A.shape) <= MAX_SIDE
    assert any("answers were used, evenly spaced" in note for note in rows.notes)
    assert peak < 200e6
