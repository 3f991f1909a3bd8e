"""Torch's own paths, which serve every device without kernels, do work that is linear in time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("lengths", [(512, 1024), pytest.param((2048, 4096), marks=pytest.mark.slow)])
def test_elements_moved_grow_linearly_with_time(lengths):
    command = [sys.executable, str(Path(__file__).with_name("linear_in_time.py")), *map(str, lengths)]
    environment = {**os.environ, "HOLDFAST_NATIVE": "off", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    exponents = dict(json.loads(line) for line in done.stdout.splitlines())
    assert len(exponents) >= 14
    # a slice's gradient inside a loop gives 1.2 (Mamba) to 2 (ContinuousGRU) at these lengths
    assert {layer: found for layer, found in exponents.items() if not found <= 1.1} == {}
