"""Transformers models as models to measure: embeddings in for causal ones, repeated tokens for the others."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, BackendError

VOCABULARY_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)
# without a word transformers asks on the terminal, and a "yes" there runs the repository's own code
LOADING_OPTIONS = {"trust_remote_code": False}
Reading = Literal["pooled", "first", "last", "logits"]


def require_transformers() -> Any:
    """The transformers package, or an error that says how to get it."""
    try:
        import transformers
    except ImportError as error:
        raise BackendError("this needs transformers: pip install 'holdfast[hf]'") from error
    return transformers


@dataclass(frozen=True)
class Loaded:
    """A transformers model that was loaded from a name or a folder.

    Args:
        model: the model, in evaluation mode.
        tokenizer: its tokenizer; None where there is none.
        random: whether its weights are random, since the folder held none.
    """

    model: nn.Module
    tokenizer: Any | None
    random: bool


@checked
def load(name: str) -> Loaded:
    """The transformers model called `name`, or the one in the folder of that name.

    A folder with a config.json and no weights gives random weights. No code from the repository is run; weights are
    safetensors, or files that torch.load reads with weights_only.

    Args:
        name: a model's name on the Hugging Face hub, or a folder.
    """
    transformers = require_transformers()
    folder = Path(name).expanduser()
    source = folder if folder.is_dir() else name
    with _quiet_hub():
        return _load(transformers, name, source)


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Without the hub's lines about each try: where all fail, the error says it once."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _load(transformers: Any, name: str, source: str | Path) -> Loaded:
    folder = Path(source)
    try:
        if folder.is_dir() and not any(list(folder.glob(f"*.{ending}*")) for ending in ("safetensors", "bin")):
            config = transformers.AutoConfig.from_pretrained(folder, **LOADING_OPTIONS)
            model, random = transformers.AutoModel.from_config(config, **LOADING_OPTIONS), True
        else:
            model, random = transformers.AutoModel.from_pretrained(source, weights_only=True, **LOADING_OPTIONS), False
    except pickle.UnpicklingError as error:
        raise ArgumentError(
            f"the weights of {name!r} are a pickle that holds more than tensors, and loading it could run code; look for a "
            "repository with safetensors, or, if you trust the file, convert it: "
            "model.save_pretrained(folder, safe_serialization=True)"
        ) from error
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        if folder.is_dir():
            wanted = "the folder must hold config.json and, unless the weights are to be random, model.safetensors"
            raise ArgumentError(f"transformers could not load the folder {name!r}: {reason} ({wanted})") from error
        advice = "check the name and the network; without a network, give a folder: hf:path/to/folder"
        raise ArgumentError(f"transformers could not load the model {name!r}: {reason} ({advice})") from error
    return Loaded(model.eval(), _tokenizer(transformers, source), random)


def _tokenizer(transformers: Any, source: str | Path) -> Any | None:
    # without a vocabulary transformers makes a tokenizer that knows no word and reads every text as unknown
    if isinstance(source, Path) and not any((source / file).exists() for file in VOCABULARY_FILES):
        return None
    try:
        return transformers.AutoTokenizer.from_pretrained(source, **LOADING_OPTIONS)
    except (OSError, ValueError, KeyError):
        return None  # a bare config has no vocabulary; token ids still work


def token_table(model: nn.Module) -> nn.Embedding | None:
    """The embeddings of a transformers model's tokens; None where it reads none, as models of sound and images.

    Args:
        model: any module.
    """
    try:
        table = getattr(model, "get_input_embeddings", lambda: None)()
    except NotImplementedError:  # transformers' word for models without one
        return None
    return table if isinstance(table, nn.Embedding) else None


class FromEmbeddings(nn.Module):
    """A transformers model as (batch, time, hidden) -> (batch, time, hidden): inputs are embeddings, no cache.

    Args:
        model: a transformers model that takes `inputs_embeds`.
    """

    @checked
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def input_size(self) -> int:
        """The size of the embeddings, which is the input_size of `memory_function`."""
        embeddings: Any = self.model.get_input_embeddings
        return int(embeddings().embedding_dim)

    @property
    def longest_input(self) -> int | None:
        """The number of positions that the model has embeddings for; None where it has none."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def forward(self, x: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch time outputs"]:
        """The last hidden states (batch, time, hidden) for embeddings x (batch, time, features)."""
        body: Any = getattr(self.model, "base_model", self.model)  # logits of a large vocabulary would fill the memory
        out = body(inputs_embeds=x, **({"use_cache": False} if hasattr(self.model.config, "use_cache") else {}))
        return out.last_hidden_state if hasattr(out, "last_hidden_state") else out[0]


class TokenScore(nn.Module):
    """Scores lists of token ids or texts, as `repeated_input_memory` expects it.

    Inputs are right-padded with an attention mask, so that a causal model's last real position does not see the
    padding.

    Args:
        model: a transformers model that takes `input_ids` and `attention_mask`.
        tokenizer: turns texts into ids; None where only ids are scored.
        output: what is read: "pooled" is the mean over real positions, as sentence encoders have it; "first" and "last"
            are that position; "logits" are the model's logits, at the last position if it has one row for each.
        normalize: scale the score to length 1.
        add_special_tokens: let the tokenizer add its special tokens.
    """

    batched = True

    @checked
    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any | None = None,
        *,
        output: Reading = "pooled",
        normalize: bool = False,
        add_special_tokens: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.output, self.normalize, self.special = output, normalize, add_special_tokens

    def forward(self, inputs: list[Any]) -> Float[Tensor, "rows outputs"]:
        """The scores (rows, outputs) of a list of inputs, each a text or a list of token ids."""
        rows = [self.ids(item) for item in inputs]
        width = max(len(row) for row in rows)
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and width > limit:
            raise ArgumentError(
                f"{width} tokens are more than the model's {limit} positions; repeat the item less often"
            )
        device = next(self.model.parameters()).device
        ids = torch.tensor([row + [self._padding()] * (width - len(row)) for row in rows], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
        out = self.model(input_ids=ids, attention_mask=mask)
        read = self._read(out, mask)
        return nn.functional.normalize(read, dim=-1) if self.normalize else read

    def _read(self, out: Any, mask: Tensor) -> Tensor:
        if self.output == "logits":
            if not hasattr(out, "logits"):
                raise ArgumentError(
                    "output='logits' needs a model with logits, got one without; use 'pooled', 'first' or 'last'"
                )
            return out.logits if out.logits.ndim == 2 else self._at_end(out.logits, mask)
        hidden = out.last_hidden_state if hasattr(out, "last_hidden_state") else out[0]
        if self.output == "first":
            return hidden[:, 0]
        if self.output == "last":
            return self._at_end(hidden, mask)
        # padding has outputs too: only real positions enter the mean
        weight = mask.unsqueeze(-1).to(hidden)
        return (hidden * weight).sum(1) / weight.sum(1)

    @staticmethod
    def _at_end(hidden: Tensor, mask: Tensor) -> Tensor:
        return hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(1) - 1]

    def ids(self, item: Any) -> list[int]:
        """The token ids of `item`: of a text, with the special tokens if asked for, or the ids themselves."""
        if isinstance(item, str):
            if self.tokenizer is None:
                raise ArgumentError("text needs a tokenizer, got none; pass tokenizer=, or token ids instead of text")
            return list(self.tokenizer(item, add_special_tokens=self.special)["input_ids"])
        return [int(i) for i in item]

    def _padding(self) -> int:
        token = getattr(self.tokenizer, "pad_token_id", None)
        token = getattr(self.model.config, "pad_token_id", None) if token is None else token
        return 0 if token is None else int(token)
