"""
A transformers Mamba on a CPU
=============================

You learn: how much `holdfast.accelerate` speeds up a transformers Mamba, with equal losses.
Run time: about 20 s of CPU time, one thread.

The model is trained on Shakespeare by characters, before and after `holdfast.accelerate`.
The output has the losses and the times of both runs.
"""

import argparse
import copy
import time

import torch
import transformers

import holdfast
from holdfast.data import load_task


def train(model: torch.nn.Module, batches: list[torch.Tensor]) -> tuple[list[float], float]:
    """The losses of a training step on each batch, and CPU seconds for each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, begin = [], time.process_time()
    for tokens in batches:
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, (time.process_time() - begin) / len(batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", help="a text file; Shakespeare where none is named")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=128)
    choices = parser.parse_args()
    task = load_task("text", file=choices.text, length=choices.length)
    numbers = torch.arange(choices.steps * choices.batch).view(choices.steps, -1)
    batches = [task.batch("train", own).inputs for own in numbers]
    torch.manual_seed(0)
    config = transformers.MambaConfig(hidden_size=choices.hidden, num_hidden_layers=2, vocab_size=task.inputs.size)
    plain = transformers.MambaForCausalLM(config).train()
    fast = copy.deepcopy(plain)
    print("replaced:", ", ".join(holdfast.accelerate(fast).replaced))
    before, slow = train(plain, batches)
    after, quick = train(fast, batches)
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        print(f"step {i}: loss {a:.5f} as it was, {b:.5f} accelerated")
    print(f"CPU seconds per step: {slow:.3f} as it was, {quick:.3f} accelerated, {slow / quick:.1f} times faster")


if __name__ == "__main__":
    main()
