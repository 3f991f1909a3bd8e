"""Python objects by name: `module:name` or `file.py:name` of a user, and the members of a family by their files."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.errors import ArgumentError, unknown_name

FROM_FILE = "_model_file_"  # before the name of a module that was read from a file


def load_factory(spec: str) -> Any:
    """What `module:factory` or `file.py:factory` names, not called."""
    where, _ = split_spec(spec)
    if where == "hf":
        raise ArgumentError(
            f"expected FILE.py:NAME or package:NAME, got {spec!r}; hf: models can be measured, but not built here"
        )
    # the last colon, so that a Windows drive letter or a folder with a colon stays part of the file
    where, _, name = spec.rpartition(":")
    return getattr_or_explain(_import(where), name)


def split_spec(spec: str) -> tuple[str, str]:
    """The two sides of the first colon."""
    where, separator, name = spec.partition(":")
    if not separator or not where or not name:
        example = f"{where}:NAME, where NAME is in that file" if where.endswith(".py") else "my_models.py:lstm"
        raise ArgumentError(
            f"MODEL must be FILE.py:NAME, package:NAME or hf:NAME-OR-FOLDER, got {spec!r}; write {example}"
        )
    return where, name


def _import(where: str) -> ModuleType:
    if where.endswith(".py"):
        return _import_file(Path(where).expanduser().resolve())
    sys.path.insert(0, str(Path.cwd()))  # an installed command does not search the current folder by itself
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise ArgumentError(
            f"cannot import {where!r}: {error}; to name a file, write path/to/{where}.py:NAME"
        ) from error
    except Exception as error:
        raise failure(f"importing {where!r}", error) from error


def _import_file(path: Path) -> ModuleType:
    if not os.path.isfile(path):  # unlike Path.is_file, False for a name that is too long
        raise ArgumentError(f"expected an existing Python file, got {path}, which does not exist; check the path")
    # the file's own imports find its neighbours, as when it is run
    sys.path.insert(0, str(path.parent))
    # a file called like a module (random.py) must neither take its place nor be taken for it later
    name = f"{FROM_FILE}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise failure(f"running {path}", error) from error
    return module


def failure(what: str, error: Exception) -> ArgumentError:
    """Any error of the user's own code, in one line with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames and not isinstance(error, SyntaxError) else ""
    return ArgumentError(f"{what} failed with {type(error).__name__}: {error}{place}")


def getattr_or_explain(module: ModuleType, name: str) -> Any:
    """The attribute, or an error that lists what the module has."""
    if not hasattr(module, name):
        public = [key for key, value in vars(module).items() if not key.startswith("_") and callable(value)]
        file = module.__file__ if module.__name__.startswith(FROM_FILE) else None
        raise unknown_name(f"name in {Path(file).name if file else module.__name__}", name, public)
    return getattr(module, name)


def members_of(package: str, base: type[Any]) -> list[type[Any]]:
    """The final classes of `base` in the files of a package, by file: a new member of a family is its file, and no list.

    Args:
        package: its dotted name.
        base: the family's abstract class.
    """
    found: list[type[Any]] = []
    for file in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{file.name}")
        classes = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
        found += [c for c in classes if issubclass(c, base) and not c.__name__.startswith("Abstract")]
    return found
