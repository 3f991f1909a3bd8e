"""What an experiment leaves behind: numbers, claims and where they came from, saved so that damage is noticed.

A saved result is a folder: `result.json` (config, claims, provenance, figures as specs, and a checksum of every file),
one `.npz` of arrays, one `.jsonl` log. Every file is written under a temporary name, flushed to disk and renamed;
`result.json` comes last, so that a folder either holds a whole result or none, and replacing one is a single rename.
Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import platform
import secrets
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from holdfast.errors import ArgumentError, DamagedResultError
from holdfast.figures import ARRAYS, Page, pack, unpack

Status = Literal["met", "not met", "undecided"]
MANIFEST = "result.json"
FORMAT = "holdfast result 1"


@dataclass(frozen=True)
class Claim:
    """A statement of a paper as a predicate on a result, with the numbers that decide it.

    `paper` holds the paper's own values under the same names. `essential` claims must be decided at the standard preset.
    """

    name: str
    statement: str
    status: Status
    numbers: Mapping[str, float] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)
    explanation: str = ""
    essential: bool = False

    @classmethod
    def decide(
        cls,
        name: str,
        statement: str,
        holds: bool | None,
        numbers: Mapping[str, float],
        *,
        paper: Mapping[str, float] | None = None,
        otherwise: str,
        essential: bool = False,
    ) -> Self:
        """The claim with its status from a predicate; None is undecided. `otherwise` explains what is not met."""
        status: Status = "undecided" if holds is None else "met" if holds else "not met"
        return cls(name, statement, status, numbers, paper or {}, "" if holds else otherwise, essential)

    def __post_init__(self) -> None:
        if self.status not in ("met", "not met", "undecided"):
            raise ArgumentError(f"a claim is 'met', 'not met' or 'undecided', came {self.status!r}")


@dataclass(frozen=True)
class Provenance:
    """Where a result came from: code, versions, machine, seed, time."""

    version: str
    commit: str
    packages: Mapping[str, str]
    machine: Mapping[str, str]
    seed: int | None
    started: str
    seconds: float
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def collect(cls, *, seed: int | None = None, started: datetime | None = None, **extra: Any) -> Self:
        """Reads everything off this process; `started` is when the work began (default: now)."""
        import torch

        now = datetime.now(UTC)
        begun = started or now
        return cls(
            version=metadata.version("holdfast"),
            commit=_commit(),
            packages={name: metadata.version(name) for name in ("torch", "numpy", "scipy")},
            machine={
                "system": platform.platform(),
                "cpu": _cpu(),
                "cores": str(os.cpu_count()),
                "threads": str(torch.get_num_threads()),
                "python": platform.python_version(),
            },
            seed=seed,
            started=begun.isoformat(timespec="seconds"),
            seconds=(now - begun).total_seconds(),
            extra=extra,
        )


@dataclass(frozen=True)
class Result:
    """The outcome of one unit of work: (experiment, config, seed)."""

    experiment: str
    config: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    claims: Sequence[Claim]
    provenance: Provenance
    log: Sequence[Mapping[str, Any]] = ()
    page: Page | None = None

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the result into `folder`, in place of what was there."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        page, drawn = (None, {}) if self.page is None else pack(self.page)
        lines = "".join(json.dumps(_plain(entry), allow_nan=False) + "\n" for entry in self.log)
        files = {"arrays": (_npz({**self.arrays, **drawn}), ".npz"), "log": (lines.encode(), ".jsonl")}
        listed: dict[str, dict[str, Any]] = {}
        for name, (content, ending) in files.items():
            digest = hashlib.sha256(content).hexdigest()
            # the name holds the content's checksum, so that an older result's files are never overwritten
            listed[name] = {"file": f"{name}-{digest[:12]}{ending}", "sha256": digest, "bytes": len(content)}
            write_atomically(path / listed[name]["file"], content)
        body = {
            "format": FORMAT,
            "experiment": self.experiment,
            "config": _plain(self.config),
            "claims": [_plain(asdict(claim)) for claim in self.claims],
            "provenance": _plain(asdict(self.provenance)),
            "page": _plain(page),
            "files": listed,
        }
        write_atomically(path / MANIFEST, _seal(body))
        _remove_others(path, {entry["file"] for entry in listed.values()})
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Reads a result back; raises DamagedResultError, naming the file, unless every byte is as it was written."""
        path = Path(folder)
        body = _unseal(path / MANIFEST)
        contents = {name: _verified(path, entry) for name, entry in body["files"].items()}
        arrays = _arrays(contents["arrays"], path / body["files"]["arrays"]["file"])
        page = _lively(body.get("page"))
        return cls(
            experiment=body["experiment"],
            config=_lively(body["config"]),
            arrays={name: array for name, array in arrays.items() if not name.startswith(ARRAYS)},
            claims=[Claim(**_lively(claim)) for claim in body["claims"]],
            provenance=Provenance(**_lively(body["provenance"])),
            log=[_lively(json.loads(line)) for line in contents["log"].decode().splitlines()],
            page=None if page is None else unpack(page, arrays),
        )


