"""What takes long to show: twenty kills at random moments, and a real local Ray."""

import os
import random
import signal
import time

import pytest
from processes import children

pytestmark = pytest.mark.slow
KILLS = 20
UNITS = 150  # of the toy at the paper preset: more than are finished between the kills


def test_after_20_kills_at_random_moments_the_results_equal_an_uninterrupted_run(reproduce, tmp_path):
    rng = random.Random(0)
    sizes = [0]
    for kill in range(KILLS):
        process = reproduce.start("--workers", "2", "--preset", "paper", seconds=1.0)
        # every other kill in the first seconds, which are loading; the others at work or while saving, however long that
        # takes to begin on a busy machine
        while kill % 2 and process.poll() is None and _finished(reproduce) == sizes[-1]:
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 3.0))
        # the command alone, as the kernel does when memory runs out; or everything it started, as a power cut does
        targets = [process.pid, *children(process.pid)] if rng.random() < 0.5 else [process.pid]
        for pid in targets:
            _kill(pid)
        process.communicate()
        sizes.append(_finished(reproduce))
    assert sizes == sorted(sizes), "a finished unit was lost"
    assert 0 < sizes[-1] < UNITS, f"every kill met unfinished work, and some units were finished between them: {sizes}"
    code, _, err = reproduce("--preset", "paper")
    assert code == 0, err
    interrupted = reproduce.results()
    reproduce.store = tmp_path / "uninterrupted"
    reproduce("--preset", "paper")
    assert len(interrupted) == UNITS + 1
    assert interrupted == reproduce.results()


def test_a_real_local_ray_gives_the_same_results(reproduce, tmp_path):
    pytest.importorskip("ray", reason="needs the extra `cluster`")
    reproduce.flag("fail-1")
    process = reproduce.start("--executor", "ray", "--workers", "2")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1, err
    assert "FAILED  own-toy seed=1: RuntimeError: unit 1 fails on purpose" in err
    assert len(reproduce.results()) == 5
    (reproduce.flags / "fail-1").unlink()
    reproduce.flag("die-1")
    process = reproduce.start("--executor", "ray", "--workers", "2")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "own-toy seed=1: its process died (WorkerCrashedError); trying it once more" in err
    by_ray = reproduce.results()
    reproduce.store = tmp_path / "local"
    reproduce()
    assert by_ray == reproduce.results()


def _finished(reproduce):
    return len(list(reproduce.store.glob("own-toy/*/result.json")))


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
