"""Checkpoints: tensors as safetensors, the rest as sealed JSON that names them, so that one is whole or absent.

Each kind of checkpoint ("last", "best") has two files of tensors in turn. The JSON, written last, names the newer one:
a kill or a full disk at any moment leaves the older one valid. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from holdfast._files import damage, open_seal, seal, verified, write_atomically
from holdfast.errors import ArgumentError, DamagedResultError

Which = Literal["last", "best"]
FORMAT = "holdfast checkpoint 2"
FILES = tuple(
    f"{which}{ending}" for which in ("last", "best") for ending in (".json", "-0.safetensors", "-1.safetensors")
)
MODEL, OPTIMIZER = "model.", "optimizer."
BUFFER = "buffer."  # before the name of one that is not part of the state dict


def advice(folder: Path) -> str:
    """What to do about a checkpoint that cannot be trusted."""
    return f"Start again in another folder, or move what you want to keep out of {folder} and delete it."


def write(folder: Path, which: Which, tensors: Mapping[str, Tensor], body: Mapping[str, Any]) -> None:
    """Writes a checkpoint, which replaces the one before; that stays valid until this one is complete."""
    name = f"{which}-1.safetensors" if _current(folder, which) == f"{which}-0.safetensors" else f"{which}-0.safetensors"
    # in memory first: its checksum is then that of what was meant, and not of what a failing disk kept
    content = save({key: _own(tensor) for key, tensor in tensors.items()})
    write_atomically(folder / name, content)
    entry = {"file": name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    write_atomically(folder / f"{which}.json", seal({"format": FORMAT, **body, "tensors": entry}))


def read_body(folder: Path, which: Which) -> dict[str, Any] | None:
    """What a checkpoint says beside its tensors; None where there is none."""
    path = folder / f"{which}.json"
    if not path.exists() and not path.is_symlink():
        return None
    body = open_seal(path, FORMAT, advice(folder))
    entry = body.get("tensors")
    # a name in a file is never trusted as a path: only those that we write are read
    known = isinstance(entry, dict) and entry.get("file") in FILES and type(entry.get("bytes")) is int
    if not known:
        raise DamagedResultError(damage(path, "it names no tensors of its own", advice(folder)))
    return body


def read_tensors(folder: Path, which: Which, body: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, checked against what its JSON says of them."""
    content = verified(folder, body["tensors"], f"{which}.json", advice(folder))
    try:
        # in one order: processes that share weights out among them must go through them alike
        return dict(sorted(load(content).items()))
    except (SafetensorError, ValueError, KeyError) as error:
        raise DamagedResultError(damage(folder / body["tensors"]["file"], str(error), advice(folder))) from None


def weights_of(model: nn.Module, *, everywhere: bool = False) -> dict[str, Tensor]:
    """All weights and buffers by name, those that are shared out put together: on the first process, or `everywhere`."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=not everywhere))
    weights = {MODEL + name: value for name, value in state.items() if isinstance(value, Tensor)}
    others = {BUFFER + name: value for name, (_, value, kept) in _buffers(model).items() if not kept}
    return weights | {name: value for name, value in others.items() if value is not None}


def optimizer_state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors by the names of the weights that they belong to, on the first process."""
    state = _nested(model, optimizer, everywhere=False).get("state", {})
    return {
        f"{OPTIMIZER}{name}:{key}": value
        for name, values in state.items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    }


def put_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Puts the weights and buffers of a checkpoint into the model."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    state: dict[str, Any] = {n.removeprefix(MODEL): value for n, value in tensors.items() if n.startswith(MODEL)}
    for name, (module, value, kept) in _buffers(model).items():
        if kept and value is None and name in state:  # made in the first forward, and so not in a new model
            _put_buffer(module, name, state[name], model)
        elif not kept:
            _put_buffer(module, name, tensors.get(BUFFER + name), model)
    check_weights(model, {name: describe(value) for name, value in state.items()})
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))


def _buffers(model: nn.Module) -> dict[str, tuple[nn.Module, Tensor | None, bool]]:
    """Every buffer by name: its module, its value, and whether it is part of the state dict."""
    return {
        f"{path}.{name}" if path else name: (module, value, name not in module._non_persistent_buffers_set)
        for path, module in model.named_modules()
        for name, value in module._buffers.items()
    }


def _put_buffer(module: nn.Module, path: str, value: Tensor | None, model: nn.Module) -> None:
    name = path.rpartition(".")[2]
    here = module._buffers[name]
    if here is not None and value is not None and describe(here) == describe(value) and here.is_contiguous():
        here.copy_(value)  # in place: two modules may share it
        return
    device = here.device if here is not None else next((p.device for p in model.parameters()), torch.device("cpu"))
    module._buffers[name] = None if value is None else value.to(device)


def put_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Puts the optimizer's tensors back; its settings are those of the config and stay."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    # an optimizer that has made no step has no averages; torch makes them here, for the names
    nested = _nested(model, optimizer, everywhere=True)
    averages: dict[str, dict[str, Any]] = {}
    for name, value in tensors.items():
        if name.startswith(OPTIMIZER):
            weight, _, key = name.removeprefix(OPTIMIZER).rpartition(":")
            if key not in nested["state"].get(weight, {}):
                raise ArgumentError(
                    f"expected a checkpoint of this optimizer, got one without {key} for {weight}; continue with the "
                    "optimizer that wrote it, or choose another folder"
                )
            averages.setdefault(weight, {})[key] = value
    # not strict: a weight that never had a gradient has no averages
    options = StateDictOptions(full_state_dict=True, strict=False)
    state: dict[str, Any] = {**nested, "state": averages}
    set_optimizer_state_dict(model, optimizer, state, options=options)


def _nested(model: nn.Module, optimizer: torch.optim.Optimizer, *, everywhere: bool) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=not everywhere)
    return get_optimizer_state_dict(model, optimizer, options=options)


def describe(value: Tensor) -> list[Any]:
    """Shape and dtype of a weight as plain values."""
    return [list(value.shape), str(value.dtype).removeprefix("torch.")]


def shapes_of(model: nn.Module) -> dict[str, list[Any]]:
    """Shape and dtype of everything in a model's state dict that is a tensor."""
    return {name: describe(value) for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def check_weights(model: nn.Module, saved: Mapping[str, list[Any]]) -> None:
    """Refuses weights that are not those of this model, and says where they first differ."""
    own = shapes_of(model)
    if own == dict(saved):
        return
    first = next(name for name in [*own, *saved] if own.get(name) != saved.get(name))
    there, here = saved.get(first), own.get(first)
    raise ArgumentError(
        f"expected a checkpoint of this model, whose {first} is {_words(here)}, got one in which it is {_words(there)}; build "
        "the model that was trained, or choose another folder"
    )


def _words(described: list[Any] | None) -> str:
    return "missing" if described is None else f"{described[1]} {tuple(described[0])}"


def _current(folder: Path, which: Which) -> str:
    """The file of tensors that must not be touched; any, where what is there cannot be trusted anyway."""
    try:
        body = read_body(folder, which)
    except DamagedResultError:
        return ""
    return "" if body is None else body["tensors"]["file"]


def _own(tensor: Tensor) -> Tensor:
    """Dense and with memory of its own: safetensors keeps no views, and takes no two names for one tensor."""
    return tensor.detach().cpu().contiguous().clone()
