"""Which activations "Inverse Approximation Theory" is about (Def. 3.8)."""

import math

import pytest
import torch
from torch.nn import functional

from holdfast.errors import ArgumentError, ShapeError
from holdfast.stability import classify_activation


@pytest.mark.parametrize(("scale", "width"), [(1.0, 1.0), (2.0, 3.0)])
def test_scaled_tanh_solves_its_riccati_equation_everywhere(scale, width):
    """y = s tanh(z / w): y' = s/w - y^2 / (s w)."""
    found = classify_activation(lambda z: scale * torch.tanh(z / width))
    assert found.kind == "A1" and found.admitted and found.reach == math.inf
    assert found.a == pytest.approx(scale / width) and found.b == pytest.approx(1 / (scale * width))
    assert found.lipschitz == pytest.approx(scale / width)


def test_hardtanh_is_linear_up_to_one():
    found = classify_activation(lambda z: functional.hardtanh(3 * z))
    assert found.kind == "A0" and found.admitted and found.slope == 3
    assert found.reach == pytest.approx(1 / 3, abs=0.01)  # points are 0.01 apart


@pytest.mark.parametrize(
    ("sigma", "why"),
    [
        (torch.relu, "kind"), (lambda z: 2 * z, "bounded"), (torch.sigmoid, "kind"), (torch.erf, "kind"),
        (functional.softsign, "kind"), (torch.sin, "monotone"),
    ],
)  # fmt: skip
def test_others_are_left_out_for_their_reason(sigma, why):
    found = classify_activation(sigma)
    assert not found.admitted
    assert {"kind": found.kind == "neither", "bounded": not found.bounded, "monotone": not found.monotone}[why]


def test_what_is_no_activation_is_refused(user_mistakes):
    with pytest.raises(ShapeError, match="sigma"):
        classify_activation(lambda z: z[:3])
    with pytest.raises(ArgumentError, match="autograd"):
        classify_activation(lambda z: torch.ones_like(z))
    with pytest.raises(ArgumentError, match="finite"):
        classify_activation(lambda z: z * math.inf)
