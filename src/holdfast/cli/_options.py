"""Values of options that several commands read."""

from __future__ import annotations

from pathlib import Path

import typer


def file(text: str | Path) -> Path:
    """A file's path; an empty text, as an unset variable gives, would silently be the current folder."""
    if not str(text).strip():
        raise typer.BadParameter("expected a file, got an empty text")
    return Path(text)


def folder(text: str | Path) -> Path:
    """A folder's path; an empty text, as an unset variable gives, would silently be the current folder."""
    if not str(text).strip():
        raise typer.BadParameter("expected a folder, got an empty text")
    return Path(text)
