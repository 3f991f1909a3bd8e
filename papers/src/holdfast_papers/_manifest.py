"""The manifest of a saved result, result.json: names in it are never trusted as paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast._files import damage, open_seal, temporary_for
from holdfast.errors import ArgumentError, DamagedResultError

MANIFEST = "result.json"
FORMAT = "holdfast result 1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of an experiment: folders and files are called by it
_FILES = {"arrays": re.compile(r"arrays-[0-9a-f]{12}\.npz"), "log": re.compile(r"log-[0-9a-f]{12}\.jsonl")}


def advice(folder: Path) -> str:
    """What to do about a damaged result."""
    return f"Delete the folder {folder} and run the unit again."


def unseal(path: Path, advice: str = "") -> dict[str, Any]:
    """What result.json says, once its checksum and every name in it were checked; `advice` is for errors."""
    body = open_seal(path, FORMAT, advice)
    try:
        _check_manifest(body)
    except (ArgumentError, AttributeError, KeyError, TypeError) as error:
        raise DamagedResultError(damage(path, str(error), advice)) from None
    return body


def _check_manifest(body: Mapping[str, Any]) -> None:
    """Refuses a manifest whose names would be paths, whoever sealed it."""
    check_experiment(body["experiment"])
    if not {"arrays"} <= body["files"].keys() <= _FILES.keys():
        raise ArgumentError(f"expected the files {' and '.join(_FILES)}, got {[*body['files']]}")
    for kind, entry in body["files"].items():
        if not _FILES[kind].fullmatch(entry["file"]):
            raise ArgumentError(f"expected the usual name for the file of its {kind}, got {entry['file']!r}")
        if type(entry["bytes"]) is not int or not isinstance(entry["sha256"], str):
            raise ArgumentError(
                f"expected a number as the size of {entry['file']} and text as its checksum, got other types"
            )


def check_experiment(name: object) -> None:
    """Refuses a name that no folder or file should be called by."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ArgumentError(
            "the id of an experiment must be up to 100 letters, digits, '-', '_' and '.', beginning with a letter or digit, "
            f"got {name!r}"
        )


def listed_files(folder: Path) -> set[str]:
    """The files that the result in `folder` is made of; none where there is no result that can be trusted."""
    try:
        return {entry["file"] for entry in unseal(folder / MANIFEST)["files"].values()}
    except DamagedResultError:
        return set()


def is_leftover(name: str) -> bool:
    """Whether a file of that name was left in a result's folder by a writer that was killed."""
    meant = temporary_for(name)
    return meant is not None and (meant == MANIFEST or any(p.fullmatch(meant) for p in _FILES.values()))
