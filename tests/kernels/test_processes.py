"""Every kernel in other processes: other builds of the library, none at all, spawned and forked children."""

import multiprocessing

import pytest
import test_causal_conv
import test_delta_rule
import test_gate
import test_lru
import test_rnn
import test_s4d
import test_scan
import test_selective
import torch

import children
from holdfast.kernels._common import library

native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
KERNELS = (test_scan, test_lru, test_s4d, test_rnn, test_gate, test_selective, test_causal_conv, test_delta_rule)


def check_build():
    """Small problems of every kernel against its reference, with the library that this process has loaded."""
    for kernel in KERNELS:
        kernel.check_build()


@native
@pytest.mark.parametrize("variant", library.built()[1:])
def test_other_builds_are_right_too(variant):
    code = """
import torch
torch.set_num_threads(1)
import test_processes
from holdfast.kernels._common import library
test_processes.check_build()
print(library.status().variant)
"""
    done = children.run(code, **{library.ENVIRONMENT: variant})
    assert done.stdout.strip() == variant, done.stderr


def _works():
    for kernel in KERNELS:
        kernel.works()


def compute_in_a_child(method):
    """Starts a child that runs every kernel while the parent's thread pool is alive; returns its exit code."""
    torch.set_num_threads(2)
    test_scan.works()
    torch.set_num_threads(2)
    child = multiprocessing.get_context(method).Process(target=_works, daemon=True)
    child.start()
    child.join(timeout=200)
    return child.exitcode


@native
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_forked_and_spawned_workers_may_compute(method):
    # in a process of its own: a thread that another test left inside MKL would hold its allocator's lock over the fork
    code = f"import test_processes\nprint(test_processes.compute_in_a_child({method!r}))"
    done = children.run(code)
    assert done.stdout.strip() == "0", done.stderr


def test_without_the_native_library_auto_is_chunked_and_native_says_how_to_get_it():
    code = """
import torch
from holdfast.errors import BackendError
from holdfast.kernels import rnn, scan
from holdfast.kernels.rnn import choose as choose_rnn
from holdfast.kernels.scan import choose as choose_scan
x = torch.rand(2, 3, 4)
calls = [
    (choose_scan, lambda backend: scan(torch.rand(4), x, backend=backend)),
    (choose_rnn, lambda backend: rnn(x, torch.rand(5), torch.rand(5, 4), backend=backend)),
]
for choose, call in calls:
    call("auto")
    try:
        call("native")
    except BackendError as error:
        print(choose()[0], error)
"""
    done = children.run(code, **{library.ENVIRONMENT: "off"})
    for line in done.stdout.splitlines():
        assert line.startswith("chunked ")
        assert "switched off by HOLDFAST_NATIVE=off" in line
    assert len(done.stdout.splitlines()) == 2, done.stderr


def test_importing_the_kernels_loads_no_library():
    code = """
import holdfast.kernels.rnn
from holdfast.kernels._common import library
print(library._load.cache_info().currsize)
"""
    done = children.run(code)
    assert done.stdout.strip() == "0", done.stderr
