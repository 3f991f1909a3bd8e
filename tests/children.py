"""Child processes that start with torch loaded: a test pays for what its child does, not for one more import of torch.

Where the start of Python itself is what is tested, `subprocess` is right.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
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


class ForkedWorker:
    """Stands in for `subprocess.Popen` in the executor: its worker is forked with torch loaded and reads the same lines."""

    def __init__(self, arguments, *, stdin, stdout, stderr, encoding, env, start_new_session):
        assert (
            arguments[-1] == "holdfast_papers.execution.worker"
            and stdin == stdout == subprocess.PIPE
            and start_new_session
        )
        reads, sends = _SERVER.Pipe(duplex=False)
        told, tells = _SERVER.Pipe(duplex=False)
        says = Connection(os.dup(stderr.fileno()))
        self._process = _SERVER.Process(target=_worker, args=((reads, tells, says), env), daemon=True)
        self._process.start()
        for connection in (reads, tells, says):
            connection.close()
        self.stdin = open(os.dup(sends.fileno()), "w", encoding=encoding)  # noqa: SIM115 - the executor closes both
        self.stdout = open(os.dup(told.fileno()), encoding=encoding)  # noqa: SIM115
        sends.close()
        told.close()
        self.kill = self._process.kill

    def wait(self):
        self._process.join()
        return self._process.exitcode


def _worker(streams, environment):
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - ends with the process
    from holdfast_papers.execution.worker import main

    main()
