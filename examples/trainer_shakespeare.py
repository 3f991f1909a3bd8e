"""
transformers' Trainer on Shakespeare, watched
=============================================

A small Mamba learns characters by the Trainer of transformers: as it is, then
accelerated, stabilised and watched, then interrupted and resumed.
"""

import argparse
import time
from pathlib import Path

import torch
from transformers import MambaConfig, MambaForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

import holdfast
from holdfast.data import load_task
from holdfast.integrations.transformers import attach


class StopAt(TrainerCallback):
    """Interrupts a run."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step >= self.step


def trainer_of(task, folder, choices, steps: int, fast: bool) -> Trainer:
    """A Trainer with a new Mamba; the same weights and the same batches every time."""
    torch.manual_seed(0)
    sizes = {"hidden_size": choices.hidden, "state_size": 8, "num_hidden_layers": 2}
    model = MambaForCausalLM(MambaConfig(vocab_size=task.inputs.size, use_cache=False, **sizes))
    if fast:
        holdfast.accelerate(model)
        holdfast.stabilize(model, "best")
    windows = task.batch("train", torch.arange(8 * steps)).inputs
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=4, max_steps=steps, learning_rate=1e-2, weight_decay=0.1, use_cpu=True,
        save_steps=max(1, steps // 2), logging_steps=10, report_to=choices.report_to, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in windows])
    trainer.remove_callback(PrinterCallback)
    return trainer


def seconds_of(trainer: Trainer, **how) -> float:
    """CPU seconds per optimizer step."""
    done, begin = trainer.state.global_step, time.process_time()
    trainer.train(**how)
    return (time.process_time() - begin) / (trainer.state.global_step - done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=Path("runs/shakespeare"))
    parser.add_argument("--report-to", nargs="*", default=[], help="such as tensorboard")
    choices = parser.parse_args()
    task = load_task("text", length=choices.length)
    held_out = task.batch("valid", torch.arange(4)).inputs

    slow = trainer_of(task, choices.folder / "plain", choices, 4, fast=False)
    before = seconds_of(slow)

    trainers = {}
    for name, stop in (("whole", choices.steps), ("part", choices.steps // 2), ("rest", choices.steps)):
        folder = choices.folder / ("whole" if name == "whole" else "cut")
        trainer = trainer_of(task, folder, choices, choices.steps, fast=True)
        attach(trainer, "rollback", recurrent_lr="auto", memory=200, inputs=held_out, folder=f"{folder}-watch")
        trainer.add_callback(StopAt(stop))
        after = seconds_of(trainer, resume_from_checkpoint=name == "rest")
        trainers[name] = trainer

    print(f"CPU seconds per step: {before:.3f} as it was, {after:.3f} accelerated and watched: {before / after:.1f} times")
    log = trainers["whole"].state.log_history
    losses = [line["loss"] for line in log if "loss" in line]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {choices.steps} steps")
    logged = sorted({key.rsplit("/", 1)[-1] for line in log for key in line if key.startswith("holdfast/")})
    print("logged:", ", ".join(logged))
    memory = [line["holdfast/memory"] for line in log if "holdfast/memory" in line]
    print(f"steps that an input of held-out text is kept: {memory[0]:.0f} -> {memory[-1]:.0f}")
    whole, rest = ([p.detach() for p in trainers[name].model.parameters()] for name in ("whole", "rest"))
    difference = max(float((a - b).abs().max()) for a, b in zip(whole, rest, strict=True))
    print(f"largest difference of resumed and whole run: {difference:g}")


if __name__ == "__main__":
    main()
