"""Every module that says by `__all__` what is public in it."""

import importlib
from pathlib import Path

import holdfast
import holdfast_papers

SOURCES = [Path(package.__file__).parent for package in (holdfast, holdfast_papers)]


def modules_with_public_names():
    paths = [
        file.relative_to(source.parent).with_suffix("")
        for source in SOURCES
        for file in sorted(source.rglob("*.py"))
        if "\n__all__ = [" in file.read_text()
    ]
    return [importlib.import_module(".".join(p.parts).removesuffix(".__init__")) for p in paths]
