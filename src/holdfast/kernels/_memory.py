"""How the C library treats freed memory: large blocks are kept for the next step instead of mapped again."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# glibc's <malloc.h>
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_KEPT = {_TRIM_THRESHOLD: -1, _MMAP_MAX: 0}
# setting a threshold ends glibc's own adaptation, so these are where that ends: large blocks were freed before
_AFTER = {_TRIM_THRESHOLD: 64 << 20, _MMAP_THRESHOLD: 32 << 20, _MMAP_MAX: 65536}

_LOCK = threading.Lock()
_open_blocks = 0  # `with` blocks that are open in this process: the settings are those of the process


@contextmanager
def reuse_memory() -> Iterator[bool]:
    """Lets this process keep the memory of freed tensors of any size while the block is open; yields whether it does.

    glibc returns a freed block of more than 32 MB to the system and maps the next one page by page: half the time of a
    training step with 131,072 tokens. `holdfast.training` and `holdfast bench` open such a block themselves; a loop of
    your own gains the same. At the end the free memory is returned. Blocks may be nested.

    Other C libraries (musl, macOS, Windows) have no such setting: there nothing changes, and False is yielded.

    Example:
        with holdfast.kernels.reuse_memory():
            for x, y in batches:
                loss(model(x), y).backward()
    """
    library = _glibc()
    if library is None:
        yield False
        return
    _count(library, 1)
    try:
        yield True
    finally:
        _count(library, -1)


def _count(library: ctypes.CDLL, change: int) -> None:
    """Counts a block in or out; the first one sets, the last one resets."""
    global _open_blocks
    with _LOCK:
        before, _open_blocks = _open_blocks, _open_blocks + change
        if before and _open_blocks:
            return
        for name, value in (_KEPT if _open_blocks else _AFTER).items():
            library.mallopt(name, value)
        if not _open_blocks:
            library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows has no such handle
        return None
    return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "malloc_trim") else None
