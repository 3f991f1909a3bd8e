"""The C++ library built with address and undefined-behaviour sanitizers, and 10,000 odd calls of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = 10_000
ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("g++")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or COMPILER is None or shutil.which("cmake") is None,
        reason="needs g++ and cmake on Linux",
    ),
]


def runtime(name):
    """The shared library of a sanitizer, which must be loaded before everything else."""
    found = subprocess.run([COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """A folder with the library, one variant, built with sanitizers."""
    folder = tmp_path_factory.mktemp("sanitized")
    options = ["-DHOLDFAST_SANITIZE=ON", "-DHOLDFAST_VARIANTS=portable", f"-DCMAKE_CXX_COMPILER={COMPILER}"]
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(folder), *options],
        ["cmake", "--build", str(folder), "-j", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_odd_calls_of_every_kernel_stay_within_their_memory(sanitized, capsys):
    environment = {
        **os.environ,
        "HOLDFAST_NATIVE_FOLDER": str(sanitized),
        "HOLDFAST_NATIVE": "portable",
        "LD_PRELOAD": f"{runtime('libasan.so')}:{runtime('libubsan.so')}",
        # torch keeps much until the end, and answers a size that no machine holds with an error of its own
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("fuzz_calls.py")), str(CALLS), "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "runtime error" not in done.stderr, done.stderr[-6000:]
    counts = json.loads(done.stdout)
    with capsys.disabled():
        sys.stdout.write(f"\n{done.stdout}\n")
    assert sum(kernel["calls"] for kernel in counts.values()) >= CALLS
    # every kernel was called rightly and wrongly; operators have no reference of their own
    for name, kernel in counts.items():
        assert 0.2 * kernel["calls"] < kernel["refused"] < 0.8 * kernel["calls"], (name, kernel)
        assert name == "operators" or kernel["compared"] > 0.1 * kernel["calls"], (name, kernel)
