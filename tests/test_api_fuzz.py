"""Odd values in every public callable end in an answer or in an error that names the argument: no crash, no hang."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "api_fuzz.py"
CHUNK = 1000
FAST, ALL = 100, 20_000
HANGS = 600  # seconds of a whole chunk; calls that use the processor are stopped after ten of their own


def run(first, count, folder):
    """What was wrong with the calls of these numbers, in a process without the hooks of pytest.

    It runs in `folder`: odd values are names of files for some calls.
    """
    env = {"HF_HUB_OFFLINE": "1", "PATH": "", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(SCRIPT), str(first), str(count)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, env=env, cwd=folder)
        lines, ended = done.stdout, f"exit code {done.returncode}: {done.stderr[-500:]}"
    except subprocess.TimeoutExpired as error:
        lines, ended = (error.stdout or b"").decode(), "it hung"
    said = [json.loads(line) for line in lines.splitlines()]
    wrong = [line["found"] for line in said if "found" in line]
    if not said or "done" not in said[-1]:
        last = max((line["begin"] for line in said if "begin" in line), default=first)
        wrong.append(f"{last}: ended the process, {ended}")
        wrong += run(last + 1, first + count - last - 1, folder) if last + 1 < first + count else []
    return wrong


def test_some_hundred_calls_with_odd_values_name_the_argument(tmp_path):
    wrong = run(0, FAST, tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FAST, ALL, CHUNK))
def test_twenty_thousand_calls_with_odd_values_name_the_argument(first, tmp_path):
    wrong = run(first, min(CHUNK, ALL - first), tmp_path)
    assert not wrong, "\n".join(wrong)
