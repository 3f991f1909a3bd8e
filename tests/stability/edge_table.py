# ruff: noqa: T201
"""EDGE against perturb and see: `python tests/stability/edge_table.py` prints a row for each of twenty untrained models.

By hand: after 100 steps the states of all recurrent modules are moved by a little in float64, and the slope of the logarithm
of what is left of that in the states is the exponent (of models that read both ways, in the outputs), on zero input and
along data. Trained models are given as files of `torch.save(net)`, a `Net` of this file, with inputs beside them:
`python tests/stability/edge_table.py model.pt=inputs.pt ...`.
"""

import math
import sys

import torch
from torch import nn
from torch.nn import functional

import holdfast

NUDGE = 1e-4
LOW = 1e-13  # of outputs about 1: below lies rounding of float64
BEFORE = 100  # steps before the states are moved


class Net(nn.Module):
    """Modules one behind the other; recurrent ones may begin at a state beside 0."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        return self.run(x)[0]

    def run(self, x, starts=None):
        states = []
        for part in self.parts:
            if not isinstance(part, nn.RNNBase):
                x = part(x)
                continue
            x, state = part(x, None if starts is None else starts[len(states)])
            states.append(state)
        return x, states


def nudged(states):
    generator = torch.Generator().manual_seed(0)

    def moved(state):
        return state + NUDGE * torch.randn(state.shape, generator=generator, dtype=torch.float64)

    return [tuple(map(moved, state)) if isinstance(state, tuple) else moved(state) for state in states]


def biased(size, value):
    layer = nn.Linear(2, size)
    nn.init.constant_(layer.bias, value)
    return layer


def first(kind, *sizes, **options):
    return lambda: Net(kind(*sizes, batch_first=True, **options))


FRESH = {
    "RNN 16": first(nn.RNN, 2, 16),
    "RNN 64": first(nn.RNN, 2, 64),
    "RNN 16 x 3": first(nn.RNN, 2, 16, num_layers=3),
    "RNN relu 16": first(nn.RNN, 2, 16, nonlinearity="relu"),
    "GRU 8": first(nn.GRU, 2, 8),
    "GRU 64": first(nn.GRU, 2, 64),
    "GRU 32 x 2": first(nn.GRU, 2, 32, num_layers=2),
    "LSTM 16": first(nn.LSTM, 2, 16),
    "LSTM 64": first(nn.LSTM, 2, 64),
    "LSTM 24 x 3": first(nn.LSTM, 2, 24, num_layers=3),
    "LSTM 16, projected to 8": first(nn.LSTM, 2, 16, proj_size=8),
    "GRU 16, both ways": first(nn.GRU, 2, 16, bidirectional=True),
    "LSTM 24, both ways": first(nn.LSTM, 2, 24, bidirectional=True),
    "bias 3, GRU 16": lambda: Net(biased(16, 3.0), nn.GRU(16, 16, batch_first=True)),
    "bias 2, LSTM 16": lambda: Net(biased(16, 2.0), nn.LSTM(16, 16, batch_first=True)),
    "bias -1, RNN 16": lambda: Net(biased(8, -1.0), nn.RNN(8, 16, batch_first=True)),
    "GRU 16, Linear, LSTM 16": lambda: Net(
        nn.GRU(2, 16, batch_first=True), nn.Linear(16, 16), nn.LSTM(16, 16, batch_first=True)
    ),
    "tokens, GRU 16": lambda: Net(nn.Embedding(12, 8), nn.GRU(8, 16, batch_first=True)),
}


def flat(states):
    """All numbers of the states, a row for each sequence."""
    parts = [part for state in states for part in (state if isinstance(state, tuple) else (state,))]
    return torch.cat([part.transpose(0, 1).flatten(1) for part in parts], 1)


@torch.no_grad()
def sizes_of(model, x, both):
    """What is left of the deviation at each step, (rows, steps): of the states, or of the outputs of each direction."""
    _, states = model.run(x[:, :BEFORE])
    rest = x[:, BEFORE:]
    if both:  # the other direction begins at the end
        still = [
            torch.zeros_like(s) if isinstance(s, torch.Tensor) else tuple(map(torch.zeros_like, s)) for s in states
        ]
        apart = model.run(rest, nudged(still))[0] - model.run(rest, still)[0]
        half = apart.shape[-1] // 2
        return [apart[..., :half].norm(dim=-1), apart[..., half:].flip(1).norm(dim=-1)]
    moved, sizes = nudged(states), []
    for step in rest.split(1, 1):
        states, moved = model.run(step, states)[1], model.run(step, moved)[1]
        sizes.append((flat(moved) - flat(states)).norm(dim=-1))
    return [torch.stack(sizes, 1)]


def slope(model, x, both):
    """Per step, of the log of what is left of a deviation; the mean over rows."""
    slopes = []
    for sizes in sizes_of(model, x, both):
        rates = []
        for row in sizes.clamp(min=1e-300).log():
            last = int((row > math.log(LOW)).nonzero().max())
            rates.append(float(row[last] - row[last // 4]) / max(last - last // 4, 1))
        slopes.append(sum(rates) / len(rates))
    return max(slopes)


def by_hand(model, x):
    wide = model.double().eval()
    data = x.double() if x.is_floating_point() else x
    both = any(getattr(part, "bidirectional", False) for part in wide.modules())
    return slope(wide, torch.zeros_like(data), both), slope(wide, data, both)


def told(model, x):
    certificate = holdfast.certify(model, inputs=x[:4], starts=2)
    parts = certificate.parts or (certificate,)
    rest = [part.time_constant for part in parts if part.status == "stable"]
    return max(rest, default=math.nan), max(part.along.time_constant for part in parts), parts


def mamba():
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2)).eval()


def mamba_by_hand(model, x):
    """The largest mean of dt A, with dt from what the model projects its inputs to."""
    answers = []
    for tokens in (torch.zeros(1, 2000, dtype=torch.long), x):
        rates, handles = [], []
        for block in model.backbone.layers:
            A = -block.mixer.A_log.detach().exp()

            def hook(_module, _given, out, A=A, to=block.mixer.dt_proj, rank=block.mixer.time_step_rank):
                steps = functional.softplus(functional.linear(out[..., :rank], to.weight, to.bias)).detach()
                steps = steps[:, -1:] if tokens.shape[1] == 2000 else steps  # noqa: B023
                rates.append(float((steps.mean((0, 1)).unsqueeze(-1) * A).max()))  # noqa: B023

            handles.append(block.mixer.x_proj.register_forward_hook(hook))
        with torch.no_grad():
            model(tokens)
        for handle in handles:
            handle.remove()
        answers.append(max(rates))
    return tuple(answers)


def row(name, model, x, hand=by_hand):
    rest, data, parts = told(model, x)
    zero, along = hand(model, x)
    found = [(rest, -1 / zero), (data, -1 / along)]
    errors = [abs(a / b - 1) for a, b in found]
    mark = (
        "" if max(errors) <= 0.1 else f"  OFF; restless {[p.restless for p in parts if p.restless]}, {parts[0].status}"
    )
    numbers = "  ".join(f"{a:9.3f} {b:9.3f}" for a, b in found)
    print(f"{name:26s} {numbers}  {max(errors):6.1%}{mark}", flush=True)
    return not mark


def main(files):
    print(
        f"{'time constants in steps':26s} {'at rest':>9s} {'by hand':>9s}  {'on data':>9s} {'by hand':>9s}  largest error"
    )
    good = []
    for name, make in FRESH.items():
        torch.manual_seed(0)
        x = torch.randint(12, (32, 300)) if "tokens" in name else torch.randn(32, 300, 2)
        good.append(row(name, make(), x))
    torch.manual_seed(0)
    good.append(row("transformers Mamba 32 x 2", mamba(), torch.randint(40, (4, 200)), mamba_by_hand))
    torch.manual_seed(0)
    lru = holdfast.nn.LRU(2, 16)
    size = float(lru.eigenvalues().detach().abs().max())
    good.append(row("LRU 16", lru, torch.randn(4, 200, 2), lambda *_: (math.log(size),) * 2))
    for given in files:
        path, _, inputs = given.partition("=")
        good.append(row(path.rpartition("/")[2], torch.load(path, weights_only=False), torch.load(inputs)))
    print(f"{sum(good)} of {len(good)} within 10%")


if __name__ == "__main__":
    main(sys.argv[1:])
