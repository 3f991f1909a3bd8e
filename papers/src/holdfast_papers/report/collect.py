"""Finds the conclusions in a folder of results."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import ArgumentError, DamagedResultError, unknown_name
from holdfast_papers.papers import PRESETS, order_of
from holdfast_papers.results import MANIFEST, Result, saved_files


@dataclass(frozen=True)
class Saved:
    """A conclusion as it lies on disk: where, what it says, and the files that it is made of."""

    folder: Path
    result: Result
    files: dict[str, bytes]


def find_conclusions(store: Path, preset: str | None = None) -> dict[str, Path]:
    """The folder of each experiment's conclusion in a store.

    Args:
        store: folder that results are kept in.
        preset: conclusions of this preset; None takes the strongest that each experiment has.
    """
    if preset is not None and preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    conclusions: dict[str, Path] = {}
    for name in (preset,) if preset else reversed(PRESETS):
        for folder in _folders(Path(store)):
            if _has_result(folder / f"conclusion-{name}"):
                conclusions.setdefault(folder.name, folder / f"conclusion-{name}")
    return dict(sorted(conclusions.items(), key=lambda item: order_of(item[0])))


def load_conclusions(store: Path, preset: str | None = None) -> tuple[list[Saved], list[str]]:
    """The conclusions that can be read, and a line for each that is damaged."""
    saved, damage = [], []
    for id, folder in find_conclusions(store, preset).items():
        try:
            one = Saved(folder, Result.load(folder), saved_files(folder))
            _check(one, id)
        except DamagedResultError as error:
            damage.append(str(error))
        else:
            saved.append(one)
    return saved, damage


def _check(saved: Saved, id: str) -> None:
    """A conclusion lies in the folder of its experiment and preset: one that was copied elsewhere is not shown there."""
    result, folder = saved.result, saved.folder
    if result.page is None:
        raise DamagedResultError(
            f"{folder} does not hold a conclusion, so there is nothing to show; delete it and run again"
        )
    if result.experiment != id or f"conclusion-{result.page.preset}" != folder.name:
        raise DamagedResultError(
            f"{folder} holds the conclusion of another experiment or preset ({result.experiment}, "
            f"{result.page.preset}); delete it and run again"
        )


def _folders(store: Path) -> list[Path]:
    try:
        return sorted(folder for folder in store.iterdir() if not folder.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ArgumentError(f"{store} cannot be read: {os.strerror(error.errno or 0)}") from error


def _has_result(folder: Path) -> bool:
    try:
        os.lstat(folder / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # something is there that cannot be looked at: loading it says why
    return True
