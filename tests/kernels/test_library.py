import ctypes
import multiprocessing
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import children
from holdfast.errors import BackendError, ShapeError
from holdfast.kernels._common import library, rooflines

native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")


def team(threads):
    return library.function("holdfast_team_size", [ctypes.c_int], ctypes.c_int)(threads)


@native
@pytest.mark.parametrize("variant", library.built())
def test_every_variant_that_is_built_loads_and_computes(variant):
    code = """
import torch
from holdfast.kernels._common import library, rooflines
x, y, out = torch.rand(1003), torch.rand(1003), torch.full((1003,), float("nan"))
rooflines.triad(out, x, y, 3.0)
# one fused multiply-add against two roundings of numbers below 4
assert float((out - (x + 3 * y)).abs().max()) <= 4.8e-7
print(library.status().variant)
"""
    done = children.run(code, HOLDFAST_NATIVE=variant)
    assert done.stdout.strip() == variant, done.stderr


@native
def test_threads_are_those_that_torch_was_given(threads):
    for count in (1, 2):
        threads(count)
        assert team(library.threads()) == count


@native
def test_only_one_openmp_runtime_is_in_the_process():
    code = """
import re, torch
from holdfast.kernels._common import rooflines
rooflines.triad(*torch.rand(3, 8).unbind(), 1.0)
maps = open("/proc/self/maps").read()
print(len({line.split()[-1] for line in maps.splitlines() if re.search(r"lib(gomp|omp|iomp5)[.-]", line)}))
"""
    assert children.run(code).stdout.strip() == "1"


def _in_child(queue):
    queue.put(team(2))


@native
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_runs_on_one_thread_instead_of_hanging(threads):
    threads(2)
    assert team(2) == 2  # the parent has used the pool, which does not survive the fork
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == 1
    child.join(timeout=60)
    assert child.exitcode == 0


@native
def test_flush_to_zero_is_put_back_after_a_call():
    tiny = torch.full((8,), 1e-40)
    rooflines.triad(torch.empty(8), tiny, tiny, 1.0)
    assert float((tiny * 0.5).max()) > 0


def test_switched_off_library_raises_with_the_reason():
    code = """
from holdfast.kernels._common import library
library.function("holdfast_triad", [])
"""
    assert (
        "BackendError: the native kernels are switched off by HOLDFAST_NATIVE=off"
        in children.run(code, HOLDFAST_NATIVE="off").stderr
    )


@native
def test_a_library_of_other_sources_is_refused(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("needs a compiler to build a library with another ABI number")
    source = tmp_path / "old.cpp"
    source.write_text('extern "C" int holdfast_abi() { return -1; }')
    made = subprocess.run(
        ["g++", "-shared", "-fPIC", "-o", str(tmp_path / "libholdfast_portable.so"), str(source)], check=False
    )
    assert made.returncode == 0
    done = children.run(
        "from holdfast.kernels._common import library; library.status()", HOLDFAST_NATIVE_FOLDER=str(tmp_path)
    )
    assert "got -1, built from other sources" in done.stderr


def test_a_library_for_another_cpu_is_named_and_not_loaded(tmp_path):
    (tmp_path / "libholdfast_v4.so").write_bytes(b"")
    code = """
from holdfast.kernels._common import library
library.torch.backends.cpu.get_cpu_capability = lambda: "AVX2"
print(library.status())
"""
    done = children.run(code, HOLDFAST_NATIVE_FOLDER=str(tmp_path), HOLDFAST_NATIVE="auto")
    assert "available=False" in done.stdout, done.stderr
    assert "built only as v4, which this CPU cannot run" in done.stdout


@native
def test_triad_refuses_what_it_cannot_read():
    x = torch.rand(8)
    with pytest.raises(ShapeError, match=r"expected x contiguous float32 of shape \(8,\), got torch.float32 \(4,\)"):
        rooflines.triad(x, x[:4], x, 1.0)
    with pytest.raises(ShapeError, match=r"torch\.float64"):
        rooflines.triad(x, x.double(), x, 1.0)
    with pytest.raises(ShapeError, match="contiguous=False"):
        rooflines.triad(x, torch.rand(16)[::2], x, 1.0)


def test_backend_error_is_a_runtime_error():
    assert issubclass(BackendError, RuntimeError)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not on the path")
def test_without_a_working_compiler_the_build_leaves_the_kernels_out(tmp_path):
    root = Path(__file__).parents[2]
    command = ["cmake", "-S", str(root), "-B", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "CXX": "/nowhere/c++"}, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "no C++ compiler found; installing without the native kernels" in done.stderr


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not on the path")
@pytest.mark.parametrize(
    ("asked", "built"), [("native", 1), ("portable", 1), ("all", len(library.VARIANTS)), ("v9", 0)]
)
def test_a_build_makes_the_variants_that_were_asked_for(asked, built, tmp_path):
    command = ["cmake", "-S", str(Path(__file__).parents[2]), "-B", str(tmp_path)]
    environment = {**os.environ, "HOLDFAST_VARIANTS": asked}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    if platform.machine() not in ("x86_64", "AMD64"):
        built = min(built, 1)
    assert done.stdout.count("holdfast: building the") == built, done.stderr
    assert (done.returncode == 0) == (built > 0)
    if asked == "native" and library.status().available:
        assert f"building the {library.runnable()[0]} variant" in done.stdout
