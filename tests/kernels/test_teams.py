"""Teams of threads: one thread instead of a team gives the same bits, and a container's share of cores counts."""

import ctypes
import math

import pytest
import torch

from holdfast.kernels import gate, lru, rnn, s4d, scan, selective
from holdfast.kernels._common import library

pytestmark = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
LONG = 10**12  # ns, longer than any test


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), requires_grad=True)


# more rows than threads, and one row, whose time is split
KERNELS = {
    "scan": (lambda a, b: scan(torch.sigmoid(a), b)[0], [(9, 300, 40), (9, 300, 40)]),
    "scan of one row": (lambda a, b: scan(torch.sigmoid(a), b)[0], [(1, 16384, 16), (1, 16384, 16)]),
    "s4d": (
        lambda u, r, c: s4d(u, torch.full((16,), 0.01), -r.exp(), None, c, None)[0],
        [(20, 200, 16), (16, 8), (16, 8)],
    ),
    "lru": (
        lambda u, b, c: lru(u, torch.full((16,), 0.9), torch.full((16,), 0.1), b, c)[0],
        [(20, 200, 16), (32, 16), (16, 32)],
    ),
    "lru of one row": (
        lambda u, b, c: lru(u, torch.full((16,), 0.9), torch.full((16,), 0.1), b, c)[0],
        [(1, 1000, 16), (32, 16), (16, 32)],
    ),
    "rnn": (lambda x, w, u: rnn(x, 0.1 * w, u)[0], [(33, 200, 8), (16, 16), (16, 8)]),
    "gate": (gate, [(20, 200, 16), (20, 200, 16), (32, 16), (32,)]),
    "selective": (
        lambda u, dt, A, B, C: selective(u, torch.sigmoid(dt), -A.exp(), B, C)[0],
        [(9, 200, 16), (9, 200, 16), (16, 8), (9, 200, 8), (9, 200, 8)],
    ),
}


def pause(ns):
    library.function("holdfast_pause_teams", [ctypes.c_int64], None)(ns)


def regions_alone():
    return library.function("holdfast_regions", [ctypes.c_int], ctypes.c_int64)(1)


@pytest.fixture
def two_threads(threads):
    threads(2)
    if library.threads() < 2:
        pytest.skip("this container has one core")
    yield
    pause(0)


@pytest.mark.parametrize("name", KERNELS)
def test_one_thread_in_place_of_a_team_gives_the_same_bits(name, two_threads):
    function, shapes = KERNELS[name]
    inputs = [normal(*shape) for shape in shapes]

    def run(pause_ns):
        y = function(*inputs)
        pause(pause_ns)
        y = function(*inputs)
        return y, *torch.autograd.grad(y, inputs, torch.ones_like(y))

    team = run(0)
    before = regions_alone()
    alone = run(LONG)
    assert regions_alone() > before
    for one, other in zip(team, alone, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("files", "groups", "cores"),
    [
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"cpu.max": "max 100000"}, "0::/", math.inf),
        ({"a/cpu.max": "max 100000", "cpu.max": "50000 100000"}, "0::/a/b", 0.5),
        (
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "200000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            "4:cpu,cpuacct:/x",
            2.0,
        ),
        (
            {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            "4:cpu,cpuacct:/",
            math.inf,
        ),
        ({}, "0::/", math.inf),
    ],
)
def test_the_quota_of_a_container_is_read(files, groups, cores, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    own = tmp_path / "own"
    own.write_text(groups + "\n")
    assert library.cpu_quota(tmp_path, own) == cores


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert library.cpu_quota(tmp_path, tmp_path / "missing") == math.inf
