"""What Python allocates for backward has the size that C writes: both have a formula, and they must not part."""

import itertools
import math

import pytest
import torch

from holdfast.kernels._common import calls, library
from holdfast.kernels.s4d import _native as s4d
from holdfast.kernels.s4d._reference import S4DInputs
from holdfast.kernels.selective import _native as selective
from holdfast.kernels.selective._reference import SelectiveCall

pytestmark = pytest.mark.skipif(bool(library.missing()), reason="needs the native library")

DTYPES = (torch.float32, torch.float64)
TIMES = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 4096)
SIZES = tuple(itertools.product((1, 2, 3, 7, 33), TIMES, (1, 2, 3, 5, 8, 15, 16, 17, 40)))


def inputs_of_s4d(batch, time, features, dtype, lengths=None):
    u, lam = (torch.empty(s, dtype=dtype, device="meta") for s in ((batch, time, features), (features, 3)))
    return S4DInputs(u, u[0, 0], lam, None, lam, None, None, lengths)


def numbers_in_c(kernel, name, dtype, **fields):
    (zeros, pack), function = calls._function(kernel, name)
    given = {**zeros, "wide": dtype is torch.float64, "threads": 2, **fields}
    assert len(given) == len(zeros), f"{kernel} has no such field"
    return function(pack(*given.values()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("initial", "lengths"), [(i, n) for i in (False, True) for n in (False, True)])
def test_checkpoints_of_the_s4d_scan_have_the_size_of_c(dtype, initial, lengths):
    ends = torch.zeros(64, dtype=torch.int64)
    for batch, time, features in SIZES:
        inputs = inputs_of_s4d(batch, time, features, dtype, ends[:batch] if lengths else None)
        counted = numbers_in_c(
            "s4d", "s4d_scan_saved", dtype, batch=batch, time=time, features=features, states=3, initial=initial,
            lengths=ends.data_ptr() if lengths else 0,
        )  # fmt: skip
        assert s4d.scan_saved(inputs, initial) == counted, (batch, time, features)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kept_response_of_the_s4d_transforms_has_the_size_of_c(dtype):
    for batch, time, features in SIZES:
        inputs = inputs_of_s4d(batch, time, features, dtype)
        counted = numbers_in_c("s4d", "s4d_fft_saved", dtype, batch=batch, time=time, features=features, states=3)
        assert s4d.fft_saved(inputs) == counted, (batch, time, features)


@pytest.mark.parametrize("dtype", DTYPES)
def test_checkpoints_of_the_selective_scan_have_the_size_of_c(dtype):
    for batch, time, channels in SIZES:
        u, A = (torch.empty(s, dtype=dtype, device="meta") for s in ((batch, time, channels), (channels, 4)))
        counted = numbers_in_c(
            "selective", "selective_saved", dtype, rows=batch, steps=time, channels=channels, groups=1, states=4, parts=1
        )  # fmt: skip
        call = SelectiveCall(u, u, A, u, u, *[None] * 6, False, False)
        assert math.prod(selective._saved_shape(call)) == counted, (batch, time, channels)


def test_a_field_that_a_kernel_does_not_have_is_refused():
    with pytest.raises(Exception, match="pack expected"):
        calls.call("s4d", "s4d_scan_saved", torch.float32, no_such_field=1)
