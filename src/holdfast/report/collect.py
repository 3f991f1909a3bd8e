"""Finds the conclusions in a folder of results."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.errors import DamagedResultError, unknown_name
from holdfast.results import MANIFEST, Result

PRESETS = ("paper", "standard", "quick")  # the strongest first
PAPERS = ("iat", "ssm", "stable", "linrec")


def find_conclusions(store: Path, preset: str | None = None) -> dict[str, Path]:
    """The folder of each experiment's conclusion: of that preset, or of the strongest one there is."""
    if preset is not None and preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    found: dict[str, Path] = {}
    for name in (preset,) if preset else PRESETS:
        for path in store.glob(f"*/conclusion-{name}/{MANIFEST}"):
            found.setdefault(path.parent.parent.name, path.parent)
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def load_conclusions(store: Path, preset: str | None = None) -> tuple[dict[Path, Result], list[str]]:
    """The conclusions that can be read, by folder, and a line for each that is damaged."""
    results, damage = {}, []
    for folder in find_conclusions(store, preset).values():
        try:
            result = Result.load(folder)
        except DamagedResultError as error:
            damage.append(str(error))
            continue
        if result.page is not None:
            results[folder] = result
    return results, damage


def _order(id: str) -> tuple[int, str, int, str]:
    """Papers in their own order, others after; figures before tables before the rest, by number."""
    paper, _, name = id.partition("-")
    match = re.match(r"([a-z]*)(\d*)", name)
    letters, digits = match.groups() if match else ("", "")
    place = PAPERS.index(paper) if paper in PAPERS else len(PAPERS)
    return place, {"fig": "0", "table": "1"}.get(letters, letters), int(digits or 0), name
