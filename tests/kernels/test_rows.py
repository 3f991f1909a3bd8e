"""Rows of a batch know nothing of one another: a hostile row leaves every other one, and its gradient, as they were."""

import pytest
import torch

from holdfast.kernels import gate, lru, rnn, s4d, scan
from holdfast.kernels._common import library
from holdfast.kernels.gate import gate_reference

# two groups of 32 rows in the rnn, several vectors of rows, more than one tile of time
BATCH, TIME = 37, 130
native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def run_scan(x, backend, channels):
    return scan(0.9 + 0.01 * random(channels), x, backend=backend)


def run_scan_complex(x, backend, channels):
    return scan(torch.polar(torch.full((channels,), 0.9), random(channels)), x.to(torch.complex64), backend=backend)


def run_scan_per_step(x, backend, channels):
    return scan(torch.sigmoid(random(*x.shape)), x, backend=backend)


def run_lru(x, backend, channels):
    weights = (random(32, channels), random(channels, 32, seed=1) / 8, random(channels))
    return lru(x, torch.full((16,), 0.9), torch.full((16,), 0.1), *weights, backend=backend)


def run_rnn(x, backend, channels):
    return rnn(x, random(20, 20) / 8, random(20, channels), random(20), activation="relu", backend=backend)


def s4d_weights(channels, modes=3):
    rates = -torch.rand(channels, modes, generator=torch.Generator().manual_seed(3))
    return torch.full((channels,), 0.1), rates, *(random(channels, modes, seed=s) for s in (4, 5, 6)), random(channels)


def run_s4d(x, backend, channels):
    return s4d(x, *s4d_weights(channels), backend=backend)


def run_s4d_scan(x, backend, channels):
    return s4d(x, *s4d_weights(channels), algorithm="scan", backend=backend)


def run_s4d_fft(x, backend, channels):
    # a gradient of the final state would send the backward pass through the scan
    return s4d(x, *s4d_weights(channels), algorithm="fft", return_state=False, backend=backend)[:1]


def run_gate(x, backend, channels):
    function = gate if backend == "native" else gate_reference
    return (function(x, 0.5 * x, random(2 * channels, channels) / 4, random(2 * channels)),)


EVERYWHERE = [run_scan, run_scan_complex, run_scan_per_step, run_lru, run_rnn, run_s4d, run_gate]
CASES = [
    pytest.param(run, backend, id=f"{run.__name__[4:]}-{backend}")
    for run in EVERYWHERE
    for backend in ("chunked", "reference")
]
CASES += [pytest.param(run, "native", id=run.__name__[4:], marks=native) for run in EVERYWHERE]
CASES += [pytest.param(run, "native", id=run.__name__[4:], marks=native) for run in (run_s4d_scan, run_s4d_fft)]


def values_and_gradient(run, x, seeds, backend):
    x = x.detach().requires_grad_()
    outputs = run(x, backend, x.shape[-1])
    pairs = [(y.real, seed[: y.numel()].view(y.shape)) for y, seed in zip(outputs, seeds, strict=False)]
    ends, begun = zip(*pairs, strict=True)
    (gradient,) = torch.autograd.grad(ends, x, begun)
    return [*(y.detach() for y in outputs), gradient]


def seeds_for(batch, time):
    return [random(batch * time * 40, seed=s) for s in (7, 8)]


def spoil(x):
    """Rows that are large, huge, infinite at one step, not a number; and the rows that are none of these."""
    x = x.clone()
    x[0] *= 1e6
    x[5] *= 1e30
    x[20, x.shape[1] // 2] = torch.inf
    x[-1] = torch.nan
    return x, [row for row in range(len(x)) if row not in (0, 5, 20, len(x) - 1)]


@pytest.mark.parametrize("channels", [3, 16, 33])
@pytest.mark.parametrize(("run", "backend"), CASES)
def test_hostile_rows_leave_the_others_bit_for_bit_as_they_were(run, backend, channels):
    x, seeds = random(BATCH, TIME, channels), seeds_for(BATCH, TIME)
    spoilt, others = spoil(x)
    pairs = zip(*(values_and_gradient(run, z, seeds, backend) for z in (x, spoilt)), strict=True)
    for before, after in pairs:
        assert torch.equal(before[others], after[others])


@pytest.mark.parametrize(("run", "backend"), CASES)
def test_hostile_gradients_of_some_rows_leave_those_of_the_others(run, backend):
    x, seeds = random(BATCH, TIME, 16), seeds_for(BATCH, TIME)
    calm = values_and_gradient(run, x, seeds, backend)
    shape = calm[0].shape
    spoilt, others = spoil(seeds[0][: calm[0].numel()].view(shape))
    after = values_and_gradient(run, x, [spoilt.flatten(), seeds[1]], backend)
    assert torch.equal(calm[-1][others], after[-1][others])


@native
@pytest.mark.parametrize("run", [run_s4d_scan, run_s4d_fft])
def test_channels_of_s4d_know_nothing_of_one_another(run):
    x, seeds = random(4, 100, 40), seeds_for(4, 100)
    spoilt, others = spoil(x.transpose(0, 2))
    calm, hostile = (values_and_gradient(run, z, seeds, "native") for z in (x, spoilt.transpose(0, 2)))
    for i in (0, -1):
        assert torch.equal(calm[i][..., others], hostile[i][..., others])
