"""Units that an earlier state of the same experiment's code left in a store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import DamagedResultError
from holdfast_papers._manifest import MANIFEST, unseal
from holdfast_papers.execution.store import Store
from holdfast_papers.experiments.base import Experiment
from holdfast_papers.results import config_hash


def earlier_units(store: Store, experiment: Experiment) -> dict[str, Path]:
    """Folders of units by the hash of their config, of equal id and version and other code; the newest of each.

    Args:
        store: where results are kept.
        experiment: one of the user's own; others have a version instead of a checksum of their code.
    """
    if not experiment.source:
        return {}
    newest: dict[str, tuple[str, Path]] = {}
    for manifest in sorted((store.root / experiment.owner).glob(f"*/{MANIFEST}")):
        try:
            body = unseal(manifest)
            extra, started = body["provenance"]["extra"], str(body["provenance"]["started"])
            if _of_other_code(body, extra, experiment):
                key = config_hash(body["config"])
                newest[key] = max(newest.get(key, ("", manifest.parent)), (started, manifest.parent))
        except (DamagedResultError, KeyError, TypeError, AttributeError):
            continue  # what cannot be read cannot be kept
    return {key: folder for key, (_, folder) in newest.items()}


def _of_other_code(body: Mapping[str, Any], extra: Mapping[str, Any], experiment: Experiment) -> bool:
    same = body["experiment"] == experiment.owner and extra["version"] == experiment.version
    return same and extra.get("source", experiment.source) != experiment.source
