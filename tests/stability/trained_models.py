"""Models trained in seconds on real data (HOLDFAST_DATA), for tables that need trained models which no package carries.

Each comes with inputs and targets of its task, as `diagnose(data=)` takes them.
"""

import gzip
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

STEPS = 400  # of Adam
RATE = 3e-3
BATCH = 32


@dataclass(frozen=True)
class Trained:
    """A model, sequences of its task, and whether targets are classes."""

    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor


class Net(nn.Module):
    """An embedding where tokens are read, a recurrence, and a linear layer."""

    def __init__(self, recurrence, outputs, tokens=None):
        super().__init__()
        self.embedding = None if tokens is None else nn.Embedding(tokens, recurrence.input_size)
        self.rnn = recurrence
        self.head = nn.Linear(recurrence.hidden_size, outputs)

    def forward(self, x):
        return self.head(self.rnn(x if self.embedding is None else self.embedding(x))[0])


def data(*parts):
    return Path(os.environ["HOLDFAST_DATA"]).joinpath(*parts)


def characters(length=160):
    """Shakespeare in rows, and the next character of each."""
    text = data("shakespeare", "input.txt").read_text(encoding="utf-8")[:400_000]
    table = {letter: k for k, letter in enumerate(sorted(set(text)))}
    ids = torch.tensor([table[letter] for letter in text])
    rows = (len(ids) - 1) // length
    return (
        ids[: rows * length].reshape(rows, length),
        ids[1 : rows * length + 1].reshape(rows, length),
        len(table),
    )


def words(length=64, known=500):
    """WikiText-2 in rows of the commonest words, and the next word of each."""
    read = data("wikitext-2", sorted(os.listdir(data("wikitext-2")))[-1]).read_text(encoding="utf-8").split()[:100_000]
    names, counts = np.unique(read, return_counts=True)
    table = {name: k + 1 for k, name in enumerate(names[np.argsort(-counts)][: known - 1])}
    ids = torch.tensor([table.get(word, 0) for word in read])
    rows = (len(ids) - 1) // length
    return ids[: rows * length].reshape(rows, length), ids[1 : rows * length + 1].reshape(rows, length), known


def images(count=4000):
    """MNIST by rows of pixels, several images one behind the other, and the digit to be reported at each row."""
    (folder,) = {path.parent for path in data("mnist").rglob("train-images*")}
    with gzip.open(next(folder.glob("train-images*"))) as file:
        pixels = np.frombuffer(file.read(16 + count * 784), np.uint8, count * 784, 16).reshape(count, 28, 28)
    with gzip.open(next(folder.glob("train-labels*"))) as file:
        labels = np.frombuffer(file.read(8 + count), np.uint8, count, 8).astype(np.int64)
    x = torch.from_numpy(pixels.astype(np.float32) / 255).reshape(-1, 4 * 28, 28)
    y = torch.from_numpy(labels).repeat_interleave(28).reshape(-1, 4 * 28)
    return x, y, 10


def waves(length=200):
    """The next row of pixels of MNIST images one behind the other, by the mean of its columns: a forecast of numbers."""
    x, _, _ = images()
    series = x.mean(-1).flatten()
    rows = (len(series) - 1) // length
    return (
        series[: rows * length].reshape(rows, length, 1),
        series[1 : rows * length + 1].reshape(rows, length, 1),
        None,
    )


def train(model, x, y, seed=0, steps=STEPS):
    """Adam with clipped gradients on random rows."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        value = loss(model, x[rows], y[rows])
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def loss(model, x, y):
    """Cross entropy of classes, mean square of numbers."""
    out = model(x)
    out = out[0] if isinstance(out, tuple) else out
    if y.is_floating_point():
        return nn.functional.mse_loss(out, y)
    return nn.functional.cross_entropy(out.flatten(0, 1), y.flatten())


def trained(recurrence, make, steps=STEPS):
    torch.manual_seed(0)
    x, y, classes = make()
    tokens = None if x.is_floating_point() else classes
    size = 24 if tokens else x.shape[2]
    model = Net(recurrence(size), classes or 1, tokens)
    held = max(8, len(x) // 10)
    return Trained(train(model, x[:-held], y[:-held], steps=steps), x[-held:], y[-held:])


# ended early, so that something is left to advise
EARLY = {
    "LSTM 48, digits, 60 steps": lambda: trained(lambda n: nn.LSTM(n, 48, batch_first=True), images, 60),
    "tanh RNN 32, forecast, 60 steps": lambda: trained(lambda n: nn.RNN(n, 32, batch_first=True), waves, 60),
    "GRU 64, characters, 60 steps": lambda: trained(lambda n: nn.GRU(n, 64, batch_first=True), characters, 60),
}
MODELS = {
    "GRU 64, characters": lambda: trained(lambda n: nn.GRU(n, 64, batch_first=True), characters),
    "LSTM 64, words": lambda: trained(lambda n: nn.LSTM(n, 64, batch_first=True), words),
    "LSTM 48, digits by rows": lambda: trained(lambda n: nn.LSTM(n, 48, batch_first=True), images),
    "tanh RNN 32, forecast": lambda: trained(lambda n: nn.RNN(n, 32, batch_first=True), waves),
}
