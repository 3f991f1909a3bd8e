"""The kernels for GPUs, proved without one: in Triton's interpreter, and compiled ahead of time for three cards."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def outcomes(which):
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("triton_cases.py")), which]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(line) for line in done.stdout.splitlines())


def bound(case):
    """float32: a rounding or two of the largest number. Sequences in half precision are rounded to 8 or 11 bits.

    A layer also computes its eigenvalues and 1 - |lam|^2 from float32 weights, its twin from the same ones in float64.
    """
    if case.startswith("layer"):
        return 2e-5
    return 2e-2 if "bfloat16" in case else 3e-3 if "float16" in case else 2e-6


@pytest.mark.slow
@needs_triton
def test_kernels_give_what_the_float64_reference_gives():
    errors = outcomes("quick")
    assert len(errors) >= 11
    assert {case: error for case, error in errors.items() if not error <= bound(case)} == {}


@needs_triton
@pytest.mark.slow
def test_the_full_grid_gives_what_the_float64_reference_gives():
    errors = outcomes("all")
    assert len(errors) > 100
    assert {case: error for case, error in errors.items() if not error <= bound(case)} == {}


def test_importing_holdfast_and_computing_on_a_cpu_does_not_load_triton():
    code = """
import sys, torch, holdfast
from holdfast import nn
nn.Mamba(16, 4)(torch.randn(1, 8, 16))[0].sum().backward()
assert "triton" not in sys.modules, "triton was imported"
"""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_under_compile_a_recurrence_is_one_node_whatever_the_number_of_steps():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compiled_graphs.py"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for layer, graphs in map(json.loads, done.stdout.splitlines()):
        assert (layer, len(graphs)) == (layer, 1)
        kernel = "lru" if layer == "LRU" else "selective"
        assert [graphs[0].count(f"holdfast.{kernel}_triton_{way}") for way in ("forward", "backward")] == [1, 1]
        # the loop that it replaces took 13,000 nodes at 1,024 steps
        assert len(graphs[0]) < 150


@needs_triton
@pytest.mark.slow
def test_registers_are_those_of_the_docs_and_nothing_spills():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ahead_of_time.py"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *table, spilled = done.stdout.splitlines()
    assert spilled == "spilled: {}"
    docs = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    assert "\n".join(table) in docs
    for line in table[2:]:
        name, *registers = (cell.strip() for cell in line.strip("|").split("|"))
        assert max(map(int, registers)) <= (128 if name.startswith("scan") else 255), name
