"""
LoRA on an accelerated, stabilized Mamba
========================================

You learn: how to train, save and merge LoRA adapters of an accelerated, stabilized Mamba.
Run time: about 13 s of CPU time, one thread.
A Mamba trained on Shakespeare learns film reviews with adapters only; transformers reads the result without holdfast.
"""

import argparse
import copy
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import MambaConfig, MambaForCausalLM

import holdfast
from holdfast.data import load_task
from holdfast.data._download import data_root
from holdfast.integrations import TrainingWatch


def train(model, task, steps: int, lr: float) -> TrainingWatch:
    """Some optimizer steps on windows of a text, watched."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    with TrainingWatch(model, optimizer, on_divergence="rollback", steps=steps) as watch:
        for step in range(steps):
            tokens = task.batch("train", torch.arange(4 * step, 4 * step + 4)).inputs
            loss = model(input_ids=tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            if watch.check(loss):
                optimizer.step()
    return watch


@torch.no_grad()
def loss_of(model, tokens) -> float:
    return float(model.eval()(input_ids=tokens, labels=tokens).loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    choices = parser.parse_args()
    shakespeare = load_task("text", unit="byte", length=128)
    reviews = data_root() / "movie-reviews" / "rt-polarity.pos"
    other = load_task("text", file=str(reviews), unit="byte", length=128)
    held_out = other.batch("valid", torch.arange(16)).inputs
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=256, hidden_size=64, state_size=8, num_hidden_layers=2, use_cache=False)
    model = MambaForCausalLM(config).train()
    holdfast.accelerate(model)
    train(model, shakespeare, choices.steps, lr=1e-2)
    base = copy.deepcopy(model)
    print(f"loss on reviews before: {loss_of(model, held_out):.3f}")

    holdfast.stabilize(model, "best")
    adapted = get_peft_model(model.train(), LoraConfig(r=8, target_modules=["in_proj", "x_proj"]))
    watch = train(adapted, other, choices.steps, lr=1e-2)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    after = loss_of(adapted, held_out)
    print(f"after {choices.steps} steps of adapters, {trained:,} of {adapted.num_parameters():,} weights: {after:.3f}")
    print(f"{len(watch.monitor.alarms)} alarms")

    with tempfile.TemporaryDirectory() as folder:
        adapted.save_pretrained(f"{folder}/adapter")
        loaded = PeftModel.from_pretrained(base, f"{folder}/adapter")
        adapted.merge_and_unload().save_pretrained(f"{folder}/merged")
        plain = MambaForCausalLM.from_pretrained(f"{folder}/merged")
        differences = [abs(loss_of(other, held_out) - after) for other in (loaded, plain)]
    print(
        f"differences of the loss: adapters loaded {differences[0]:.1e}, merged in plain transformers {differences[1]:.1e}"
    )


if __name__ == "__main__":
    main()
