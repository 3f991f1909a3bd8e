"""What the scheduler needs of something that performs tasks: local processes or a cluster."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Literal, Protocol

from holdfast_papers.execution.task import Task


@dataclass(frozen=True)
class Event:
    """Something that happened to a task.

    "progress": `done` from 0 to 1, with a word on it. "finished": its result is in the store. "failed": it raised;
    `text` is the last line, `detail` the traceback. "died": the process that worked on it is gone. "store": its result
    could not be written.
    """

    kind: Literal["progress", "finished", "failed", "died", "store"]
    task: Task
    done: float = 0.0
    text: str = ""
    detail: str = ""


class Executor(Protocol):
    """Performs tasks side by side, `slots` at a time."""

    slots: int

    def submit(self, task: Task) -> None:
        """Begins a task; never called while all slots are taken."""

    def wait(self, seconds: float) -> list[Event]:
        """What happened since; returns as soon as anything did, and after `seconds` at the latest."""

    def stop(self) -> None:
        """Ends all work at once; what is in flight is lost."""


def safe_path() -> list[str]:
    """Where a worker may look for modules after its own places: this process's path without the current folder."""
    here = os.getcwd()
    return [entry for entry in sys.path if entry and os.path.abspath(entry) != here]
