"""A worker process: reads tasks as JSON lines from stdin, writes events as JSON lines to what was stdout.

It ends when stdin ends, in the middle of a unit if need be: a worker never outlives the command that started it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from typing import IO, Any

PROGRESS_INTERVAL = 0.1  # seconds between two reports of progress


def main() -> None:
    """Serves until stdin is closed."""
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever an experiment prints goes to stderr, not between the events
    tasks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, tasks), daemon=True).start()
    hello = tasks.get()
    sys.path.extend(entry for entry in hello["path"] if entry not in sys.path)
    import torch

    torch.set_num_threads(1)
    while True:
        _serve(tasks.get(), hello["store"], out)


def _listen(stream: IO[str], tasks: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in stream:
        tasks.put(json.loads(line))
    os._exit(3)


def _serve(message: dict[str, Any], root: str, out: IO[str]) -> None:
    from holdfast_papers.execution.store import FolderError, Store, StoreError
    from holdfast_papers.execution.task import Task, perform_in

    latest = 0.0

    def say(kind: str, **values: Any) -> None:
        out.write(json.dumps({"kind": kind, **values}) + "\n")

    def report(done: float, text: str) -> None:
        nonlocal latest
        if time.monotonic() - latest >= PROGRESS_INTERVAL:
            latest = time.monotonic()
            say("progress", done=done, text=text)

    try:
        perform_in(Store(root), Task(**message), report)
    except FolderError as error:
        say("failed", text=str(error))
    except StoreError as error:
        say("store", text=str(error))
    except Exception as error:
        say("failed", text=f"{type(error).__name__}: {error}", detail=traceback.format_exc())
    else:
        say("finished")


if __name__ == "__main__":
    main()
