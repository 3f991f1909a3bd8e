"""Models as people have them, small."""

import torch
from torch import nn

from holdfast.nn import LanguageModel, LinearRNN, SequenceClassifier, SequenceModel


def unstable(size=6):
    W = 1.03 * torch.linalg.qr(torch.randn(size, size))[0]
    return LinearRNN(1, size, W=W, parameterization="direct", time="discrete")


class Stateful(nn.Module):
    """Continues from where the last call ended."""

    def __init__(self):
        super().__init__()
        self.inner, self.state = nn.GRU(1, 6, batch_first=True), None

    def forward(self, x):
        start = None if self.state is None else self.state.expand(-1, len(x), -1).contiguous()
        y, state = self.inner(x, start)
        self.state = state[:, :1].detach()
        return y


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(1, 6, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0] + torch.randn_like(x)


class Headed(nn.Module):
    """A recurrent module inside another, which tells no size."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 6, num_layers=2, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


MODELS = {
    "lstm": lambda: nn.LSTM(1, 8, batch_first=True),
    "gru": lambda: nn.GRU(1, 8, batch_first=True),
    "tanh": lambda: nn.RNN(1, 8, batch_first=True),
    "relu": lambda: nn.RNN(1, 8, batch_first=True, nonlinearity="relu"),
    "time first": lambda: nn.GRU(2, 6),
    "both ways": lambda: nn.GRU(1, 6, batch_first=True, bidirectional=True),
    "unstable": unstable,
    "s4d": lambda: SequenceModel(1, 6, depth=2, layer="s4d", state_size=8, dt_min=0.1, dt_max=1.0),
    "lru": lambda: SequenceClassifier(1, 4, 6, depth=2, layer="lru", state_size=6, r_min=0.3, r_max=0.7),
    "tokens": lambda: LanguageModel(20, 6, depth=1, state_size=4, dt_min=0.1, dt_max=1.0),
    "stateful": Stateful,
    "headed": Headed,
}


def make(name):
    torch.manual_seed(0)
    return MODELS[name]()
