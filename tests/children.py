"""Child processes that start with torch loaded: a test pays for what its child does, not for one more import of torch.

Where the start of Python itself is what is tested, `subprocess` is right.
"""

import multiprocessing
import os
import subprocess
import tempfile
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch"])
HANGS = 600  # seconds, for a busy machine


def run(code, **environment):
    """Runs Python code in a child with these environment variables; gives its exit code, stdout and stderr."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        child = _SERVER.Process(target=_child, args=(code, {**os.environ, **environment}, out, err))
        child.start()
        child.join(HANGS)
        if child.exitcode is None:
            child.kill()
            raise TimeoutError(f"still running after {HANGS} s: {err.read_text()}")
        return subprocess.CompletedProcess(code, child.exitcode, out.read_text(), err.read_text())


def command(*arguments, cwd=".", **environment):
    """Runs `holdfast` with these arguments in a folder."""
    argv = ["holdfast", *map(str, arguments)]
    code = f"import os, sys; os.chdir({str(cwd)!r}); sys.argv = {argv!r}; from holdfast_command import main; main()"
    return run(code, **environment)


def _child(code, environment, out, err):
    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), stream)
    os.environ.clear()
    os.environ.update(environment)
    exec(compile(code, "<child>", "exec"), {"__name__": "__main__"})
