"""A pretrained encoder, all of whose weights are fine-tuned to tell the sentiment of a sentence from its first token.

The paper's BERT is read there. A head on a frozen encoder, and the mean over the tokens, are in `_sentiment`: one more copy of
a word changes a mean the less the more there are, whatever the encoder remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.data import ArrayTask
from holdfast.memory.huggingface import Loaded, TokenScore
from holdfast_papers.experiments import _runs
from holdfast_papers.experiments._training import trained
from holdfast_papers.experiments.base import Arrays, Config, Work
from holdfast_papers.experiments.iat import _sentiment

LONGEST = 48  # tokens of a sentence, as the LSTMs read


class Tuned(nn.Module):
    """Two scores from the first token of an encoder.

    Args:
        loaded: the encoder and its tokenizer.
    """

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        self.read = TokenScore(loaded.model, loaded.tokenizer, output="first")
        about: Any = loaded.model.config
        self.head = nn.Linear(about.hidden_size, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Scores (batch, 2) of padded rows of tokens (batch, time)."""
        rows = [row[:length].tolist() for row, length in zip(tokens, lengths.tolist(), strict=True)]
        return self.head(self.read(rows))

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, the first of the encoder's own among them."""
        return self.read.ids(text)


def tuned(config: Config, work: Work) -> Arrays:
    """Accuracy and memory curves of the encoder, fine-tuned with the unit's seed.

    Args:
        config: of the unit.
        work: the unit's.
    """
    torch.manual_seed(config["seed"])
    model = Tuned(_sentiment.loaded())
    settings = {
        "lr": config["tune_lr"], "batch": config["tune_batch"], "epochs": config["tune_epochs"], "weight_decay": 0.01,
        "seed": config["seed"], "monitor_every": 10, "clip": 1.0,
    }  # fmt: skip
    done = trained(model, _task(model, config), settings, work, part=(0.0, 0.9))
    model.eval()

    def score(texts: list[str]) -> Tensor:
        return _sentiment.difference(model.head(model.read(texts)))

    accuracy = done.metrics.get("test", {}).get("accuracy", 0.0)
    return {
        **_runs.outcome(done, work),
        "accuracy": np.array([accuracy]),
        **{k: v[None] for k, v in _sentiment.memory_of(score, config["copies"]).items()},
    }


def _task(model: Tuned, config: Config) -> ArrayTask:
    """The first `read` sentences of each split as tokens of the encoder, padded."""
    parts = []
    for texts, labels in _sentiment.texts_of(config)[0].values():
        rows = [model.ids(text)[:LONGEST] for text in texts[: config["read"]]]
        parts.append((*_padded(rows), labels[: config["read"]]))
    return ArrayTask(*((x, y, lengths) for x, lengths, y in parts), kind="classify", name="encoder's tokens")


def _padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows]), torch.tensor([len(row) for row in rows])
