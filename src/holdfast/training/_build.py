"""The model of a config file: one of ours for the task at hand, or the user's own by `file.py:factory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from holdfast._arguments import annotations_of
from holdfast.data._base import AbstractTask
from holdfast.errors import ArgumentError, unknown_name
from holdfast.nn import LanguageModel, SequenceClassifier, SequenceModel
from holdfast.nn._stack import LAYERS

KINDS: dict[str, Callable[..., nn.Module]] = {
    "classifier": SequenceClassifier,
    "sequence": SequenceModel,
    "language": LanguageModel,
}
# what the task decides: not to be set in a file
_TASK_ARGUMENTS = {"features", "classes", "out_features", "vocabulary", "options", "self"}
_LAYER_ARGUMENTS = {"self", "features", "state_size", "eigenvalues", "W", "out_features"}


class Embedded(nn.Module):
    """A model of real inputs behind a table of vectors, one for each token.

    Args:
        vocabulary: number of tokens.
        width: size of a vector.
        model: takes (batch, time, width).
    """

    def __init__(self, vocabulary: int, width: int, model: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.model = model

    def forward(self, tokens: Tensor, *, lengths: Tensor | None = None, **how: Any) -> Any:
        """The model's outputs for `tokens` (batch, time), up to `lengths`."""
        return self.model(self.embedding(tokens), lengths=lengths, **how)


def build_model(
    task: AbstractTask, given: Mapping[str, Any], *, seed: int, factory: Callable[..., Any] | None = None
) -> nn.Module:
    """The model that a [model] table describes, with weights drawn by the seed.

    Args:
        task: decides the number of inputs and outputs.
        given: the table: `kind` and the arguments of that model and of its layer; or those of the user's `factory`.
        seed: of the weights.
        factory: the user's own, called with `inputs`, `outputs` and the table's other keys.
    """
    options = {key: value for key, value in given.items() if key not in ("kind", "factory")}
    # the weights follow from the run's seed alone, and the caller's random numbers continue undisturbed
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if factory is not None:
            return _own(factory, task, options)
        return _ours(task, given.get("kind") or default_kind(task), options)


def default_kind(task: AbstractTask) -> str:
    """The kind of model that suits a task."""
    return {"classify": "classifier", "regress": "sequence", "predict": "language"}[task.kind]


def model_keys(kind: str, layer: str) -> dict[str, Any]:
    """The keys of [model] for a kind and a layer, with the annotation of the argument that each stands for."""
    if kind not in KINDS:
        raise unknown_name("model.kind", kind, KINDS)
    if layer not in LAYERS:
        raise unknown_name("model.layer", layer, LAYERS)
    more: list[Any] = [SequenceModel] if kind == "classifier" else []
    sources = [KINDS[kind], *more, LAYERS[layer]]
    known: dict[str, Any] = {}
    for source in sources:
        hidden = _LAYER_ARGUMENTS if source is LAYERS[layer] else _TASK_ARGUMENTS
        known |= {n: a for n, a in annotations_of(source).items() if n not in hidden and n not in known}
    return known


def check_model_keys(given: Mapping[str, Any], kind: str) -> None:
    """Refuses a key of [model] that nothing takes."""
    layer = given.get("layer", "s4d")
    known = {"kind", "factory", *model_keys(kind, layer if isinstance(layer, str) else "s4d")}
    for key in given:
        if key not in known:
            raise unknown_name("key in [model]", key, sorted(known))


def _ours(task: AbstractTask, kind: str, options: dict[str, Any]) -> nn.Module:
    check_model_keys(options, kind)
    if "width" not in options:
        raise ArgumentError("[model] needs width, the number of features inside the model; add it, as width = 64")
    width, tokens = options.pop("width"), task.inputs.kind == "tokens"
    if kind == "language":
        if not tokens:
            raise ArgumentError(
                f"model.kind = 'language' needs a task with tokens, got {task.name} with {task.inputs.size} real features; use "
                f"model.kind = {default_kind(task)!r}"
            )
        return LanguageModel(max(task.inputs.size, task.outputs.size), width, **options)
    if (kind == "classifier") != (task.kind == "classify"):
        raise ArgumentError(f"the task {task.name} is of kind {task.kind!r}; use model.kind = {default_kind(task)!r}")
    features = width if tokens else task.inputs.size
    made: nn.Module
    if kind == "classifier":
        made = SequenceClassifier(features, task.outputs.size, width, **options)
    else:
        made = SequenceModel(features, width, out_features=task.outputs.size, **options)
    return Embedded(task.inputs.size, width, made) if tokens else made


def _own(factory: Callable[..., Any], task: AbstractTask, options: dict[str, Any]) -> nn.Module:
    try:
        made = factory(inputs=task.inputs.size, outputs=task.outputs.size, **options)
    except TypeError as error:
        raise ArgumentError(
            f"the factory must take inputs={task.inputs.size}, outputs={task.outputs.size} and the other keys of "
            f"[model], got one that failed: {error}"
        ) from error
    if not isinstance(made, nn.Module):
        raise ArgumentError(f"the factory must return an nn.Module, got {type(made).__name__}")
    return made
