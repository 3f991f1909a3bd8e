"""Files of the user's own: read whole, and cut into splits from start to end."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from jaxtyping import Shaped
from torch import Tensor

from holdfast.data._base import Split
from holdfast.errors import ArgumentError, DamagedResultError


def read_text(path: Path) -> tuple[bytes, str]:
    """The content of a text file and its SHA-256; refuses what is empty, or no regular file."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ArgumentError(f"{path} is not a regular file; name another")
            content = file.read()
    except OSError as error:
        raise DamagedResultError(f"{path} cannot be read ({error.strerror}); name another") from error
    if not content:
        raise DamagedResultError(f"{path} is empty; put the text there")
    return content, hashlib.sha256(content).hexdigest()


def cut(steps: Shaped[Tensor, "steps ..."], valid: float, test: float) -> dict[Split, Tensor]:
    """The start of a text or series for training, then `valid` and `test` as shares of it; 0 leaves a split out."""
    if not (0 <= valid < 1 and 0 <= test < 1 and valid + test < 1):
        raise ArgumentError(f"valid and test are shares of the whole, together below 1; got {valid} and {test}")
    last = len(steps) - round(test * len(steps))
    middle = last - round(valid * len(steps))
    parts: dict[Split, Tensor] = {"train": steps[:middle], "valid": steps[middle:last], "test": steps[last:]}
    asked = {"train": True, "valid": valid > 0, "test": test > 0}
    return {split: part for split, part in parts.items() if asked[split]}