def verify(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The contents of result.json after every byte of the result was checked; much cheaper than loading its arrays."""
    path = Path(folder)
    body = _unseal(path / MANIFEST)
    for entry in body["files"].values():
        _verified(path, entry)
    return body


def config_hash(config: Mapping[str, Any]) -> str:
    """A short name for a config: equal for equal contents, whatever their order."""
    text = json.dumps(_plain(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_atomically(path: Path, content: bytes) -> None:
    """Puts `content` at `path` so that a reader sees the old file or the new one, also after a crash."""
    # not tempfile: its files can be read by nobody but their owner
    name = path.parent / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        with open(name, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            name.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # only POSIX lets a folder be opened and flushed
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_others(folder: Path, keep: set[str]) -> None:
    for path in folder.iterdir():
        ours = path.name.startswith(("arrays-", "log-"))
        if ours and path.name not in keep:
            path.unlink(missing_ok=True)


# result.json is valid JSON whose first member is the checksum of all bytes after it
_HEAD = b'{"sha256": "'
_NECK = b'",\n'


def _seal(body: Mapping[str, Any]) -> bytes:
    rest = json.dumps(body, indent=1, allow_nan=False).encode()[1:].lstrip()
    return _HEAD + hashlib.sha256(rest).hexdigest().encode() + _NECK + rest + b"\n"


def _unseal(path: Path) -> dict[str, Any]:
    raw = _read(path)
    start = len(_HEAD) + 64 + len(_NECK)
    rest = raw[start:-1]
    expected = _HEAD + hashlib.sha256(rest).hexdigest().encode() + _NECK
    if raw[:start] != expected or raw[-1:] != b"\n":
        raise DamagedResultError(_damage(path, "its checksum does not fit its contents"))
    body = json.loads(b"{" + rest)
    if body.get("format") != FORMAT:
        raise DamagedResultError(f"{path} has format {body.get('format')!r}; this version reads {FORMAT!r}")
    return body


def _verified(folder: Path, entry: Mapping[str, Any]) -> bytes:
    path = folder / entry["file"]
    content = _read(path)
    if len(content) != entry["bytes"]:
        raise DamagedResultError(_damage(path, f"it has {len(content)} bytes instead of {entry['bytes']}"))
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise DamagedResultError(_damage(path, "its checksum is not the one written in result.json"))
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DamagedResultError(_damage(path, "the file is not there")) from None


def _damage(path: Path, what: str) -> str:
    return f"{path} is damaged or half-written: {what}. Delete the folder {path.parent} and run the unit again."


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    # np.savez stamps no times, so that equal arrays give equal bytes
    buffer = io.BytesIO()
    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise ArgumentError(f"array {name!r} holds Python objects; only numbers, booleans and text are saved")
    np.savez_compressed(buffer, allow_pickle=False, **{name: np.asarray(a) for name, a in arrays.items()})
    return buffer.getvalue()


def _arrays(content: bytes, path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, zipfile.BadZipFile) as error:
        raise DamagedResultError(_damage(path, str(error))) from error


def _plain(value: Any) -> Any:
    """JSON's own types; numbers that JSON has no word for become {"float": "inf"}."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if value is None or isinstance(value, str):
        return value
    raise ArgumentError(f"a result holds numbers, text, lists and dicts; came {type(value).__name__}: {value!r}")


def _lively(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"float"} and isinstance(value["float"], str):
            return float(value["float"])
        return {key: _lively(item) for key, item in value.items()}
    return [_lively(item) for item in value] if isinstance(value, list) else value


def _commit() -> str:
    """The commit of the clone that this file lies in, marked where files were changed; empty outside a clone."""
    here = Path(__file__).parent
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
