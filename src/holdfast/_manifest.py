"""Manifests, sealed by a checksum and never believed about a path: that of a saved result, and those of others."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast._files import damage, read_regular, temporary_for
from holdfast.errors import ArgumentError, DamagedResultError

MANIFEST = "result.json"
FORMAT = "holdfast result 1"
MOST_MANIFEST = 64 << 20  # bytes; those of the papers' experiments have up to 50,000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of an experiment: folders and files are called by it
_FILES = {"arrays": re.compile(r"arrays-[0-9a-f]{12}\.npz"), "log": re.compile(r"log-[0-9a-f]{12}\.jsonl")}

# result.json is valid JSON whose first member is the checksum of all bytes after it
_HEAD = b'{"sha256": "'
_NECK = b'",\n'


def seal(body: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest: JSON whose first member is the checksum of the rest."""
    rest = json.dumps(body, indent=1, allow_nan=False).encode()[1:].lstrip()
    return _HEAD + hashlib.sha256(rest).hexdigest().encode() + _NECK + rest + b"\n"


def open_seal(path: Path, format: str, advice: str = "", most: int = MOST_MANIFEST) -> dict[str, Any]:
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


def unseal(path: Path) -> dict[str, Any]:
    """What result.json says, once its checksum and every name in it were checked."""
    body = open_seal(path, FORMAT)
    try:
        _check_manifest(body)
    except (ArgumentError, AttributeError, KeyError, TypeError) as error:
        raise DamagedResultError(damage(path, str(error))) from None
    return body


def _check_manifest(body: Mapping[str, Any]) -> None:
    """Refuses a manifest whose names would be paths, whoever sealed it."""
    check_experiment(body["experiment"])
    if not {"arrays"} <= body["files"].keys() <= _FILES.keys():
        raise ArgumentError(f"a result has files {' and '.join(_FILES)}, came {[*body['files']]}")
    for kind, entry in body["files"].items():
        if not _FILES[kind].fullmatch(entry["file"]):
            raise ArgumentError(f"the file of its {kind} is called {entry['file']!r}")
        if type(entry["bytes"]) is not int or not isinstance(entry["sha256"], str):
            raise ArgumentError(f"size and checksum of {entry['file']} are no number and text")


def check_experiment(name: object) -> None:
    """Refuses a name that no folder or file should be called by."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ArgumentError(
            "an experiment is called by up to 100 letters, digits, '-', '_' and '.', beginning with a letter or digit; "
            f"came {name!r}"
        )


def listed_files(folder: Path) -> set[str]:
    """The files that the result in `folder` is made of; none where there is no result that can be trusted."""
    try:
        return {entry["file"] for entry in unseal(folder / MANIFEST)["files"].values()}
    except DamagedResultError:
        return set()


def verified(folder: Path, entry: Mapping[str, Any], manifest: str = MANIFEST, advice: str = "") -> bytes:
    """The content of one of the files that a manifest lists, if it is what was written."""
    path = folder / entry["file"]
    content = read_regular(path, entry["bytes"], advice)
    if len(content) != entry["bytes"]:
        raise DamagedResultError(damage(path, f"it has {len(content)} bytes instead of {entry['bytes']}", advice))
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise DamagedResultError(damage(path, f"its checksum is not the one written in {manifest}", advice))
    return content


def is_leftover(name: str) -> bool:
    """Whether a file of that name was left in a result's folder by a writer that was killed."""
    meant = temporary_for(name)
    return meant is not None and (meant == MANIFEST or any(p.fullmatch(meant) for p in _FILES.values()))
