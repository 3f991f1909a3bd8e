import math
from functools import partial

import pytest
import torch

from holdfast_papers.benchmarks import growth
from holdfast_papers.benchmarks.case import OwnKernel, Runner
from holdfast_papers.benchmarks.timing import sweep


def test_exponent_of_a_power_is_found_exactly():
    sizes = [1, 2, 4, 8, 16]
    exponent, error = growth.fit(sizes, [3e-4 * n**1.5 for n in sizes])
    assert exponent == pytest.approx(1.5, abs=1e-12)
    assert error == pytest.approx(0, abs=1e-12)


def test_error_of_the_exponent_is_that_of_least_squares():
    # residuals +-r on three points at x = 0, log 2, 2 log 2: slope 1, squared sum 6 r^2 over one degree of freedom
    r = 0.1
    exponent, error = growth.fit([1, 2, 4], [math.exp(r), 2 * math.exp(-2 * r), 4 * math.exp(r)])
    assert exponent == pytest.approx(1, abs=1e-12)
    assert error == pytest.approx((6 * r**2 / (2 * math.log(2) ** 2)) ** 0.5, rel=1e-9)


def test_a_kernel_is_timed_at_every_value_of_the_size(monkeypatch):
    shapes, elapsed = [], []
    clock = partial(math.fsum, elapsed)  # moves only when a step runs
    monkeypatch.setattr(growth, "sweep", partial(sweep, clock=clock, settle=0))

    def ours(inputs):
        shapes.append(tuple(inputs["x"].shape))
        n = inputs["x"].shape[1]
        return Runner(lambda: elapsed.append(1e-3 * n**2), lambda given: {})

    kernel = OwnKernel(
        name="toy",
        dims="BT",
        make_inputs=lambda shape: {"x": torch.zeros(shape)},
        ours=ours,
        base=(3, 8),
        sweeps={"T": (8, 16, 32)},
        bounds={"T": 1},
        memory_shape=(1, 1),
        stated_bytes=lambda shape: 0,
        formula="",
    )
    found = growth.measure(kernel, "T", 2)
    assert shapes == [(3, 8), (3, 16), (3, 32)]
    # differences of sums of up to some thousand numbers
    assert found.exponent == pytest.approx(2, abs=1e-9)
    assert (found.kernel, found.size, found.bound, found.values) == ("toy", "T", 1, (8, 16, 32))
