"""Settings shared by all tests."""

import gc
import os
import runpy
import subprocess
import sys
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch

# a property test takes as long as it needs on a busy machine, and the same examples every time
hypothesis.settings.register_profile("holdfast", deadline=None, derandomize=True, max_examples=50, database=None)
hypothesis.settings.load_profile("holdfast")

# workers of pytest-xdist share the cores: more threads than cores makes everything slower
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _settled():
    """What earlier files loaded stays loaded: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def user_mistakes():
    """Switches the checking of annotations off: a wrong argument then meets the library's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def threads():
    """Sets torch's thread count for one test and puts it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def command(monkeypatch, capsys):
    """The command in this process, with a current folder and environment variables of its own."""

    def run(*arguments, cwd, **environment):
        from holdfast.cli.app import main

        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, arguments)])
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


@pytest.fixture
def printed(monkeypatch, capsys, tmp_path):
    """What an example of the gallery prints, run in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")

    def run(name, *arguments):
        path = Path(__file__).parent / "examples" / f"{name}.py"
        monkeypatch.setattr("sys.argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return run
