"""Packages that only a comparison needs: whether they are there, which version, and how to get them."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from importlib import metadata
from typing import Any

# import name -> name on PyPI
DISTRIBUTIONS = {"mambapy": "mambapy", "s5": "s5-pytorch", "jax": "jax", "transformers": "transformers"}
HOW_TO_GET = "pip install 'holdfast-papers[peers]' (from a clone: pip install -c constraints.txt -e './papers[peers]')"


def missing(modules: tuple[str, ...]) -> str:
    """What is not installed of `modules` and how to get it; empty where everything is there."""
    absent = [DISTRIBUTIONS.get(name, name) for name in modules if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed; {HOW_TO_GET}" if absent else ""


def load(module: str) -> Any:
    """Imports a module of a peer; a late import, so that `import holdfast` never pays for it."""
    with warnings.catch_warnings():
        # s5-pytorch calls torch.jit.script, which torch 2.13 deprecates; nothing that our user could change
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(module)


def versions() -> dict[str, str]:
    """Version of every peer that is installed."""
    versions = {}
    for distribution in (*DISTRIBUTIONS.values(), "jaxlib"):
        try:
            versions[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return versions
