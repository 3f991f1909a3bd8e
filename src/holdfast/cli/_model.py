"""MODEL on the command line: `FILE.py:NAME`, `package:NAME` or `hf:NAME-OR-FOLDER`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from torch import nn

from holdfast._factories import failure, load_factory, split_spec
from holdfast.cli._screen import visible
from holdfast.errors import ArgumentError
from holdfast.memory import huggingface
from holdfast.nn._acceleration import accelerate_quietly, mixers_of
from holdfast.nn._call_arguments import known_size

HELP = (
    "FILE.py:NAME or package:NAME, where NAME is a module or a function that returns one; "
    "or hf:NAME-OR-FOLDER, a transformers model."
)


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
    where, name = split_spec(spec)
    if where == "hf":
        return _from_transformers(name)
    model = _build(load_factory(spec), spec)
    if isinstance(model, nn.Module) and huggingface.token_table(model) is not None:
        return _adapted(spec, model, None, ())
    return LoadedModel(spec, model, known_size(model))


def _from_transformers(name: str) -> LoadedModel:
    if not os.path.isdir(Path(name).expanduser()):
        typer.echo(visible(f"{name!r} is no folder here: looking for that name on the Hugging Face hub"), err=True)
    loaded = huggingface.load(name)
    notes = ("the folder has no weights: they are random",) if loaded.random else ()
    return _adapted(f"hf:{name}", loaded.model, loaded.tokenizer, notes)


def _adapted(name: str, model: nn.Module, tokenizer: Any, notes: tuple[str, ...]) -> LoadedModel:
    """A transformers model, from embeddings to hidden states."""
    if huggingface.token_table(model) is None:
        raise ArgumentError(
            f"expected a model that reads tokens, got {name}, a {type(model).__name__}; wrap it in a module that maps (batch, "
            "time, features) to (batch, time, outputs), and give file.py:function"
        )
    fast = accelerate_quietly(model).replaced if mixers_of(model) else ()
    adapter = huggingface.FromEmbeddings(model)
    if fast:
        notes = (*notes, f"mixers that run on holdfast's kernels: {len(fast)}")
    return LoadedModel(name, adapter, adapter.input_size, tokenizer, model, notes, adapter.longest_input)


def _build(factory: Any, spec: str) -> Callable[..., Any]:
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise ArgumentError(
            f"{spec} is of type {type(factory).__name__}; expected a module or a function that returns one"
        )
    model = call_factory(factory, spec, wanted="be callable without arguments")
    if not callable(model):
        raise ArgumentError(f"{spec}() returned a {type(model).__name__}; expected a module or another callable")
    return model


def call_factory(factory: Callable[..., Any], spec: str, *arguments: Any, wanted: str) -> Any:
    """What the factory gives; an error tells a call that it does not take from a failure inside it."""
    try:
        inspect.signature(factory).bind(*arguments)
    except TypeError as error:
        raise ArgumentError(f"{spec} must {wanted}: {error}") from error
    except ValueError:
        pass  # some callables written in C have no signature
    try:
        return factory(*arguments)
    except Exception as error:
        raise failure(f"calling {spec}({', '.join(map(str, arguments))})", error) from error
