"""Freed memory is kept inside a block of reuse_memory, and returned after the last one."""

import resource
import sys

import pytest
import torch

from holdfast.kernels import _memory, reuse_memory

SIZE = 1 << 24  # floats: 64 MB, twice what glibc would ever keep by itself

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or _memory._glibc() is None, reason="only glibc has these settings"
)


def _faults(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(size).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _fewest_faults():
    # each a little smaller: what lies beside a freed block may be taken, and aligning needs some bytes more than it has
    return min(_faults(SIZE - 4096 * k) for k in range(5))


def test_a_block_that_was_freed_is_there_again_without_a_page_fault():
    with reuse_memory() as reuses:
        assert reuses
        inside = _fewest_faults()
    assert inside < _faults(SIZE) / 4, inside


def test_an_inner_block_does_not_end_the_outer_one():
    with reuse_memory():
        with reuse_memory():
            pass
        inside = _fewest_faults()
    assert inside < _faults(SIZE) / 4, inside


def test_an_error_inside_ends_the_block():
    with pytest.raises(ZeroDivisionError), reuse_memory():
        raise ZeroDivisionError
    assert _memory._open_blocks == 0


def test_another_c_library_has_no_such_setting(monkeypatch):
    monkeypatch.setattr(_memory, "_glibc", lambda: None)
    with reuse_memory() as reuses:
        assert not reuses
