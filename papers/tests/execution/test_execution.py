"""The command on a toy experiment in processes of their own: what goes wrong loses nothing and is said."""

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest
from processes import children, is_alive, wait_for

from holdfast_papers.execution import Store, StoreError
from holdfast_papers.results import Result


def test_a_second_call_computes_nothing_and_gives_the_same(reproduce):
    code, out, err = reproduce()
    assert code == 0, err
    assert "6 to run" in err
    assert "1 met, 1 not met, 1 undecided" in out
    before = {p: p.stat().st_mtime_ns for p in reproduce.store.rglob("*") if p.is_file()}
    code, again, err = reproduce()
    assert code == 0
    assert "6 units are there, 0 to run" in err
    assert again.splitlines()[:-1] == out.splitlines()[:-1]
    changed = [p for p, when in before.items() if p.stat().st_mtime_ns != when]
    assert changed == []


def test_a_store_named_from_the_current_folder_works_as_the_default_does(reproduce, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    reproduce.store = Path("results")
    code, out, err = reproduce()
    assert code == 0, err
    assert f"Page: {tmp_path / 'results' / 'page' / 'index.html'}" in out
    assert len(reproduce.results()) == 7


def test_a_corrupted_unit_runs_again_and_says_so(finished):
    whole = finished.results()
    arrays = next(finished.units()[0].glob("arrays-*.npz"))
    content = bytearray(arrays.read_bytes())
    content[len(content) // 2] ^= 1
    arrays.write_bytes(content)
    code, _, err = finished()
    assert code == 0
    assert f"{arrays} is damaged or half-written" in err and "it runs again" in err
    assert "5 units are there, 1 to run" in err
    assert finished.results() == whole


def test_a_half_written_unit_runs_again_and_says_so(finished):
    whole = finished.results()
    manifest = finished.units()[0] / "result.json"
    manifest.unlink()
    (manifest.parent / ".result.json.1-0123abcd.tmp").write_text("left by a killed writer")
    (manifest.parent / ".notes.tmp").write_text("mine")
    code, _, err = finished()
    assert code == 0
    assert "half-written; it runs again" in err
    assert finished.results() == whole
    assert [path.name for path in manifest.parent.glob(".*.tmp")] == [".notes.tmp"]


def test_a_corrupted_conclusion_is_drawn_again_and_says_so(finished):
    whole = finished.results()
    manifest = finished.store / "own-toy" / "conclusion-quick" / "result.json"
    manifest.write_text(manifest.read_text()[:-50])
    code, _, err = finished()
    assert code == 0
    assert "own-toy conclusion:" in err and "it is drawn again" in err
    assert finished.results() == whole


def test_a_failing_unit_is_told_as_it_happens_and_the_others_finish(reproduce):
    reproduce.flag("fail-2")
    code, _, err = reproduce()
    assert code == 1
    assert "FAILED  own-toy seed=2: RuntimeError: unit 2 fails on purpose" in err
    assert len(reproduce.results()) == 5
    trace = next(reproduce.store.glob(".failures/own-toy-*.txt"))
    assert str(trace) in err and "raise RuntimeError" in trace.read_text()
    (reproduce.flags / "fail-2").unlink()
    code, _, err = reproduce()
    assert code == 0 and "5 units are there, 1 to run" in err
    assert list(reproduce.store.glob(".failures/*")) == []


def test_a_worker_that_dies_is_reported_and_its_unit_tried_once_more(reproduce):
    reproduce.flag("die-3")
    code, _, err = reproduce()
    assert code == 0, err
    assert "own-toy seed=3: its process died (SIGKILL, perhaps out of memory); trying it once more" in err
    assert len(reproduce.results()) == 7


def test_a_worker_that_dies_twice_is_given_up(reproduce):
    reproduce.flag("die-3")
    reproduce.flag("always")
    code, _, err = reproduce()
    assert code == 1
    assert "FAILED  own-toy seed=3: its process died 2 times" in err
    assert len(reproduce.results()) == 5


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_says_how_to_continue(reproduce):
    process = reproduce.start("--workers", "1", seconds=1.0)
    wait_for(lambda: len(list(reproduce.store.glob("own-toy/*/result.json"))) >= 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "of 6 units are finished and kept. Continue with: holdfast reproduce" in err
    assert "Traceback" not in err
    code, _, err = reproduce()
    assert code == 0 and len(reproduce.results()) == 7


def test_workers_end_with_the_command_that_started_them(reproduce):
    process = reproduce.start("--workers", "2", seconds=600.0)
    wait_for(lambda: len(children(process.pid)) == 2)
    workers = children(process.pid)
    process.kill()
    process.communicate()
    # long before their units of ten minutes are done; one that still loads torch on a busy machine ends after that
    wait_for(lambda: not any(is_alive(pid) for pid in workers))


@pytest.mark.slow
def test_two_commands_on_one_store_share_the_work(reproduce, finished_store, monkeypatch):
    other = reproduce.start("--workers", "1", seconds=1.0)
    wait_for(lambda: any(reproduce.store.glob("own-toy/*/result.json")))
    monkeypatch.setenv("TOY_SECONDS", "1.0")
    code, _, err = reproduce()
    _, told = other.communicate(timeout=600)
    assert (code, other.returncode) == (0, 0), (err, told)
    ran = sum(text.count("done  own-toy seed=") - text.count("(0.0 s)") for text in (err, told))
    assert "6 to run" in told
    assert ran <= 6  # no unit was computed twice
    shared = reproduce.results()
    reproduce.store = finished_store
    assert shared == reproduce.results()


def test_a_folder_that_cannot_be_written_ends_with_2_and_a_clear_message(reproduce):
    reproduce.store = reproduce.flags / "file" / "results"
    (reproduce.flags / "file").write_text("not a folder")
    code, _, err = reproduce()
    assert code == 2
    assert f"cannot write results to {reproduce.store}: Not a directory" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "text"), [("ro", "Read-only file system"), ("size=64k", "No space left on device")]
)
def test_a_read_only_or_full_disk_ends_with_2_and_keeps_what_is_there(reproduce, options, text):
    reproduce.store.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(reproduce.store)], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"needs the right to mount a file system: {mount.stderr.strip()}")
    try:
        code, _, err = reproduce()
        assert code == 2, err
        assert f"cannot write results to {reproduce.store}: {text}" in err
        assert "Traceback" not in err
        if options != "ro":
            subprocess.run(["mount", "-o", "remount,size=64M", str(reproduce.store)], check=True)
            code, _, err = reproduce()
            assert code == 0, err
            assert len(reproduce.results()) == 7
    finally:
        subprocess.run(["umount", str(reproduce.store)], check=True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_failed_write_becomes_a_store_error_that_says_what_to_do(tmp_path, monkeypatch, number):
    store = Store(tmp_path)
    store.prepare()
    result = Result("own-toy", {}, {}, [], _provenance())

    def fail(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=f"{os.strerror(number)}. (Free some space|Make the folder writable)"):
        store.save(tmp_path / "own-toy" / "x", result)


def test_unknown_ids_presets_and_executors_end_with_2_and_the_nearest_name(reproduce):
    for name, text in (
        ("stable-fgi2", "unknown experiment id 'stable-fgi2'. Did you mean 'stable-fig2'?"),
        ("nothing.py", "or an existing .py file"),
    ):
        code, _, err = reproduce(experiment=name)
        assert code == 2 and text in err
    for arguments, text in (
        (("--preset", "fast"), "unknown preset 'fast'"),
        (("--executor", "slurm"), "unknown executor 'slurm'"),
        (("--address", "auto"), "needs --executor ray"),
        (("--workers", "0"), "--workers: expected a whole number above 0, got 0"),
    ):
        code, _, err = reproduce(*arguments)
        assert code == 2, (arguments, err)
        assert text in err


def _provenance():
    from holdfast_papers.results import Provenance

    return Provenance.collect()
