"""The first step of the `holdfast` command, outside the package: loading that takes seconds, and Ctrl-C ends it quietly."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Loads the command line and runs it."""
    before = signal.getsignal(signal.SIGINT)
    # a shell's background job ignores Ctrl-C, and keeps doing so
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _quit)
    from holdfast.cli.app import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _quit(number: int, frame: FrameType | None) -> None:
    # not KeyboardInterrupt: what is half loaded may catch it, or tell of it
    os._exit(INTERRUPTED)
