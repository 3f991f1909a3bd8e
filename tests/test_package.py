import re
import subprocess
import sys
import tomllib
from pathlib import Path

import holdfast

ROOT = Path(__file__).parent.parent


def run(code, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120
    )


def test_import_costs_little_beyond_torch():
    code = """
import time, torch, numpy
start = time.perf_counter()
import holdfast
print(time.perf_counter() - start)
"""
    # 0.5 s is the promise; the best of three keeps a busy machine out of the verdict
    assert min(float(run(code).stdout) for _ in range(3)) < 0.5


def test_import_leaves_torch_and_random_state_alone():
    code = """
import torch, random, numpy, warnings
before = (torch.get_num_threads(), torch.get_default_dtype(), torch.random.get_rng_state(), random.getstate())
import holdfast
after = (torch.get_num_threads(), torch.get_default_dtype(), torch.random.get_rng_state(), random.getstate())
assert before[:2] == after[:2] and torch.equal(before[2], after[2]) and before[3] == after[3]
from holdfast.kernels import library
assert library._load.cache_info().misses == 0, "importing loaded the native library"
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_public_names_exist_and_are_sorted():
    assert list(holdfast.__all__) == sorted(holdfast.__all__)
    assert all(hasattr(holdfast, name) for name in holdfast.__all__)


def test_constraints_pin_every_direct_dependency_and_torch_exactly():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    names = {name.lower().replace("_", "-") for name in pins}
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for requirement in wanted:
        name = re.split(r"[>=<\[]", requirement)[0].lower()
        if name == "holdfast":
            continue  # one extra that takes in another
        assert name in names, f"{name} is not pinned in constraints.txt"
    assert pins["torch"] == "2.13.0"
