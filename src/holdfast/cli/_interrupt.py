"""Ctrl-C and a polite kill: both stop a command cleanly."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130  # exit code, as shells have it: 128 + SIGINT


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """A polite kill stops the run as cleanly as Ctrl-C."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
