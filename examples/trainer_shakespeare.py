"""
transformers' Trainer on Shakespeare, monitored
===============================================

You learn: how to attach holdfast to the Trainer of transformers, and resume a run exactly.
Run time: about 23 s of CPU time, one thread.
A small character-level Mamba is trained by the Trainer of transformers: unchanged, then
accelerated, stabilized and monitored, then interrupted and resumed.
"""

import argparse
import time
from pathlib import Path

import torch
from transformers import MambaConfig, MambaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import holdfast
from holdfast.data import load_task
from holdfast.integrations.transformers import attach


class StopHalfway(TrainerCallback):
    """Interrupts a run."""

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop |= state.global_step >= args.max_steps // 2


def trainer_of(task, folder, choices, steps: int, fast: bool) -> Trainer:
    torch.manual_seed(0)
    sizes = {"vocab_size": task.inputs.size, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2}
    model = MambaForCausalLM(MambaConfig(use_cache=False, **sizes))
    if fast:
        holdfast.accelerate(model)
        holdfast.stabilize(model, "best")
    windows = task.batch("train", torch.arange(8 * steps)).inputs
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=4, max_steps=steps, learning_rate=1e-2, weight_decay=0.1, use_cpu=True,
        save_steps=max(1, steps // 2), logging_steps=10, report_to=choices.report_to, disable_tqdm=True,
    )  # fmt: skip
    return Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in windows])


def seconds_of(trainer: Trainer, resume: bool = False) -> float:
    begin = time.process_time()
    trainer.train(resume_from_checkpoint=resume)
    return (time.process_time() - begin) / trainer.state.global_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--report-to", nargs="*", default=[], help="such as tensorboard")
    choices = parser.parse_args()
    task = load_task("text", length=256)
    held_out = task.batch("valid", torch.arange(4)).inputs

    before = seconds_of(trainer_of(task, Path("runs/shakespeare") / "plain", choices, 4, fast=False))
    trainers, seconds = {}, {}
    for name in ("whole", "part", "rest"):
        folder = Path("runs/shakespeare") / ("whole" if name == "whole" else "cut")
        trainer = trainer_of(task, folder, choices, choices.steps, fast=True)
        attach(trainer, "rollback", recurrent_lr="auto", memory=200, inputs=held_out, folder=f"{folder}-watch")
        if name == "part":
            trainer.add_callback(StopHalfway())
        trainers[name], seconds[name] = trainer, seconds_of(trainer, resume=name == "rest")
    after = seconds["whole"]
    print(f"CPU seconds per step: {before:.3f} as it was, {after:.3f} fast and watched: {before / after:.1f} times")
    for name in ("loss", "holdfast/memory"):
        values = [line[name] for line in trainers["whole"].state.log_history if name in line]
        print(f"{name} {values[0]:.3f} -> {values[-1]:.3f} in {choices.steps} steps")
    whole, rest = ([p.detach() for p in trainers[name].model.parameters()] for name in ("whole", "rest"))
    differences = [float((a - b).abs().max()) for a, b in zip(whole, rest, strict=True)]
    print(f"largest difference of resumed and whole run: {max(differences):g}")


if __name__ == "__main__":
    main()
