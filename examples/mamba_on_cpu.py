"""A transformers Mamba that trains on a CPU: the same losses before and after `holdfast.accelerate`, and both times."""

import argparse
import copy
import time

import torch
import transformers

import holdfast


def text(length: int, batch: int = 2) -> torch.Tensor:
    """Letters of a sentence over and over, from different places: something that can be learned in a few steps."""
    letters = [ord(c) % 64 for c in "to be, or not to be, that is the question: "]
    rows = [torch.tensor(letters[i:] + letters[:i]).repeat(length // len(letters) + 1)[:length] for i in range(batch)]
    return torch.stack(rows)


def train(model: torch.nn.Module, tokens: torch.Tensor, steps: int) -> tuple[list[float], float]:
    """The losses of some training steps, and seconds for each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, begin = [], time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, (time.perf_counter() - begin) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    choices = parser.parse_args()
    torch.manual_seed(0)
    config = transformers.MambaConfig(hidden_size=choices.hidden, num_hidden_layers=2, vocab_size=64)
    plain = transformers.MambaForCausalLM(config).train()
    fast = copy.deepcopy(plain)
    print("replaced:", ", ".join(holdfast.accelerate(fast).replaced))
    tokens = text(choices.length)
    before, slow = train(plain, tokens, choices.steps)
    after, quick = train(fast, tokens, choices.steps)
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        print(f"step {i}: loss {a:.5f} as it was, {b:.5f} accelerated")
    print(f"seconds a step: {slow:.3f} as it was, {quick:.3f} accelerated, {slow / quick:.1f} times faster")


if __name__ == "__main__":
    main()
