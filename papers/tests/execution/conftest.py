import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import children
from holdfast.cli.app import main
from holdfast_papers.execution import local
from holdfast_papers.results import Result

TOY = str(Path(__file__).parent / "toy.py")
# a shell's background job ignores Ctrl-C, and its children inherit that
CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from holdfast.cli.app import main
sys.argv[0] = "holdfast"
main()
"""
COMMAND = [sys.executable, "-c", CODE]


def _command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["holdfast", "reproduce", "--workers", "1", *arguments])
    monkeypatch.setattr(local, "Popen", children.ForkedWorker)
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return 0


class Reproduce:
    """The command on the toy experiment, in this process or in one of its own."""

    def __init__(self, folder, monkeypatch, capsys):
        self.monkeypatch, self.capsys = monkeypatch, capsys
        self.store = folder / "results"
        self.flags = folder / "flags"
        self.flags.mkdir()

    def start(self, *arguments, seconds=0.0, **environment):
        return subprocess.Popen(
            [*COMMAND, "reproduce", TOY, "--store", str(self.store), *arguments],
            env={**os.environ, "TOY_SECONDS": str(seconds), "TOY_FLAGS": str(self.flags), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(self, *arguments, experiment=TOY):
        """The command in this process, with one worker that is forked with torch loaded."""
        self.monkeypatch.setenv("TOY_FLAGS", str(self.flags))
        code = _command(self.monkeypatch, experiment, "--store", str(self.store), *arguments)
        out, err = self.capsys.readouterr()
        return code, out, err

    def flag(self, name):
        (self.flags / name).touch()

    def units(self):
        """The folders of finished units, without those of conclusions."""
        return sorted(p for p in self.store.glob("own-*/*") if re.fullmatch("[0-9a-f]{16}", p.name))

    def results(self):
        """Everything that must not depend on how the run went: no times, no versions."""
        found = {}
        for path in sorted(self.store.glob("own-toy/*/result.json")):
            result = Result.load(path.parent)
            found[path.parent.name] = (
                dict(result.config),
                {name: array.tobytes() for name, array in result.arrays.items()},
                [(c.name, c.status, str(dict(c.numbers))) for c in result.claims],
                [dict(entry) for entry in result.log],
                path.parent.joinpath("result.json").read_text().split('"files"')[1],
            )
        return found


@pytest.fixture
def reproduce(tmp_path, monkeypatch, capsys):
    return Reproduce(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def finished_store(tmp_path_factory):
    store = tmp_path_factory.mktemp("finished") / "results"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TOY_FLAGS", str(store.parent))
        assert _command(monkeypatch, TOY, "--store", str(store)) == 0
    return store


@pytest.fixture
def finished(reproduce, finished_store, capsys):
    """The command with everything computed before, in a store of its own."""
    shutil.copytree(finished_store, reproduce.store)
    capsys.readouterr()
    return reproduce
