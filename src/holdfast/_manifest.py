"""Manifests: JSON sealed by a checksum, and the files that they list."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast._files import damage, read_regular
from holdfast.errors import DamagedResultError

MAX_BYTES = 64 << 20  # of a manifest; those of the papers' experiments have up to 50,000
# a manifest is valid JSON whose first member is the checksum of all bytes after it
_HEAD = b'{"sha256": "'
_NECK = b'",\n'


def seal(body: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest: JSON whose first member is the checksum of the rest."""
    rest = json.dumps(body, indent=1, allow_nan=False).encode()[1:].lstrip()
    return _HEAD + hashlib.sha256(rest).hexdigest().encode() + _NECK + rest + b"\n"


def open_seal(path: Path, format: str, advice: str = "", most: int = MAX_BYTES) -> dict[str, Any]:
    """What a file of at most `most` bytes written by `seal` says, checksum and format checked; `advice` is for errors."""
    raw = read_regular(path, most, advice)
    if not raw.startswith(_HEAD):
        raise DamagedResultError(damage(path, "it does not begin as a file of holdfast does", advice))
    start = len(_HEAD) + 64 + len(_NECK)
    rest = raw[start:-1]
    expected = _HEAD + hashlib.sha256(rest).hexdigest().encode() + _NECK
    if raw[:start] != expected or raw[-1:] != b"\n":
        raise DamagedResultError(damage(path, "its checksum does not fit its contents", advice))
    try:
        body: dict[str, Any] = json.loads(b"{" + rest)
    except (ValueError, RecursionError) as error:
        raise DamagedResultError(damage(path, f"it is no JSON that can be read ({error})", advice)) from None
    if body.get("format") != format:
        raise DamagedResultError(f"{path} has format {body.get('format')!r}; this version reads {format!r}")
    return body


def verified(folder: Path, entry: Mapping[str, Any], manifest: str, advice: str = "") -> bytes:
    """The content of one of the files that a manifest lists, if it is what was written."""
    path = folder / entry["file"]
    content = read_regular(path, entry["bytes"], advice)
    if len(content) != entry["bytes"]:
        raise DamagedResultError(damage(path, f"it has {len(content)} bytes instead of {entry['bytes']}", advice))
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise DamagedResultError(damage(path, f"its checksum is not the one written in {manifest}", advice))
    return content
