"""Workers run what was asked for, say what they must in any locale, and one bad folder is one failed unit."""

import os
import shutil
import subprocess
import sys

import own
import pytest

from holdfast_papers.benchmarks import memory, registry
from holdfast_papers.execution import FolderError, Store, plan
from holdfast_papers.execution.executor import safe_path
from holdfast_papers.execution.task import perform_in

HOLDFAST = [sys.executable, "-P", "-c", "from holdfast_command import main; main()"]
# a module of each kind that a worker imports: built in Python, in a package, of ours
TRAPS = ("random", "json", "typing_extensions", "filelock", "holdfast", "sitecustomize")


@pytest.fixture
def trap(tmp_path):
    """A current folder full of modules that leave a mark when they are imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in TRAPS:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'sprung')!r}, 'a').write({name!r})\nraise SystemExit(7)\n"
        )
    return folder, tmp_path / "sprung"


def holdfast(*arguments, cwd, **environment):
    env = {**os.environ, **environment}
    return subprocess.run([*HOLDFAST, *arguments], cwd=cwd, env=env, capture_output=True, timeout=300)


def test_workers_import_nothing_from_the_current_folder_and_load_the_users_file(trap, tmp_path):
    folder, sprung = trap
    own.write(folder / "mine.py")
    done = holdfast("reproduce", "mine.py", "--workers", "1", "--store", str(tmp_path / "results"), cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    assert not sprung.exists()
    assert b"1 undecided" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is read from /proc")
def test_the_process_that_measures_memory_imports_nothing_from_the_current_folder(trap, monkeypatch):
    folder, sprung = trap
    monkeypatch.chdir(folder)
    peak = memory.measure({kernel.name: kernel for kernel in registry.kernels()}["lru"])
    assert peak.note == "" and not sprung.exists()


def test_the_path_that_is_sent_to_workers_lacks_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", ".", str(tmp_path), "/usr/lib", str(tmp_path / "sub")])
    assert safe_path() == ["/usr/lib", str(tmp_path / "sub")]


@pytest.mark.slow
def test_ray_workers_import_nothing_from_the_current_folder(trap, tmp_path):
    pytest.importorskip("ray", reason="needs the extra `cluster`")
    folder, sprung = trap
    (folder / "sitecustomize.py").unlink()  # Ray starts its own servers, whose path is not ours to set
    own.write(folder / "mine.py")
    store = str(tmp_path / "results")
    done = holdfast("reproduce", "mine.py", "--executor", "ray", "--workers", "1", "--store", store, cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    assert not sprung.exists()


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


TEXTS = [r"bad \udcff", "Grüße, 日本", r"\x1b[2Jgone [/red]"]


def failing(folder):
    texts = ", ".join(f'"{text}"' for text in TEXTS)
    return own.write(folder / "mine.py", f'raise RuntimeError([{texts}][config["k"]])', units=len(TEXTS))


def assert_every_failure_is_told(code, err, store):
    assert code == 1, err
    assert "Traceback" not in err and "\x1b" not in err
    for k in range(len(TEXTS)):
        assert err.count(f"FAILED  own-mine k={k}: RuntimeError: ") == 2  # as it happens, and at the end
    assert len(list(store.glob(".failures/*.txt"))) == len(TEXTS)
    for file in store.glob(".failures/*.txt"):
        assert "RuntimeError: " in file.read_text(encoding="utf-8")
    assert (store / "page" / "index.html").is_file()


def test_a_failure_may_say_anything(reproduce, tmp_path):
    code, _, err = reproduce(experiment=failing(tmp_path))
    assert_every_failure_is_told(code, err, reproduce.store)


def test_a_failure_may_say_anything_in_an_ascii_locale(tmp_path):
    store = tmp_path / "results"
    arguments = ("reproduce", failing(tmp_path), "--workers", "1", "--store", str(store))
    done = holdfast(*arguments, cwd=tmp_path, **ASCII)
    assert_every_failure_is_told(done.returncode, done.stderr.decode(), store)


def test_a_folder_in_place_of_result_json_fails_that_unit_alone(finished):
    manifest = finished.units()[0] / "result.json"
    manifest.unlink()
    (manifest / "inside").mkdir(parents=True)
    code, _, err = finished()
    assert code == 1
    assert f"{manifest} is damaged or half-written: it is a folder instead of a file; it runs again" in err
    assert f"cannot write results to {manifest.parent}: Is a directory: {manifest}. Move it away" in err
    assert "Traceback" not in err and (manifest / "inside").is_dir()
    shutil.rmtree(manifest)
    code, _, err = finished()
    assert code == 0 and "5 units are there, 1 to run" in err


def test_a_unit_folder_that_cannot_be_read_is_named_and_its_unit_not_computed_in_vain(tmp_path, monkeypatch):
    store = Store(tmp_path / "results")
    store.prepare()
    path = own.write(tmp_path / "mine.py")
    (job,) = plan(store, [path], "quick", print)
    perform_in(store, job.units[0], lambda done, text: None)
    folder = job.units[0].folder
    listed, opened = os.listdir, os.open

    def refuse(function):
        def refused(path, *arguments, **named):
            if str(path).startswith(folder):
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *arguments, **named)

        return refused

    monkeypatch.setattr(os, "listdir", refuse(listed))
    monkeypatch.setattr(os, "open", refuse(opened))
    notices = []
    (job,) = plan(store, [path], "quick", notices.append)
    assert notices == [f"{job.units[0].label}: {folder} cannot be read: Permission denied; it runs again"]
    (tmp_path / "mine.py").unlink()  # what follows ends before the experiment is even loaded
    with pytest.raises(
        FolderError, match=f"cannot write results to {folder}: Permission denied. Make the folder writable"
    ):
        perform_in(store, job.units[0], lambda done, text: None)


def test_a_damaged_unit_found_only_by_its_conclusion_fails_that_conclusion_alone(finished):
    from holdfast._files import seal
    from holdfast_papers._manifest import unseal

    manifest = finished.units()[0] / "result.json"
    body = unseal(manifest)
    body["provenance"]["colour"] = "red"
    manifest.write_bytes(seal(body))
    shutil.rmtree(finished.store / "own-toy" / "conclusion-quick")
    code, _, err = finished()
    assert code == 1
    assert f"FAILED  own-toy conclusion: DamagedResultError: {manifest} is damaged" in err
    assert "Traceback" not in err
