"""Small recurrent models that diverge as their learning rate is raised, and the same that train well, under a monitor.

`python tests/stability/diverging.py` prints the table of docs/stability.md.
"""

# ruff: noqa: T201

import math
import warnings

import torch
from torch import nn
from torch.nn import functional

import holdfast
from holdfast.nn import S4D
from holdfast.stability import GradientMonitor

STEPS = 300
# learning rates: raised geometrically from the first to the second over the run, where it diverges; of the fine run
RATES = {
    ("mamba", "sgd"): (0.3, 20.0, 0.3),
    ("mamba", "adam"): (0.003, 2.0, 0.01),
    ("lstm", "sgd"): (0.1, 10.0, 0.05),
    ("lstm", "adam"): (0.003, 3.0, 0.01),
    ("s4d", "sgd"): (0.01, 10.0, 0.02),
    ("s4d", "adam"): (0.001, 1.0, 0.003),
    ("relu", "sgd"): (0.01, 1.0, 0.005),
    ("relu", "adam"): (0.001, 1.0, 0.003),
}


class Regression(nn.Module):
    """A recurrent module of torch with a readout."""

    def __init__(self, core):
        super().__init__()
        self.core, self.read = core, nn.Linear(16, 1)

    def forward(self, x):
        return self.read(self.core(x)[0])


class Stack(nn.Module):
    """Two S4D layers without norms."""

    def __init__(self):
        super().__init__()
        self.write, self.read = nn.Linear(1, 8), nn.Linear(8, 1)
        self.layers = nn.ModuleList([S4D(8, 8), S4D(8, 8)])

    def forward(self, x):
        h = self.write(x)
        for layer in self.layers:
            h = h + functional.gelu(layer(h)[0])
        return self.read(h)


def make(kind):
    if kind == "lstm":
        return Regression(nn.LSTM(1, 16, batch_first=True))
    if kind == "relu":
        return Regression(nn.RNN(1, 16, nonlinearity="relu", batch_first=True))
    if kind == "s4d":
        return Stack()
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=16, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False)
    model = MambaForCausalLM(config)
    holdfast.accelerate(model)
    return model


def loss_of(kind, model, generator):
    """Mamba repeats 12 tokens; the others follow an exponential average, through tanh and noise."""
    if kind == "mamba":
        tokens = torch.randint(0, 16, (16, 12), generator=generator).repeat(1, 2)
        return functional.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
    x = torch.randn(16, 40, 1, generator=generator)
    kernel = (0.9 ** torch.arange(39, -1, -1.0) / 2.3).view(1, 1, -1)
    average = functional.conv1d(functional.pad(x.mT, (39, 0)), kernel).mT
    return functional.mse_loss(model(x), average.tanh() + 0.1 * torch.randn(16, 40, 1, generator=generator))


def run(kind, optimizer, seed, *, diverging):
    """The losses, and the alarms of a monitor that sees every step."""
    low, high, fine = RATES[kind, optimizer]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1000)
    model = make(kind)
    rule = (torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam)(model.parameters(), lr=fine)
    monitor, losses = GradientMonitor(model), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(STEPS):
            if diverging:
                rule.param_groups[0]["lr"] = low * (high / low) ** (step / STEPS)
            loss = loss_of(kind, model, generator)
            rule.zero_grad()
            loss.backward()
            losses.append(float(loss.detach()))
            monitor.record(step, loss=loss)
            if not losses[-1] <= 1e4 * losses[0]:
                break
            rule.step()
    monitor.close()
    return losses, monitor.alarms


def doubling(losses):
    """The step from which on the loss stays above twice its smallest value so far."""
    least, last = math.inf, -1
    for step, loss in enumerate(losses):
        least = min(least, loss)
        last = step if loss <= 2 * least else last
    return last + 1


def main(seeds=range(5)):
    """A row for each model and optimizer: warned in time, steps before the loss doubles, warned falsely."""
    for kind, optimizer in RATES:
        leads, vain = [], 0
        for seed in seeds:
            losses, alarms = run(kind, optimizer, seed, diverging=True)
            acute = [alarm.step for alarm in alarms if alarm.acute]
            leads.append(doubling(losses) - min(acute, default=len(losses)))
            vain += bool(run(kind, optimizer, seed, diverging=False)[1])
        leads.sort()
        timely = sum(lead > 0 for lead in leads)
        middle = leads[len(leads) // 2]
        print(f"{kind:6} {optimizer:5} in time {timely}/{len(leads)}, steps before {leads[0]} / {middle} / {leads[-1]}, "
              f"false alarms {vain}/{len(leads)}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
