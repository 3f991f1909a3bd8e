"""Random arguments to scan and lru, most of them wrong: each call gives a right result or an error, never a crash."""

import random
import sys

import pytest
import torch

from holdfast.errors import HoldfastError
from holdfast.kernels._common import library
from holdfast.kernels.lru import lru, lru_reference
from holdfast.kernels.scan import scan, scan_reference

CASES = 10_000
DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bfloat16, torch.float16)
ODD_DTYPES = (torch.int64, torch.int8, torch.bool, torch.uint8, torch.float8_e4m3fn)
SIZES = (0, 1, 1, 2, 3, 5, 8, 9, 17)
OBJECTS = (None, 1.5, "a", [1.0, 2.0], {}, object())
HUGE = (2**40, 2**44, 2**50)  # more than any machine holds, so that no test tries to
# torch's own words for a result that no machine can hold
NO_MEMORY = ("allocate memory", "not enough memory", "overflow", "invalid shape dimension", "too large", "out of range")


def values(shape, dtype, rng):
    g = torch.Generator().manual_seed(rng.randrange(2**31))
    real = torch.randn(shape, generator=g, dtype=torch.float64) * 0.7
    if dtype.is_complex:
        real = torch.complex(real, torch.randn(shape, generator=g, dtype=torch.float64) * 0.7)
    return real.to(dtype)


def arranged(x, rng):
    """The same shape and usually the same values, in some unusual arrangement of memory."""
    way = rng.randrange(9)
    if way == 0 and x.ndim >= 2:
        order = rng.sample(range(x.ndim), x.ndim)
        inverse = sorted(range(x.ndim), key=order.__getitem__)
        return x.permute(order).contiguous().permute(inverse)
    if way == 1 and x.ndim:
        wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if way == 2 and x.ndim and x.shape[0]:
        return x[:1].expand(x.shape)
    if way == 3 and x.numel():  # overlapping windows on one small storage
        size = 1 + sum((n - 1) * s for n, s in zip(x.shape, (1,) * x.ndim, strict=True))
        return values((size,), x.dtype, rng).as_strided(x.shape, (1,) * x.ndim)
    if way == 4 and x.numel():  # an odd offset into a larger storage
        whole = torch.cat((x.reshape(-1)[:1], x.reshape(-1)))
        return whole[1:].view(x.shape)
    if way == 5 and x.is_complex():
        return x.conj()
    if way == 6:
        return x.requires_grad_()
    return x


def spoiled(x, rng):
    """Something that should not have come in x's place."""
    way = rng.randrange(7)
    if way == 0:
        return rng.choice(OBJECTS)
    if way == 1:
        return torch.zeros(x.shape, dtype=rng.choice(ODD_DTYPES))
    if way == 2:
        return values([rng.choice(SIZES) for _ in range(rng.randrange(5))], x.dtype, rng)
    if way == 3:
        return torch.empty(x.shape, dtype=x.dtype, device="meta")
    if way == 4:
        shape = list(x.shape) or [1]
        shape[rng.randrange(len(shape))] = rng.choice(HUGE)
        return torch.zeros((), dtype=x.dtype).expand(shape)
    if way == 5 and x.dtype not in (torch.bfloat16, torch.float16):
        return x.to_sparse()
    return torch.full(x.shape, rng.choice((float("nan"), float("inf"))), dtype=x.dtype)


def chance(rng, share):
    return rng.random() < share


def random_lengths(batch, time, rng):
    if chance(rng, 0.6):
        return None
    low, high = (0, time) if chance(rng, 0.7) else (-3, time + 3)
    lengths = torch.tensor([rng.randint(low, high) for _ in range(batch)], dtype=torch.int64)
    if chance(rng, 0.1):
        return rng.choice((lengths.int(), lengths[:, None], lengths.repeat(2), lengths.to("meta"), 3))
    return lengths.repeat_interleave(2)[::2] if chance(rng, 0.3) else lengths


def some_spoiled(arguments, rng):
    """Each argument arranged somehow; in half of the cases some of them spoiled."""
    bad = chance(rng, 0.5)
    return [x if x is None else spoiled(x, rng) if bad and chance(rng, 0.3) else arranged(x, rng) for x in arguments]


