"""MODEL on the command line: `module:factory`, `file.py:factory` or `hf:NAME-OR-FOLDER`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from holdfast.errors import ArgumentError, unknown_name
from holdfast.memory import huggingface

HELP = "The model: module:factory, file.py:factory, or hf:NAME-OR-FOLDER for a transformers model."
_SIZES = ("input_size", "in_features", "features", "d_model", "in_channels")


@dataclass(frozen=True)
class LoadedModel:
    """A model to measure; `tokenizer` and `plain` (the model before its adapter) only for transformers models.

    `longest` is the number of steps that the model can take, where it is limited.
    """

    name: str
    model: Callable[..., Any]
    input_size: int | None
    tokenizer: Any | None = None
    plain: nn.Module | None = None
    notes: tuple[str, ...] = ()
    longest: int | None = None


def load_model(spec: str) -> LoadedModel:
    """Loads MODEL. A factory is a module, or a function without arguments that returns one (or another function)."""
    where, name = _parts(spec)
    if where == "hf":
        return _from_transformers(name)
    model = _build(load_factory(spec), spec)
    return LoadedModel(spec, model, known_size(model))


def load_factory(spec: str) -> Any:
    """What `module:factory` or `file.py:factory` names, not called."""
    where, _ = _parts(spec)
    if where == "hf":
        raise ArgumentError(f"expected module:factory or file.py:factory, came {spec!r}, which names no factory")
    # the last colon, so that a Windows drive letter or a folder with a colon stays part of the file
    where, _, name = spec.rpartition(":")
    return getattr_or_explain(_import(where), name)


def _parts(spec: str) -> tuple[str, str]:
    where, separator, name = spec.partition(":")
    if not separator or not where or not name:
        raise ArgumentError(f"MODEL must be module:factory, file.py:factory or hf:NAME-OR-FOLDER, came {spec!r}")
    return where, name


def _from_transformers(name: str) -> LoadedModel:
    loaded = huggingface.load(name)
    adapter = huggingface.FromEmbeddings(loaded.model)
    notes = ("the folder has no weights: they are random",) if loaded.random else ()
    longest = adapter.longest_input
    return LoadedModel(f"hf:{name}", adapter, adapter.input_size, loaded.tokenizer, loaded.model, notes, longest)


def _import(where: str) -> ModuleType:
    if where.endswith(".py"):
        return _import_file(Path(where).expanduser().resolve())
    sys.path.insert(0, str(Path.cwd()))  # an installed command does not search the current folder by itself
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"cannot import {where!r}: {error}. For a file write path/to/{where}.py:NAME") from error
    except Exception as error:
        raise _failure(f"importing {where!r}", error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ArgumentError(f"there is no file {path}")
    # the file's own imports find its neighbours, as when it is run
    sys.path.insert(0, str(path.parent))
    # a file called like a module (random.py) must neither take its place nor be taken for it later
    name = f"_model_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failure(f"running {path}", error) from error
    return module


def _failure(what: str, error: Exception) -> ArgumentError:
    """Any error of the user's own code, in one line with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames and not isinstance(error, SyntaxError) else ""
    return ArgumentError(f"{what} failed with {type(error).__name__}: {error}{place}")


def getattr_or_explain(module: ModuleType, name: str) -> Any:
    """The attribute, or an error that lists what the module has."""
    if not hasattr(module, name):
        public = [key for key, value in vars(module).items() if not key.startswith("_") and callable(value)]
        raise unknown_name(f"name in {module.__name__}", name, public)
    return getattr(module, name)


def _build(factory: Any, spec: str) -> Callable[..., Any]:
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise ArgumentError(f"{spec} is a {type(factory).__name__}; expected a module or a function that returns one")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ArgumentError(f"{spec} must be callable without arguments: {error}") from error
    except ValueError:
        pass  # some callables written in C have no signature
    try:
        model = factory()
    except Exception as error:
        raise _failure(f"calling {spec}()", error) from error
    if not callable(model):
        raise ArgumentError(f"{spec}() returned a {type(model).__name__}; expected a module or another callable")
    return model


def known_size(model: Any) -> int | None:
    """The number of input features that a model tells by itself, under one of the usual names."""
    for name in _SIZES:
        value = getattr(model, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None
