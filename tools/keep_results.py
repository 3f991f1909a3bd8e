"""Keeps what `holdfast reproduce --preset standard` computed: python tools/keep_results.py STORE [ID ...].

Copies the conclusions of the standard preset from STORE into docs/results, and every unit with an estimated cost above 100 s.
With their units there, `holdfast reproduce ID --preset standard --store docs/results` continues long experiments anywhere,
and `--redraw` draws a conclusion again after a criterion changed. Each result's checksum is verified before it is copied.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast_papers.experiments.registry import entries, get
from holdfast_papers.results import Result

KEPT = Path(__file__).parents[1] / "docs" / "results"
LONG_UNIT_SECONDS = 100.0  # by its experiment's cost: what a busy machine took says nothing


def results(store: Path, ids: list[str]) -> Iterator[tuple[Path, bool]]:
    """Every result of the experiments and of their families, and whether it is a conclusion."""
    owners = {get(id).owner for id in ids} | {*ids}
    for manifest in sorted(store.glob("*/*/result.json")):
        folder = manifest.parent
        if ids and folder.parent.name not in owners:
            continue
        conclusion = folder.name.startswith("conclusion-")
        if not conclusion or folder.name == "conclusion-standard":
            yield folder, conclusion


def main(store: str, *ids: str) -> None:
    """Copies what is worth keeping, and says how much."""
    counts = {"conclusions": 0, "units": 0}
    cost = {experiment.owner: experiment.cost for experiment in (get(entry.id) for entry in entries())}
    for folder, conclusion in results(Path(store), [*ids]):
        result = Result.load(folder)
        if conclusion or cost[folder.parent.name](result.config) >= LONG_UNIT_SECONDS:
            place = KEPT / folder.parent.name / folder.name
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(folder, place)
            counts["conclusions" if conclusion else "units"] += 1
    size = sum(path.stat().st_size for path in KEPT.rglob("*") if path.is_file())
    sys.stdout.write(
        f"kept {counts['conclusions']} conclusions, {counts['units']} units; {KEPT.name}: {size / 1e6:.1f} MB\n"
    )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
