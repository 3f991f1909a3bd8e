"""
A faster LSTM and GRU on a CPU
==============================

You learn: how much faster a model with torch.nn.LSTM or GRU trains after `holdfast.accelerate`, and that nothing else
changes.
Run time: about 60 s of CPU time, one thread.

A character-level language model with torch's layer is trained on Python's manual, 4 windows of 512 characters at a time.
The same model is trained again after `accelerate`. The losses agree up to rounding, and the state dict is the same;
`restore()` restores torch's code.
"""

import argparse
import pydoc_data.topics
import time

import torch
from torch import nn
from torch.nn import functional

import holdfast


class Characters(nn.Module):
    """Embedding, LSTM or GRU, readout: a user's model."""

    def __init__(self, cell, symbols, width):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.cell = cell(width, width, batch_first=True)
        self.readout = nn.Linear(width, symbols)

    def forward(self, tokens):
        return self.readout(self.cell(self.embed(tokens))[0])


def train(model, windows, epochs, lr=3e-3):
    """The loss of every optimizer step, and the seconds of each epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses, seconds = [], []
    for _ in range(epochs):
        began = time.perf_counter()
        for batch in windows.split(4):
            loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    return losses, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--windows", type=int, default=160)
    options = parser.parse_args()
    text = " ".join(pydoc_data.topics.topics.values())[: options.windows * 513]
    symbols = sorted(set(text))
    windows = torch.tensor([symbols.index(c) for c in text]).view(-1, 513)
    for cell in (nn.LSTM, nn.GRU):
        losses, best = {}, {}
        for name in ("torch", "accelerated"):
            torch.manual_seed(0)
            model = Characters(cell, len(symbols), 64)
            if name == "accelerated":
                holdfast.accelerate(model)
            losses[name], seconds = train(model, windows, options.epochs)
            best[name] = min(seconds)
            first, last = losses[name][0], losses[name][-1]
            print(f"{cell.__name__:4s} {name:11s} loss {first:.4f} -> {last:.4f}, {best[name]:.2f} s per epoch")
        apart = max(abs(a - b) for a, b in zip(losses["torch"], losses["accelerated"], strict=True))
        print(f"     largest difference of a loss {apart:.1e}, {best['torch'] / best['accelerated']:.1f} times faster")


if __name__ == "__main__":
    main()
