"""The source of a result: code, versions, machine, seed, time."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class Provenance:
    """The source of a result: code, versions, machine, seed, time.

    Args:
        version: of holdfast.
        commit: of the clone that ran, marked where files were changed; empty outside a clone.
        packages: versions of torch, numpy and scipy.
        machine: system, cpu, cores, threads and Python version.
        seed: of the random numbers; None where there is none.
        started: when the work began, in ISO format.
        seconds: how long it took.
        extra: what else belongs to this result.
    """

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
        """Reads everything off this process.

        Args:
            seed: of the random numbers; None where there is none.
            started: when the work began; None is now.
            extra: what else belongs to this result.
        """
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
