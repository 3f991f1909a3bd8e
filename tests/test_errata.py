"""Where docs/errata.md says that a paper is wrong or silent and no other test would notice if the page were."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast import parameterizations
from holdfast_papers.constructions import elementwise, kolmogorov_arnold

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
