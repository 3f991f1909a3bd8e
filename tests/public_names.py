"""Every module that says by `__all__` what is public in it."""

import importlib
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent


def modules_with_public_names():
    files = [file for file in sorted(SOURCE.rglob("*.py")) if "\n__all__ = [" in file.read_text()]
    paths = [file.relative_to(SOURCE.parent).with_suffix("") for file in files]
    return [importlib.import_module(".".join(p.parts).removesuffix(".__init__")) for p in paths]
