"""What a training step launches, moves and reads back on a GPU, counted on a fake device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# bytes in units of the input, 8 rows of 256 float32; S4D's matrices of a block are as large as 2,000 steps of input
MOST = {
    "S4D": 100,
    "SelectiveSSM": 40,
    "LRU": 50,
    "DiagonalSSM": 30,
    "LinearRNN diagonal": 22,
    "Mamba": 110,
    "Mamba2": 540,
}


def counted(*words):
    command = [sys.executable, str(Path(__file__).with_name("fake_device.py")), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


MASKS = 5  # inputs' worth more where outputs after a row's end are set to 0, forward and backward


def check(rows, more=0):
    layers = [row for row in rows if "forward" in row]
    assert layers
    assert [row for row in rows if row.get("reads") or row.get("elsewhere")] == []
    launches = {}
    for row in layers:
        launches.setdefault(row["name"], set()).add((row["forward"], row["backward"]))
    assert {name: found for name, found in launches.items() if len(found) > 1} == {}
    assert [row for row in layers if row["time"] >= 8192 and row["bytes"] > MOST.get(row["name"], 1e9) + more] == []


def test_launches_do_not_depend_on_time_and_nothing_is_read_back():
    rows = counted("LRU", "S4D", "SelectiveSSM", "LinearRNN diagonal", 1024, 8192)
    check(rows)
    assert {"rnn", "LRU stream", "SelectiveSSM stream"} <= {row["name"] for row in rows}
    many, few = (row for row in rows if "launches" in row)
    # 3 + 5 arrays where rows and channels fill the card, else 5 + 7 for segments of time; beside them the final states
    assert many["launches"] == 2 and many["bytes"] <= 1.01 * 8
    assert few["launches"] == 6 and few["bytes"] <= 1.01 * 12


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("lengths",)])
def test_every_linear_layer_at_three_lengths(words):
    check(counted(*words), MASKS if words else 0)
