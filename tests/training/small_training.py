"""A tiny task and a tiny model: is the mean of a noisy sequence positive?"""

import torch

from holdfast.data import ArrayTask
from holdfast.nn import SequenceClassifier


def sequences(count, seed, length=12):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, length, 1, generator=generator)
    sign = torch.randint(0, 2, (count,), generator=generator)
    return x + (2 * sign[:, None, None] - 1), sign


def new_task(train=48):
    return ArrayTask(sequences(train, 0), sequences(16, 1), sequences(20, 2))


def new_model(seed=0, **options):
    torch.manual_seed(seed)
    choices = {"depth": 1, "state_size": 4, "layer": "s4d", "dropout": 0.1} | options
    return SequenceClassifier(1, 2, 8, **choices)


CONFIG = {"batch": 8, "steps": 14, "lr": 1e-2, "log_every": 3, "checkpoint_every": 4, "evaluate_every": 5, "warmup": 3}
