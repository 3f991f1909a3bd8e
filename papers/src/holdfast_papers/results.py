"""What an experiment leaves behind: numbers, claims and the source, saved so that damage is noticed.

A saved result is a folder: `result.json` (config, claims, provenance, figures as specs, and a checksum of every
file), one `.npz` of arrays, one `.jsonl` log where anything was logged. Every file is written under a temporary name,
flushed to disk and renamed; `result.json` comes last, so that a folder either holds a whole result or none, and
replacing one is a single rename. Nothing is unpickled, no link is followed, and nothing is removed but the files that
the old `result.json` lists.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from holdfast._arguments import checked_fields
from holdfast._codec import check_arrays, pack_arrays, plain, restored, unpack_arrays
from holdfast._files import MAX_BYTES, damage, read_regular, seal, verified, write_atomically
from holdfast._provenance import Provenance
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast_papers._manifest import FORMAT, MANIFEST, advice, check_experiment, listed_files, unseal
from holdfast_papers.pages import ARRAYS, Page, pack, unpack

__all__ = [
    "FORMAT", "MANIFEST", "Claim", "Result", "Status", "config_hash", "saved_files", "verify",
    "write_atomically",
]  # fmt: skip

Status = Literal["met", "not met", "undecided"]
_REAL = (int, float)
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "claim": {"name": str, "statement": str, "numbers": dict, "paper": dict, "explanation": str, "essential": bool},
    "provenance": {
        "version": str, "commit": str, "packages": dict, "machine": dict, "seed": (int, type(None)), "started": str,
        "seconds": _REAL, "extra": dict,
    },
}  # fmt: skip


@checked_fields
@dataclass(frozen=True)
class Claim:
    """A statement of a paper as a predicate on a result, with the numbers that decide it.

    Args:
        name: short name, unique within its experiment.
        statement: what the paper says, in a sentence.
        status: "met", "not met" or "undecided".
        numbers: what was measured, by name.
        paper: the paper's own values under the same names.
        explanation: why it is not met or not decided.
        essential: whether it must be decided at the standard preset.
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
        """The claim with its status from a predicate.

        Args:
            name: short name, unique within its experiment.
            statement: what the paper says, in a sentence.
            holds: whether it is met; None is undecided.
            numbers: what was measured, by name.
            paper: the paper's own values under the same names.
            otherwise: explanation for a claim that is not met.
            essential: whether it must be decided at the standard preset.
        """
        status: Status = "undecided" if holds is None else "met" if holds else "not met"
        return cls(name, statement, status, numbers, paper or {}, "" if holds else otherwise, essential)

    def __post_init__(self) -> None:
        if self.status not in ("met", "not met", "undecided"):
            raise ArgumentError(f"status must be 'met', 'not met' or 'undecided', got {self.status!r}")


