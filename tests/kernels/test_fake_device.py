"""What a training step launches, moves and reads back on a GPU, counted on a fake device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# bytes in units of the input, 8 rows of 256 float32
MOST = {
    "S4D": 70,
    "SelectiveSSM": 40,
    "LRU": 30,
    "DiagonalSSM": 30,
    "LinearRNN diagonal": 22,
    "Mamba": 110,
    "Mamba2": 540,
    "MinGRU": 60,
    "MinLSTM": 85,
    "RGLRU": 115,
}


def counted(*words):
    command = [sys.executable, str(Path(__file__).with_name("fake_device.py")), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


# inputs' worth more with lengths: outputs after a row's end are set to 0, forward and backward. S4D, whose limit without
# is 70, also makes the state at each row's end, and may take 100 in all
MASKS = dict.fromkeys(MOST, 5) | {"S4D": 30}


def check(rows, more=None):
    layers = [row for row in rows if "forward" in row]
    assert layers
    assert [row for row in rows if row.get("reads") or row.get("elsewhere")] == []
    launches = {}
    for row in layers:
        launches.setdefault(row["name"], set()).add((row["forward"], row["backward"]))
    assert {name: found for name, found in launches.items() if len(found) > 1} == {}
    limits = {name: most + (more or {}).get(name, 0) for name, most in MOST.items()}
    assert [row for row in layers if row["bytes"] > limits.get(row["name"], 1e9)] == []


def test_launches_do_not_depend_on_time_and_nothing_is_read_back():
    rows = counted("LRU", "S4D", "SelectiveSSM", "LinearRNN diagonal", 1024, 8192)
    check(rows)
    assert {"rnn", "LRU stream", "SelectiveSSM stream"} <= {row["name"] for row in rows}
    many, few = (row for row in rows if "launches" in row)
    # 3 + 5 arrays where rows and channels fill the card, else 5 + 7 for segments of time; beside them the final states
    assert many["launches"] == 2 and many["bytes"] <= 1.01 * 8
    assert few["launches"] == 6 and few["bytes"] <= 1.01 * 12


def test_resets_are_a_mask_where_the_kernels_take_them():
    layers = ("LRU", "DiagonalSSM", "SelectiveSSM", "LinearRNN diagonal", "S4D", "Mamba", "Mamba2", "MinGRU", "RGLRU")
    rows = counted(*layers, "resets", 256)
    assert len([row for row in rows if "forward" in row]) == len(layers)
    assert [row for row in rows if row.get("reads") or row.get("elsewhere")] == []


def test_under_autocast_projections_run_in_bfloat16_and_states_in_float32():
    rows = counted("autocast")
    assert len(rows) >= 9
    for row in rows:
        assert (row["state"], row["output"], row["grads"], row["reads"]) == ("torch.float32",) * 2 + (
            ["torch.float32"],
            {},
        )
        layer = row["name"].removesuffix(" autocast")
        # S4D has no projections; gates that a state passes at every step still have theirs in float32
        wide = {"S4D": set()} | {name: {"torch.float32"} for name in ("MinGRU", "MinLSTM", "RGLRU")}
        assert set(row["products"]) == wide.get(layer, {"torch.bfloat16"}), row
    kept = {row["name"]: row["kept"] for row in rows}
    # the scans of these read and write half precision, and have wider states inside
    assert all("torch.bfloat16" in kept[f"{name} autocast"] for name in ("LRU", "SelectiveSSM", "Mamba"))


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("lengths",)])
def test_every_linear_layer_at_three_lengths(words):
    check(counted(*words), MASKS if words else None)
