"""Tasks in processes on this machine: started once, used again, one thread each."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Any

from holdfast.errors import ArgumentError
from holdfast_papers.execution.executor import Event, safe_path
from holdfast_papers.execution.task import Task

# every library that starts threads of its own; they are read when the library is loaded
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(eq=False)
class _Worker:
    process: Popen[str]
    errors: IO[bytes]
    task: Task | None = None
    reader: threading.Thread | None = None

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()


class LocalExecutor:
    """Performs tasks in processes of this machine, one thread each.

    A process that dies takes only its own task with it; another is started in its place.

    Args:
        root: folder of the store that results are saved in.
        workers: number of processes; None is one for each core.
    """

    def __init__(self, root: Path, workers: int | None = None) -> None:
        self.slots = available_cores() if workers is None else workers
        if self.slots < 1:
            raise ArgumentError(f"--workers: expected a whole number above 0, got {workers}")
        self._root = root.absolute()
        self._workers: list[_Worker] = []
        self._lines: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = queue.SimpleQueue()

    def submit(self, task: Task) -> None:
        """Gives the task to an idle process, or to a new one; never called while all slots are taken."""
        worker = next((w for w in self._workers if w.task is None), None) or self._start()
        worker.task = task
        with contextlib.suppress(OSError):  # it died while idle: its end arrives as an event, and the task runs again
            worker.send(task.message())

    def wait(self, seconds: float) -> list[Event]:
        """What happened since, in order; returns as soon as anything did, and after `seconds` at the latest."""
        events = []
        try:
            worker, line = self._lines.get(timeout=seconds)
            while True:
                event = self._read(worker, line)
                if event is not None:
                    events.append(event)
                worker, line = self._lines.get_nowait()
        except queue.Empty:
            return events

    def stop(self) -> None:
        """Kills the processes; results are written atomically, so that none can be half there."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            self._close(worker)
        self._workers.clear()

    def _start(self) -> _Worker:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        process = Popen(
            # -P: whatever random.py or json.py lies in the current folder was not asked for
            [sys.executable, "-P", "-m", "holdfast_papers.execution.worker"],
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            encoding="utf-8",
            # one thread, however few the workers: sums in another order would give other last digits
            env={**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C goes to the command alone, which then stops its workers
        )
        worker = _Worker(process, errors)
        self._workers.append(worker)
        worker.send({"path": safe_path(), "store": str(self._root)})
        worker.reader = threading.Thread(target=self._follow, args=(worker,), daemon=True)
        worker.reader.start()
        return worker

    def _follow(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            try:
                self._lines.put((worker, json.loads(line)))
            except ValueError:
                break  # cut off in the middle of a line: the process is gone
        self._lines.put((worker, None))

    def _read(self, worker: _Worker, line: dict[str, Any] | None) -> Event | None:
        task = worker.task
        if line is None:
            return self._died(worker, task)
        assert task is not None
        if line["kind"] != "progress":
            worker.task = None
        return Event(task=task, **line)

    def _died(self, worker: _Worker, task: Task | None) -> Event | None:
        if worker not in self._workers:
            return None
        self._workers.remove(worker)
        code = worker.process.wait()
        worker.errors.seek(0)
        said = worker.errors.read().decode(errors="replace").strip()
        self._close(worker)
        return None if task is None else Event("died", task, text=_cause(code), detail=said[-4000:])

    def _close(self, worker: _Worker) -> None:
        worker.process.wait()
        if worker.reader is not None:
            worker.reader.join()
        for stream in (worker.process.stdin, worker.process.stdout):
            with contextlib.suppress(OSError):  # a broken pipe has nothing left to flush
                if stream is not None:
                    stream.close()
        worker.errors.close()


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name}, perhaps out of memory" if name == "SIGKILL" else name
