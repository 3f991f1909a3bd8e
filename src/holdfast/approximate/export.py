"""A layer with its choices in one safetensors file: weights as tensors, how to build it as metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast.nn import LRU, S4D, AbstractRecurrent, DiagonalSSM
from holdfast.parameterizations import AbstractParameterization, get
from holdfast.results import write_atomically

FORMAT = "holdfast layer 1"


@checked
def save_layer(layer: AbstractRecurrent, path: str | Path) -> None:
    """Writes a DiagonalSSM, LRU or S4D as `fit_exponential_sum(...).to_layer()` makes them; `load_layer` reads it."""
    from safetensors.torch import save

    described = {"format": FORMAT, "layer": type(layer).__name__, "choices": json.dumps(_choices(layer))}
    tensors = {name: value.detach().contiguous() for name, value in layer.state_dict().items()}
    target = Path(path)
    if not target.absolute().parent.is_dir():
        raise ArgumentError(
            f"cannot write to path {target}: there is no folder {target.absolute().parent}; make it first"
        )
    write_atomically(target, save(tensors, metadata=described))


@checked
def load_layer(path: str | Path) -> AbstractRecurrent:
    """The layer that `save_layer` wrote, weights bit by bit."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
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
    if layer.backward_layer is not None or not isinstance(layer, DiagonalSSM | LRU | S4D):
        raise ArgumentError(f"only a DiagonalSSM, LRU or S4D in one direction is saved, came {type(layer).__name__}")
    f = layer.parameterization
    constants = {name: value for name, value in vars(f).items() if isinstance(value, float)}
    try:
        same = repr(get(f.key, time=f.time, **constants)) == repr(f)
    except ArgumentError:
        same = False
    if not same:
        raise ArgumentError(f"{f!r} is not one of the named parameterizations and cannot be saved with its weights")
    made: dict[str, Any] = {"parameterization": f.key, "time": f.time, "constants": constants}
    made |= {"features": layer.features, "state_size": layer.state_size}
    if isinstance(layer, DiagonalSSM):
        made |= {"dt": layer.dt, "discretization": layer.discretization, "activation": layer.activation}
        made |= {"bias": layer.b is not None, "out_features": layer.C.shape[0]}
    elif isinstance(layer, LRU):
        made |= {"normalize": layer.log_gamma is not None}
    else:
        made |= {"discretization": layer.discretization, "real": layer.frequency is None}
    return made


def _build(kind: str, choices: dict[str, Any], tensors: dict[str, torch.Tensor]) -> AbstractRecurrent:
    f = get(choices["parameterization"], time=choices["time"], **choices["constants"])
    features, size = choices["features"], choices["state_size"]
    w = tensors["w"]
    if not 0 < features * size <= sum(tensor.numel() for tensor in tensors.values()):
        raise ValueError(f"{features} features of {size} states are more than the weights that are there")
    with torch.random.fork_rng(devices=[]):
        layer = _constructed(kind, choices, f, f(w.double()), features, size)
    # the constructor may widen f's constants for these eigenvalues; the saved weights belong to the saved constants
    layer.parameterization = f
    return layer.to(w.dtype)


def _constructed(
    kind: str, choices: dict[str, Any], f: AbstractParameterization, lam: torch.Tensor, features: int, size: int
) -> DiagonalSSM | LRU | S4D:
    if kind == "DiagonalSSM":
        passed = {name: choices[name] for name in ("activation", "bias", "out_features", "time")}
        if choices["time"] == "continuous":
            passed |= {name: choices[name] for name in ("dt", "discretization")}
        return DiagonalSSM(features, size, parameterization=f, eigenvalues=lam, **passed)
    if kind == "LRU":
        values = torch.complex(lam, torch.zeros_like(lam))
        return LRU(features, size, parameterization=f, normalize=choices["normalize"], eigenvalues=values)
    if kind == "S4D":
        real = choices["real"]
        values = lam if real else torch.complex(lam, torch.zeros_like(lam))
        return S4D(
            features,
            size,
            initialization="real" if real else "lin",
            discretization=choices["discretization"],
            parameterization=f,
            eigenvalues=values,
        )
    raise ArgumentError(f"unknown kind of layer {kind!r}")
