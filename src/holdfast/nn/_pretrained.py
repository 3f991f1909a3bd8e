"""Models in a folder: `config.json` with the arguments that they are built with, `model.safetensors` with their weights.

The two names are those of Hugging Face's hub, from where such a folder is read too.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast._files import write_atomically
from holdfast.errors import ArgumentError, BackendError, DamagedResultError
from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._loading import built_around
from holdfast.parameterizations import AbstractParameterization

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class Pretrained(nn.Module):
    """A model that is saved with how it was built; `arguments` are those of its constructor."""

    arguments: dict[str, Any]

    @checked
    def save_pretrained(self, folder: str | Path, *, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Writes `config.json` and `model.safetensors`, which `from_pretrained` reads, and a model card where there is none.

        The card, `README.md`, has the margin and the time constants of each recurrence. Weights that were tied by hand are
        written once for each name, and are no longer tied when they are read.

        Args:
            folder: where they go; it is made where it is missing.
            state_dict: weights to write; None is `self.state_dict()`.
        """
        from safetensors.torch import save

        from holdfast.nn._model_card import CARD, model_card  # the views know all layers, and models are made of these

        config = json.dumps({"model": type(self).__name__, "arguments": _plain(self)}, indent=2)
        weights = self.state_dict() if state_dict is None else state_dict
        target = Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ArgumentError(
                f"folder must be a folder, got {target}, which is a file or inside a file; choose another"
            ) from None
        tensors = _apart(weights)
        # weights first: a folder with a config promises that its weights are whole
        write_atomically(target / WEIGHTS, save(tensors, metadata={"format": "pt"}))
        write_atomically(target / CONFIG, config.encode())
        # a card of the user's own stays; that of other weights than the model's would not be true
        if state_dict is None and not (target / CARD).exists():
            write_atomically(target / CARD, model_card(self, type(self).__name__).encode())

    @classmethod
    def from_pretrained(cls, source: str | Path, *, revision: str | None = None) -> Self:
        """The model that `save_pretrained` wrote, weights bit by bit.

        Args:
            source: its folder, or the name of a repository on Hugging Face's hub ("user/model"), for which
                huggingface_hub has to be installed.
            revision: branch, tag or commit of that repository.
        """
        from safetensors.torch import load_file

        if not isinstance(source, str | Path):
            raise ArgumentError(f"from_pretrained: source must be a folder or the name of a repository, got {source!r}")
        folder = Path(source) if Path(source).is_dir() else _downloaded(str(source), revision)
        arguments = cls._read_config(folder / CONFIG)
        try:
            weights = load_file(folder / WEIGHTS)
            # a config from the hub is not trusted: it may ask for more memory than there is
            with built_around(weights.values()):
                model = cls(**arguments)
            # assigned, not copied: the model was built without memory
            model.load_state_dict(weights, assign=True)
        except Exception as error:
            raise DamagedResultError(
                f"{folder} does not hold a complete {cls.__name__} ({type(error).__name__}: {error}); save it again with "
                "save_pretrained"
            ) from error
        return model

    def push_to_hub(self, repository: str, **options: Any) -> Any:
        """Saves the model into a repository on Hugging Face's hub, which is made where it is missing.

        Args:
            repository: its name, "user/model".
            options: keyword arguments of `huggingface_hub.HfApi.upload_folder`, such as `commit_message`.
        """
        from tempfile import TemporaryDirectory

        api = _hub(repository).HfApi()
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            api.create_repo(repository, exist_ok=True)
            return api.upload_folder(repo_id=repository, folder_path=folder, **options)

    @classmethod
    def _read_config(cls, path: Path) -> dict[str, Any]:
        try:
            config = json.loads(path.read_text())
            kind, arguments = config["model"], dict(config["arguments"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedResultError(
                f"{path} is not a config.json of save_pretrained ({type(error).__name__}: {error}); give a folder that "
                "save_pretrained wrote, or save the model again"
            ) from error
        if kind != cls.__name__:
            raise ArgumentError(f"{path} describes a {kind}, not a {cls.__name__}; call {kind}.from_pretrained")
        return arguments


@dataclass(frozen=True)
class Unwritable:
    """In the place of an argument that JSON does not hold, such as a function: a model with it is still pickled."""

    text: str


def arguments_of(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor from its `locals()`, those of `**options` among them, `device` and `dtype` not."""
    known = inspect.signature(scope["__class__"].__init__).parameters  # the class that it is written in, not a heir's
    named = {name: scope[name] for name in known if name not in ("self", "options", "device", "dtype")}
    return {name: _writable(value) for name, value in {**named, **scope.get("options", {})}.items()}


def _writable(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return Unwritable(repr(value))


def _plain(model: Pretrained) -> dict[str, Any]:
    """The arguments as JSON; a parameterization by the name that the layers have now."""
    arguments = dict(model.arguments)
    layers = [module for module in model.modules() if isinstance(module, AbstractRecurrent)]
    # `stabilize` may have changed it since the model was built
    forms = {form.key for form in (x.boundary_form for x in layers) if isinstance(form, AbstractParameterization)}
    if len(forms) == 1 and all(isinstance(x.boundary_form, AbstractParameterization) for x in layers):
        arguments["parameterization"] = forms.pop()
    for name, value in arguments.items():
        if isinstance(value, Unwritable):
            raise ArgumentError(
                f"{type(model).__name__}: {name}={value.text} cannot be written into {CONFIG}; build the model with names "
                "and numbers, or save its state_dict()"
            )
    return arguments


def _apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each weight in memory of its own, which the file needs."""
    seen: set[int] = set()
    tensors = {}
    for name, value in weights.items():
        own = value.detach().contiguous()
        # safetensors refuses two names for one memory
        place = own.untyped_storage().data_ptr()
        tensors[name] = own.clone() if place in seen else own
        seen.add(place)
    return tensors


def _downloaded(repository: str, revision: str | None) -> Path:
    # what cannot be a repository is a folder that was mistyped: no network for that
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repository) or repository.startswith("."):
        raise ArgumentError(
            f"source must be a folder that save_pretrained wrote, or the name of a repository, got {repository}; check the path"
        )
    hub = _hub(repository)
    try:
        return Path(hub.snapshot_download(repository, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))
    except Exception as error:
        raise ArgumentError(
            f"source must be a folder or the name of a repository, got {repository}: no such folder exists, and Hugging Face's "
            f"hub returned no such repository ({type(error).__name__}: {error}); give a folder that save_pretrained wrote"
        ) from error


def _hub(repository: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise BackendError(
            f"there is no folder {repository}, and loading a repository from Hugging Face's hub needs huggingface_hub: pip "
            "install huggingface_hub"
        ) from None
    return huggingface_hub
