"""
Your own module on your own data
================================

You learn: how to train your own module on your own data with `holdfast.training.fit`.
Run time: about 10 s of CPU time, one thread.

The task: which of two tones in a noisy sequence is louder?
"""

import torch
from torch import nn

from holdfast.data import ArrayTask
from holdfast.training import fit


class Tones(nn.Module):  # noqa: D101
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


t, labels = torch.arange(64.0), torch.arange(512) % 2
waves = torch.sin(t * (0.3 + 0.3 * labels[:, None])) + 0.3 * torch.randn(512, 64)
task = ArrayTask((waves[:384], labels[:384]), test=(waves[384:], labels[384:]))
print(fit(Tones(), task, {"batch": 32, "steps": 60, "lr": 0.01}, folder="runs/tones", resume=True).summary())
