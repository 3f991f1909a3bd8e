"""The description of a trained model in the atlas, and how the files of a package are found and checked."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.errors import HoldfastError

SECONDS = 16.0  # of speech or music that a model is run on
FOLDERS = "ATLAS_PACKAGES"  # environment variable: folders that hold packages, beside those that are installed
LSTM_PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class MissingError(HoldfastError):
    """A package, or what its check needs, is not here; the text says how to get it."""


@dataclass(frozen=True)
class Specimen:
    """A trained model.

    Args:
        name: of the model.
        task: what it was trained for.
        kind: its recurrence, as in "LSTM 128".
        model: from inputs (rows, time, features) to what the package answers at each step.
        core: the recurrence inside, an nn.LSTM, nn.GRU or nn.RNN with batch_first; None where it is none of these.
        inputs: real inputs (rows, time, features).
        step: what a step is.
        check: the largest difference to the package's own answer, with what that answer was.
    """

    name: str
    task: str
    kind: str
    model: nn.Module
    core: nn.Module | None
    inputs: Tensor
    step: str
    check: Callable[[], tuple[float, str]]


def package(name: str, install: str) -> Path:
    """The folder of a package, without importing it."""
    for folder in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
        if (Path(folder) / name).is_dir():
            return Path(folder) / name
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise MissingError(f"{name} is not here: {install}")
    return Path(found.submodule_search_locations[0])


def bare_package(name: str, folder: Path) -> None:
    """Registers a package without running its __init__, so that single modules of it can be imported."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules.setdefault(name, module)


def needed(module: str) -> Any:
    """A module that a reader or a check needs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingError(f"{module} is not here: pip install {module}") from error


def own_methods(file: Path, owner: str, *names: str) -> Any:
    """An object with the methods of a class that a file defines, without what the file imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in texts of an old Python
        tree = ast.parse(file.read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner]
    found.body = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name in names]
    scope: dict[str, Any] = {"np": np}
    exec(compile(ast.Module([found], []), str(file), "exec"), scope)
    return scope[owner]()


@torch.no_grad()
def difference(model: nn.Module, x: Tensor, answer: np.ndarray) -> float:
    """The largest difference of an output to the package's own."""
    return float(np.abs(model(x).numpy() - answer).max())