@dataclass(frozen=True)
class Result:
    """The outcome of one unit of work, (experiment, config, seed), saved as a folder so that damage is noticed.

    Args:
        experiment: id of the experiment.
        config: its settings, plain values.
        arrays: what was computed, by name.
        claims: statements of the paper with their status.
        provenance: the source.
        log: lines that the work wrote, plain values.
        page: figures, tables and notes for the report.
    """

    experiment: str
    config: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    claims: Sequence[Claim]
    provenance: Provenance
    log: Sequence[Mapping[str, Any]] = ()
    page: Page | None = None

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the result into `folder`, where it replaces an earlier one; other files in it are left alone."""
        path = Path(folder)
        check_experiment(self.experiment)
        check_names(self.arrays)
        page, drawn = (None, {}) if self.page is None else pack(self.page)
        lines = "".join(json.dumps(plain(entry), allow_nan=False) + "\n" for entry in self.log)
        files = {"arrays": (pack_arrays({**self.arrays, **drawn}), ".npz")}
        files |= {"log": (lines.encode(), ".jsonl")} if lines else {}
        path.mkdir(parents=True, exist_ok=True)
        before = listed_files(path)
        listed: dict[str, dict[str, Any]] = {}
        for name, (content, ending) in files.items():
            digest = hashlib.sha256(content).hexdigest()
            # the name holds the content's checksum, so that an older result's files are never overwritten
            listed[name] = {"file": f"{name}-{digest[:12]}{ending}", "sha256": digest, "bytes": len(content)}
            write_atomically(path / listed[name]["file"], content)
        body = {
            "format": FORMAT,
            "experiment": self.experiment,
            "config": plain(self.config),
            "claims": [plain(claim) for claim in self.claims],
            "provenance": plain(self.provenance),
            "page": plain(page),
            "files": listed,
        }
        write_atomically(path / MANIFEST, seal(body))
        for name in before - {entry["file"] for entry in listed.values()}:
            (path / name).unlink(missing_ok=True)
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Reads a result back; raises DamagedResultError, naming the file, unless every byte is as it was written.

        Args:
            folder: where it was saved.
        """
        path = Path(folder)
        told = advice(path)
        try:
            body = unseal(path / MANIFEST, told)
            files = {kind: verified(path, entry, MANIFEST, told) for kind, entry in body["files"].items()}
            return cls._from(body, files, path)
        except DamagedResultError:
            raise
        # whoever can write a file can seal it: what is inside may be anything, and raise anything
        except Exception as error:
            what = f"it is not a result of this version ({type(error).__name__}: {str(error)[:200]})"
            raise DamagedResultError(damage(path / MANIFEST, what, told)) from error

    @classmethod
    def _from(cls, body: Mapping[str, Any], contents: Mapping[str, bytes], path: Path) -> Self:
        arrays = unpack_arrays(contents["arrays"], path / body["files"]["arrays"]["file"], advice(path))
        page = restored(body.get("page"))
        return cls(
            experiment=body["experiment"],
            config=restored(body["config"]),
            arrays={name: array for name, array in arrays.items() if not name.startswith(ARRAYS)},
            claims=[_claim(restored(claim)) for claim in body["claims"]],
            provenance=Provenance(**_typed("provenance", restored(body["provenance"]))),
            log=[restored(json.loads(line)) for line in contents.get("log", b"").decode().splitlines()],
            page=None if page is None else unpack(page, arrays),
        )


def verify(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The contents of result.json after every byte of the result was checked; much cheaper than loading its arrays.

    Args:
        folder: where the result was saved.
    """
    path = Path(folder)
    body = unseal(path / MANIFEST)
    for entry in body["files"].values():
        verified(path, entry, MANIFEST)
    return body


def saved_files(folder: str | os.PathLike[str]) -> dict[str, bytes]:
    """Name and content of the files that make up a saved result, checked; other files in the folder are left out.

    Args:
        folder: where the result was saved.
    """
    path = Path(folder)
    listed = verify(path)["files"].values()
    return {MANIFEST: read_regular(path / MANIFEST, MAX_BYTES)} | {
        entry["file"]: verified(path, entry, MANIFEST) for entry in listed
    }


def config_hash(config: Mapping[str, Any]) -> str:
    """A short name for a config: equal for equal contents, whatever their order.

    Args:
        config: plain values by name.
    """
    text = json.dumps(plain(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_names(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuses arrays that cannot be saved and read back under their own names."""
    check_arrays(arrays)
    for name in arrays:
        if name.startswith(ARRAYS):
            raise ArgumentError(
                f"the name of an array must not begin with {ARRAYS!r}, which is reserved for figures, got {name!r}; rename it"
            )


def _claim(values: Mapping[str, Any]) -> Claim:
    claim = Claim(**_typed("claim", values))
    for key, number in [*claim.numbers.items(), *claim.paper.items()]:
        if not isinstance(number, _REAL):
            raise ArgumentError(f"claim {claim.name!r}: {key} must be a number, got {number!r}")
    return claim


def _typed(kind: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, expected in _FIELDS[kind].items():
        if name in values and not isinstance(values[name], expected):
            raise ArgumentError(f"{name} of a {kind} has a wrong type, got {values[name]!r}")
    return values
