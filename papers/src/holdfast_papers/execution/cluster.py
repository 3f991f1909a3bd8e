"""Tasks on a Ray cluster, or on a local Ray started for the occasion. Results come back and are saved here.

The nodes need holdfast installed and no shared disk: what a task needs travels with it. Checkpoints of a unit that was
killed are lost with its node.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import ArgumentError, BackendError, DamagedResultError
from holdfast_papers.execution.executor import Event, safe_path
from holdfast_papers.execution.store import FolderError, Store, StoreError
from holdfast_papers.execution.task import Task, perform
from holdfast_papers.results import Result


class RayExecutor:
    """One task a CPU of the cluster."""

    def __init__(self, root: Path, *, address: str | None = None, workers: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise BackendError(
                "--executor ray needs Ray: pip install 'holdfast-papers[cluster]' (from a clone: './papers[cluster]')"
            ) from None
        if workers is not None and workers < 1:
            raise ArgumentError(f"--workers: expected a whole number above 0, got {workers}")
        self._ray = ray
        self._store = Store(root)
        quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        if address is None:
            quiet |= {"num_cpus": workers, "include_dashboard": False}
        try:
            # Ray puts the current folder in front of its workers' path; this one holds no code
            with contextlib.chdir(self._store.root / ".locks"):
                ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError) as error:
            raise BackendError(f"cannot reach a Ray cluster at {address!r}: {error}") from error
        self.slots = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # one thread per task, like local processes; a lost process is the scheduler's to retry
        self._work = ray.remote(num_cpus=1, max_retries=0, max_calls=0)(_work)
        self._running: dict[Any, Task] = {}
        self._refused: list[Event] = []

    def submit(self, task: Task) -> None:
        """Sends the task, with the results that it needs."""
        try:
            self._store.try_folder(Path(task.folder))
            units = [Result.load(source) for source in task.sources]
        except (DamagedResultError, FolderError) as error:
            self._refused.append(Event("failed", task, text=str(error)))
            return
        self._running[self._work.remote(task.message(), units, safe_path())] = task

    def wait(self, seconds: float) -> list[Event]:
        """Saves what was returned."""
        if self._refused:
            refused, self._refused = self._refused, []
            return refused
        ready, _ = self._ray.wait([*self._running], num_returns=1, timeout=seconds) if self._running else ([], [])
        return [self._collect(future) for future in ready]

    def stop(self) -> None:
        """Cancels what runs and leaves the cluster; one that was started for the occasion ends."""
        for future in self._running:
            self._ray.cancel(future, force=True)
        self._running.clear()
        self._ray.shutdown()

    def _collect(self, future: Any) -> Event:
        errors = self._ray.exceptions
        task = self._running.pop(future)
        try:
            result = self._ray.get(future)
            self._store.save(Path(task.folder), result)
        except FolderError as error:
            return Event("failed", task, text=str(error))
        except StoreError as error:
            return Event("store", task, text=str(error))
        except errors.RayTaskError as error:
            cause = error.cause if error.cause is not None else error
            return Event("failed", task, text=f"{type(cause).__name__}: {cause}", detail=str(error))
        except errors.RayError as error:
            return Event("died", task, text=type(error).__name__, detail=str(error))
        return Event("finished", task)


def _work(message: dict[str, Any], units: Sequence[Result], path: Sequence[str]) -> Result:
    """Runs on a node."""
    import torch

    sys.path.extend(entry for entry in path if entry not in sys.path)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        return perform(Task(**message), lambda done, text: None, Path(scratch), units)
