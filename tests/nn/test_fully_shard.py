"""Layers whose weights are spread over two processes: forward and step as of the layer alone, gradients too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs gloo over sockets")]


@pytest.fixture(scope="module")
def outcomes():
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("sharded_calls.py"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("gradients", ["with gradients", "without gradients"])
@pytest.mark.parametrize("call", ["forward", "step"])
def test_a_sharded_layer_gives_what_the_layer_alone_gives(outcomes, call, gradients):
    own = {layer: outcome for layer, case, outcome in outcomes if case == f"{call} {gradients}"}
    assert len(own) == 7
    assert set(own.values()) == {"equal"}, own


def test_a_step_that_gathers_no_weights_says_what_to_register(outcomes):
    own = [outcome for _, case, outcome in outcomes if case.startswith("unregistered step")]
    assert len(own) == 14
    assert all(o.startswith("DtypeError") and "register_fsdp_forward_method" in o for o in own), own
