"""
Train, diagnose, fix
====================

An LSTM is to say, after sixty steps of noise, what the first input was. It is trained for a while and learns nothing.
`holdfast.diagnose` says why, and what to type; with that one line the same training succeeds.
"""

# %%
# The task, and a model of the usual kind. A value of +1 or -1 comes first, in a channel of its own.
import torch
from torch import nn

import holdfast

DISTANCE, STEPS = 60, 150


def batch(generator, rows=64):
    x = torch.zeros(rows, DISTANCE + 1, 2)
    x[:, 1:, 1] = 0.3 * torch.randn(rows, DISTANCE, generator=generator)
    x[:, 0, 0] = torch.randint(0, 2, (rows,), generator=generator) * 2.0 - 1
    return x, x[:, 0, :1].clone()


class Keeper(nn.Module):
    """Reads the sequence, and answers at its end."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(2, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


# %%
# Training, and the share of new values that come back. Half of them is chance.
def train(model):
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x, value = batch(generator)
        optimizer.zero_grad()
        nn.functional.soft_margin_loss(model(x), value).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    x, value = batch(generator, rows=400)
    return float((model(x).sign() == value).float().mean())


torch.manual_seed(0)
model = Keeper()
print(f"trained: {train(model):.0%} of the values come back")

# %%
# Why? The diagnosis reads the task from examples.
report = holdfast.diagnose(model, data=batch(torch.Generator().manual_seed(2), rows=300))
print(report)

# %%
# It remembers fewer steps than the task needs, and the first advice is about that. Typed into an untrained model:
advice = report.advice[0]
print(advice.trouble, advice.number, advice.call, advice.effect, sep="\n")
torch.manual_seed(0)
model = Keeper()
exec(advice.call)  # the line that was printed; you would paste it
print(f"trained again: {train(model):.0%} of the values come back")

# %%
# What the line did to the start of training: steps until 1% of an input is left.
for name, call in (("untrained", ""), ("after the line", advice.call)):
    torch.manual_seed(0)
    model = Keeper()
    exec(call)
    curve = holdfast.memory_function(model.rnn, input_size=2, horizon=600, probe="impulse", double=True)
    print(f"{name}: {holdfast.fit_decay(curve).horizon(0.01):.0f} steps")
