"""Freed memory is kept inside, and given back after."""

import resource
import sys

import pytest
import torch

from holdfast.training import _fabric

SIZE = 1 << 24  # floats: 64 MB, twice what glibc would ever keep by itself


def _faults(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(size).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux" or _fabric._glibc() is None, reason="only glibc has these settings")
def test_a_block_that_was_freed_is_there_again_without_a_page_fault():
    with _fabric.kept():
        # each a little smaller: what lies beside a freed block may be taken, and aligning needs some bytes more than it has
        inside = [_faults(SIZE - 4096 * k) for k in range(5)]
    assert min(inside) < _faults(SIZE) / 4, inside
