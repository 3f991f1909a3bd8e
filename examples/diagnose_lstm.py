"""
Train, diagnose, fix
====================

You learn: how to read a diagnosis, and how one line that it prints makes a task learnable.
Run time: about 12 s of CPU time, one thread.
An LSTM has to repeat its first input after sixty steps of noise. It is trained for 150 steps and learns nothing.
`holdfast.diagnose` says why and prints a line; with that line the same training succeeds.
"""

# %%
# The task and an ordinary model. The first input is +1 or -1, in a separate channel.
import matplotlib.pyplot as plt
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
    """Reads the sequence and answers at its end."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)  # every copy starts from the same weights
        self.rnn, self.out = nn.LSTM(2, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


# %%
# Training, and the share of new values that the model repeats correctly. Chance is 0.5.
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


print(f"trained: {train(model := Keeper()):.0%} of the values come back")

# %%
# Why does it fail? The diagnosis estimates from examples what the task needs.
print(report := holdfast.diagnose(model, data=batch(torch.Generator().manual_seed(2), rows=300)))

# %%
# The model remembers fewer steps than the task needs, and the first advice fixes that. Applied to an untrained model:
advice = report.advice[0]
print(advice.trouble, advice.number, advice.call, advice.effect, sep="\n")
model = Keeper()
exec(advice.call)  # the line that was printed; you would paste it
print(f"trained again: {train(model):.0%} of the values come back")

# %%
# The memory at the start of training, without and with that line: the share of an input that is left, and steps to 1%.
for name, call in (("untrained", ""), ("after the line", advice.call)):
    model = Keeper()
    exec(call)
    curve = holdfast.memory_function(model.rnn, input_size=2, horizon=600, probe="impulse", double=True)
    print(f"{name}: {holdfast.fit_decay(curve).horizon(0.01):.0f} steps")
    plt.semilogy(curve.time, curve.values / curve.values[0], label=name)
plt.gca().set(xlabel="steps since the input", ylabel="share that is left", xlim=(0, 200), ylim=(1e-3, 2))
plt.legend(title="the task needs 60 steps")