def scan_case(rng):
    batch = [rng.choice(SIZES) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    time, channels = rng.choice(SIZES), rng.choice(SIZES)
    shape = (*batch, time, channels)
    dtype, other = rng.choice(DTYPES), rng.choice(DTYPES)
    a_shape = [n if chance(rng, 0.6) else 1 for n in shape][rng.randrange(len(shape) + 1) :]
    arguments = [
        values(a_shape, other if chance(rng, 0.2) else dtype, rng),
        values(shape, dtype, rng),
        values((*batch, channels), dtype, rng) if chance(rng, 0.5) else None,
    ]
    lengths = random_lengths(batch[0], time, rng) if len(batch) == 1 else None
    return scan, scan_reference, arguments, {"lengths": lengths}


def lru_case(rng):
    batch, time, inputs, states, outputs = (rng.choice(SIZES) for _ in range(5))
    planar, skip = chance(rng, 0.7), chance(rng, 0.4)
    outputs = inputs if skip else outputs
    dtype = rng.choice((*DTYPES[:2], *DTYPES[4:]))
    width = 2 * states if planar else states
    shapes = [
        (batch, time, inputs),
        (states,),
        (states,),
        (width, inputs),
        (outputs, width),
        (outputs,),
        (batch, width),
    ]
    there = (True, True, planar, True, True, skip, chance(rng, 0.5))
    arguments = [values(shape, dtype, rng) if is_there else None for shape, is_there in zip(shapes, there, strict=True)]
    return lru, lru_reference, arguments, {"lengths": random_lengths(batch, time, rng)}


def wide(x):
    """float64 or complex128, for the reference."""
    if not isinstance(x, torch.Tensor) or x.dtype == torch.int64:
        return x
    return x.detach().to(torch.complex128 if x.is_complex() else torch.float64)


def check(outputs, expected, half):
    for got, want in zip(outputs, expected, strict=True):
        assert got.shape == want.shape, (got.shape, want.shape)
        # at most 17 steps and sums, and factors beyond 1: errors grow with the largest value, 3e-7 or 8e-3 each
        scale = want.abs().nan_to_num(0, 0, 0).max() if want.numel() else 0
        tolerance = (3e-2 if half else 1e-4) * (1 + scale)
        same = (got - want).abs() <= tolerance
        assert (same | ~want.isfinite() | ~got.isfinite()).all(), (got, want)
        if want.isfinite().all() and scale < 1e3:  # 65504 is the largest float16
            assert got.isfinite().all()


def run_case(seed):
    """Runs case `seed`; returns whether it gave a result."""
    rng = random.Random(seed)
    function, reference, arguments, options = (scan_case if chance(rng, 0.6) else lru_case)(rng)
    arguments = some_spoiled(arguments, rng)
    options["reverse"] = chance(rng, 0.3)
    backend = "native" if chance(rng, 0.7) else rng.choice(("auto", "chunked", "cuda", None))
    try:
        outputs = function(*arguments, **options, backend=backend)
        differentiable = [x for x in outputs if x.requires_grad and x.device.type == "cpu"]
        if differentiable and chance(rng, 0.5):
            sum(x.abs().sum() for x in differentiable).backward()
    except HoldfastError:
        return False
    except RuntimeError as error:
        if any(words in str(error) for words in NO_MEMORY):
            return False
        raise
    if outputs[0].device.type == "cpu" and arguments[0].numel() and outputs[0].numel():
        halves = (torch.bfloat16, torch.float16)
        half = any(isinstance(x, torch.Tensor) and x.dtype in halves for x in arguments)
        check([wide(x) for x in outputs], reference(*(wide(x) for x in arguments), **options), half)
    return True


@pytest.mark.skipif(not library.status().available, reason="the native library is not built")
def test_ten_thousand_random_argument_sets_never_crash_the_process():
    import children  # beside conftest.py, where a script does not look

    done = children.run(f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')")
    assert done.returncode == 0, done.stderr[-3000:]
    results = int(done.stdout.split()[0])
    # enough of both: results that were compared, and mistakes that were refused
    assert 0.2 * CASES < results < 0.8 * CASES, done.stdout


def main():
    torch.set_num_threads(1)  # 10,000 tiny problems
    results = 0
    for seed in range(CASES):
        try:
            results += run_case(seed)
        except BaseException:
            sys.stderr.write(f"case {seed}\n")
            raise
    sys.stdout.write(f"{results} results of {CASES} cases\n")


if __name__ == "__main__":
    main()
