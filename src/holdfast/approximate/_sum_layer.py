"""A layer whose kernel is an exponential sum, and its file."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast._arguments import checked
from holdfast._files import write_atomically
from holdfast._types import Time
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast.nn import LAYERS, AbstractRecurrent
from holdfast.nn._from_weights import complex_layer, diagonal_layer
from holdfast.nn._initial_weights import ReadOut
from holdfast.parameterizations import AbstractParameterization, get

FORMAT = "holdfast layer 2"


def sum_layer(
    rates: np.ndarray,
    coefficients: np.ndarray,
    parameterization: str | AbstractParameterization,
    *,
    time: Time,
    dt: float,
    dtype: torch.dtype | None,
    readout: ReadOut = "plain",
) -> AbstractRecurrent:
    """The layer of ExponentialSum.to_layer."""
    kind = dtype or torch.get_default_dtype()
    if not (math.isfinite(dt) and dt > 0):
        raise ArgumentError(f"dt must be a finite number above 0, got {dt!r}")
    if time not in ("continuous", "discrete"):
        raise ArgumentError(f"time must be 'continuous' or 'discrete', got {time!r}")
    if rates.dtype.kind != "c":
        lam = -rates if time == "continuous" else np.exp(-rates * dt)
        U, C = np.ones((len(rates), 1)), coefficients.real[None, :]
        # in discrete time dt is in the eigenvalues already
        step = dt if time == "continuous" else 1.0
        return diagonal_layer(
            lam, U, C, parameterization=parameterization, time=time, dt=step, dtype=kind, readout=readout
        )
    modes, weights = _one_of_each_pair(rates, coefficients.astype(np.complex128))
    lam = -modes if time == "continuous" else np.exp(-modes * dt)
    return complex_layer(lam, weights, parameterization=parameterization, time=time, dt=dt, dtype=kind, readout=readout)


def _one_of_each_pair(rates: np.ndarray, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Modes with Im >= 0 and doubled weights where the conjugate is there too, so that Re sums to the same kernel."""
    kept, weights = [], []
    left = list(range(len(rates)))
    while left:
        i = left.pop(0)
        # a fit gives pairs that differ by rounding
        partner = [j for j in left if np.isclose(rates[j], rates[i].conjugate(), rtol=1e-9, atol=0)]
        if rates[i].imag != 0 and partner:
            j = partner[0]
            left.remove(j)
            kept.append(rates[i])
            weights.append(coefficients[i] + coefficients[j].conjugate())
        else:
            kept.append(rates[i])
            weights.append(coefficients[i])
    return np.array(kept), np.array(weights)


@checked
def save_layer(layer: AbstractRecurrent, path: str | Path) -> None:
    """Writes a layer into one safetensors file: weights as tensors, and how to build it as metadata.

    Args:
        layer: a layer that says how it is built (`layer.choices()`), as `to_layer()` makes them.
        path: of the file, which `load_layer` reads; its folder must be there.

    Returns:
        None: the file stands at `path`, whole or not at all.

    Raises:
        ArgumentError: a path that is a folder or in a folder that does not exist, or a layer whose parameterization has no
            name or that is bidirectional.

    Example:
        >>> import pathlib, tempfile, holdfast
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     holdfast.approximate.save_layer(holdfast.nn.DiagonalSSM(1, 2), f"{folder}/layer.safetensors")
        ...     [path.name for path in pathlib.Path(folder).iterdir()]
        ['layer.safetensors']
    """
    from safetensors.torch import save

    described = {"format": FORMAT, "layer": type(layer).__name__, "choices": json.dumps(_choices(layer))}
    tensors = {name: value.detach().contiguous() for name, value in layer.state_dict().items()}
    target = Path(path)
    if target.is_dir():
        raise ArgumentError(
            f"path must be a file, got the folder {str(path)!r}; write for example {str(target / 'layer.safetensors')!r}"
        )
    if not os.path.isdir(target.absolute().parent):
        raise ArgumentError(
            f"cannot write to path {target}: the folder {target.absolute().parent} does not exist; create it first"
        )
    write_atomically(target, save(tensors, metadata=described))


@checked
def load_layer(path: str | Path) -> AbstractRecurrent:
    """The layer that `save_layer` wrote, weights bit by bit.

    Args:
        path: of the file.

    Returns:
        the layer, of the kind, shape and dtype that was saved, on the CPU.

    Raises:
        ArgumentError: a path where no file is, or a file that save_layer did not write.
        DamagedResultError: a file that is truncated, or whose metadata and weights do not belong together.

    Example:
        >>> import tempfile, torch, holdfast
        >>> layer = holdfast.nn.DiagonalSSM(1, 2, eigenvalues=torch.tensor([-0.5, -0.25]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     holdfast.approximate.save_layer(layer, f"{folder}/layer.safetensors")
        ...     holdfast.approximate.load_layer(f"{folder}/layer.safetensors").eigenvalues().tolist()
        [-0.5, -0.25]
    """
    from safetensors import SafetensorError, safe_open

    if not os.path.isfile(path):
        raise ArgumentError(f"path must be a file that save_layer wrote, got {path}, which does not exist")
    try:
        with safe_open(str(path), framework="pt") as file:
            described = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise DamagedResultError(
            f"{path} is not a complete safetensors file ({error}); save it again with save_layer"
        ) from error
    if described.get("format") != FORMAT:
        raise ArgumentError(
            f"path must be a file that save_layer wrote, got {path}, whose metadata lacks format = {FORMAT!r}"
        )
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
        raise ArgumentError("expected a layer in one direction, got a bidirectional one; save its state_dict() instead")
    choices = layer.choices()
    f = layer.boundary_form
    if not isinstance(f, AbstractParameterization) or not _is_named(f):
        raise ArgumentError(
            f"expected a layer with a named parameterization, got {f!r}; save the layer's state_dict() instead"
        )
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
        raise ValueError(f"{features} features of {size} states need more weights than the file holds")
    with torch.random.fork_rng(devices=[]):
        layer = LAYERS[kind](features, size, **choices)
    return layer.to(next(value.dtype for value in tensors.values() if value.is_floating_point()))
