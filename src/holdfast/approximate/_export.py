"""A layer with its choices in one safetensors file: weights as tensors, how to build it as metadata."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast._arguments import checked
from holdfast._files import write_atomically
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast.nn import LAYERS, AbstractRecurrent
from holdfast.parameterizations import AbstractParameterization, get

FORMAT = "holdfast layer 2"


@checked
def save_layer(layer: AbstractRecurrent, path: str | Path) -> None:
    """Writes a layer into one safetensors file: weights as tensors, and how to build it as metadata.

    Args:
        layer: a layer that says how it is built (`layer.choices()`), as `to_layer()` makes them.
        path: of the file, which `load_layer` reads; its folder must be there.
    """
    from safetensors.torch import save

    described = {"format": FORMAT, "layer": type(layer).__name__, "choices": json.dumps(_choices(layer))}
    tensors = {name: value.detach().contiguous() for name, value in layer.state_dict().items()}
    target = Path(path)
    if target.is_dir():
        raise ArgumentError(f"path must name a file, got {str(path)!r}, which is a folder")
    if not os.path.isdir(target.absolute().parent):
        raise ArgumentError(
            f"cannot write to path {target}: there is no folder {target.absolute().parent}; make it first"
        )
    write_atomically(target, save(tensors, metadata=described))


@checked
def load_layer(path: str | Path) -> AbstractRecurrent:
    """The layer that `save_layer` wrote, weights bit by bit.

    Args:
        path: of the file.
    """
    from safetensors import SafetensorError, safe_open

    if not os.path.isfile(path):
        raise ArgumentError(f"there is no file at path {path}")
    try:
        with safe_open(str(path), framework="pt") as file:
            described = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise DamagedResultError(f"{path} is not a whole safetensors file: {error}") from error
    if described.get("format") != FORMAT:
        raise ArgumentError(f"{path} was not written by save_layer: its metadata lacks format = {FORMAT!r}")
    try:
        layer = _build(described["layer"], json.loads(described["choices"]), tensors)
        layer.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:  # RecursionError is a RuntimeError
        raise DamagedResultError(
            f"{path}: its metadata does not describe the layer that its weights belong to "
            f"({type(error).__name__}: {error}); save it again with save_layer"
        ) from error
    return layer


def _choices(layer: AbstractRecurrent) -> dict[str, Any]:
    if layer.backward_layer is not None:
        raise ArgumentError("only a layer in one direction is saved, got a bidirectional one; save its state_dict()")
    choices = layer.choices()
    f = layer.boundary_form
    if not isinstance(f, AbstractParameterization) or not _is_named(f):
        raise ArgumentError(f"{f!r} is not one of the named parameterizations and cannot be saved with its weights")
    return {"features": layer.features, "state_size": layer.state_size, **choices}


def _is_named(f: AbstractParameterization) -> bool:
    try:
        return repr(get(f.key, time=f.time, **f.constants())) == repr(f)
    except ArgumentError:
        return False


def _build(kind: str, choices: dict[str, Any], tensors: dict[str, Tensor]) -> AbstractRecurrent:
    """A layer of that kind and shape, its weights still to be loaded."""
    features, size = choices.pop("features"), choices.pop("state_size")
    if not 0 < features * size <= sum(tensor.numel() for tensor in tensors.values()):
        raise ValueError(f"{features} features of {size} states are more than the weights that are there")
    with torch.random.fork_rng(devices=[]):
        layer = LAYERS[kind](features, size, **choices)
    return layer.to(next(value.dtype for value in tensors.values() if value.is_floating_point()))
