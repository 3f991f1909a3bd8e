"""Training runs of other frameworks, each in a process of its own: python framework_runs.py NAME FOLDER STEPS [CHECKPOINT]."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

import holdfast
from holdfast.stability import plain_state_dict

STEPS = 20


def tiny_mamba(seed=0):
    import transformers

    torch.manual_seed(seed)
    config = transformers.MambaConfig(vocab_size=20, hidden_size=8, state_size=4, num_hidden_layers=2)
    return transformers.MambaForCausalLM(config)


def tokens(count):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(20, (count, 12), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


def report(folder, name, model, losses):
    """What the runs are compared by: losses by step, and the weights that a plain model would have."""
    torch.save(plain_state_dict(model), Path(folder) / f"{name}.pt")
    (Path(folder) / f"{name}.json").write_text(json.dumps(losses))


def trainer(folder, steps, checkpoint=None, **choices):
    import transformers

    model = tiny_mamba()
    holdfast.stabilize(model)
    options = {
        "output_dir": str(folder), "max_steps": STEPS, "save_steps": 10, "logging_steps": 1, "learning_rate": 1e-2,
        "per_device_train_batch_size": 4, "use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 3,
        "lr_scheduler_type": "constant",
    }  # fmt: skip
    arguments = transformers.TrainingArguments(**(options | choices))
    data = tokens(64)
    run = transformers.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])
    run.train(resume_from_checkpoint=checkpoint)
    losses = {entry["step"]: entry["loss"] for entry in run.state.log_history if "loss" in entry}
    report(folder, "resumed" if checkpoint else "whole", model, losses)
    return run


def best(folder, steps, checkpoint=None):
    """A rate that diverges after the first evaluation: the best model is not the last."""
    run = trainer(
        folder, steps, eval_strategy="steps", eval_steps=5, save_steps=5, load_best_model_at_end=True, learning_rate=0.3
    )
    (Path(folder) / "best.txt").write_text(run.state.best_model_checkpoint)


def lightning(folder, steps, checkpoint=None):
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.model = nn.ModuleDict({"rnn": nn.RNN(1, 6, batch_first=True), "ssm": holdfast.nn.S4D(6, 4)})
            holdfast.stabilize(self.model)
            self.losses = {}

        def training_step(self, batch, index):
            loss = (self.model["ssm"](self.model["rnn"](batch)[0])[0] - batch).square().mean()
            self.losses[self.global_step] = float(loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-2)

    module = Module()
    # the same batch at every step: where in an epoch Lightning takes the data up again is not what is tested
    rows = torch.randn(4, 12, 1, generator=torch.Generator().manual_seed(1)).repeat(STEPS, 1, 1)
    data = torch.utils.data.DataLoader(rows, batch_size=4)
    saving = pl.callbacks.ModelCheckpoint(folder, filename="at-{step}", every_n_train_steps=10, save_top_k=-1)
    run = pl.Trainer(
        max_steps=int(steps), accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, callbacks=[saving],
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    run.fit(module, data, ckpt_path=checkpoint)
    report(folder, "resumed" if checkpoint else "whole", module.model, module.losses)


def accelerate(folder, steps, checkpoint=None):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = tiny_mamba(seed=1 if checkpoint else 0)
    holdfast.stabilize(model)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=3e-2))
    if checkpoint:
        accelerator.load_state(checkpoint)
    rows, losses = torch.stack([row["input_ids"] for row in tokens(80)]).split(4), {}
    for step in range(10 if checkpoint else 0, STEPS):
        if step == 10 and not checkpoint:
            accelerator.save_state(str(Path(folder) / "state"))
        loss = model(rows[step], labels=rows[step]).loss
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses[step] = float(loss)
    report(folder, "resumed" if checkpoint else "whole", accelerator.unwrap_model(model), losses)


def sharded(folder, steps, checkpoint=None):
    """DDP, then fully_shard with torch's own checkpoint functions, over the processes that the environment names."""
    import torch.distributed as dist
    from torch.distributed.checkpoint import state_dict as states
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    plain = nn.RNN(1, 6, batch_first=True)
    one, other = nn.RNN(1, 6, batch_first=True), nn.RNN(1, 6, batch_first=True)
    for model in (one, other):
        holdfast.stabilize(model)
    x = torch.randn(2, 9, 1)
    parallel = nn.parallel.DistributedDataParallel(one)
    parallel(x)[0].sum().backward()
    parallel.load_state_dict({f"module.{name}": value for name, value in plain.state_dict().items()})
    torch.testing.assert_close(one(x)[0], plain(x)[0], rtol=1e-5, atol=1e-6)

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    full = states.StateDictOptions(full_state_dict=True)
    layer = nn.Sequential(holdfast.nn.S4D(4, 4, parameterization="exp"))
    holdfast.stabilize(layer)
    lam = layer[0].eigenvalues().detach()
    fully_shard(layer, mesh=mesh)
    whole = states.get_model_state_dict(layer, options=full)
    if dist.get_rank() == 0:  # full state dicts are made for the first process alone
        again = nn.Sequential(holdfast.nn.S4D(4, 4, parameterization="exp"))
        again.load_state_dict(whole)
        torch.testing.assert_close(again[0].eigenvalues(), lam, rtol=1e-5, atol=1e-6)
    states.set_model_state_dict(
        layer, whole, options=states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )
    mixer = tiny_mamba().backbone.layers[0].mixer
    holdfast.stabilize(mixer)
    value = mixer.A_log.detach().clone()
    fully_shard(mixer, mesh=mesh)
    saved = states.get_model_state_dict(mixer, options=full)
    if dist.get_rank() == 0:
        fresh = tiny_mamba(1).backbone.layers[0].mixer
        holdfast.stabilize(fresh)
        fresh.load_state_dict(saved)
        torch.testing.assert_close(fresh.A_log, value, rtol=0, atol=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["WANDB_DISABLED"] = "true"
    torch.set_num_threads(1)
    globals()[sys.argv[1]](*sys.argv[2:])
