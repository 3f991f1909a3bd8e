"""Tensors without memory of their own never reach C++: each call of storage_calls.py runs, or is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs fork")]


@pytest.fixture(scope="module")
def outcomes():
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("storage_calls.py"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(line) for line in done.stdout.splitlines())


def chosen(outcomes, *words):
    return {case: outcome for case, outcome in outcomes.items() if all(word in case for word in words)}


def test_no_call_crashes(outcomes):
    assert len(outcomes) > 200
    assert {case: outcome for case, outcome in outcomes.items() if outcome.startswith("signal")} == {}


@pytest.mark.parametrize("wrapper", ["DTensor", "nested"])
def test_kernels_refuse_what_has_no_memory_here_in_our_words(outcomes, wrapper):
    calls = chosen(outcomes, f", {wrapper} at ")
    assert calls
    assert {case: outcome for case, outcome in calls.items() if outcome != "refused"} == {}


def test_a_default_device_does_not_move_what_a_kernel_or_layer_makes(outcomes):
    calls = chosen(outcomes, "default device meta")
    assert len(calls) >= 30
    assert {case: outcome for case, outcome in calls.items() if outcome != "ran"} == {}
