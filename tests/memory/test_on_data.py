"""Memory on data against closed forms and a loop by hand, on every form of model and data."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from holdfast import fit_decay
from holdfast.errors import ArgumentError, ShapeError
from holdfast.memory import ModelError, Run, memory_on_data
from holdfast.nn import LinearRNN


def linear(inputs=2, size=5):
    torch.manual_seed(0)
    W = torch.randn(size, size)
    return LinearRNN(
        inputs, size, W=0.9 * W / torch.linalg.eigvals(W).abs().max(), parameterization="direct", time="discrete"
    )


class Tokens(nn.Module):
    """One answer at each step, or one per sequence, of a module that reads time first."""

    def __init__(self, *, pooled=False):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.rnn, self.head = nn.Embedding(9, 4), nn.GRU(4, 8), nn.Linear(8, 3)
        self.pooled = pooled

    def forward(self, tokens):
        y = self.head(self.rnn(self.table(tokens).transpose(0, 1))[0]).transpose(0, 1)
        return {"loss": None, "logits": y[:, -1] if self.pooled else y}


@dataclasses.dataclass
class Output:
    y: torch.Tensor
    state: object


class Own(nn.Module):
    """Keeps its state in a class of its own, and steps by itself."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.GRUCell(2, 6)

    def forward(self, x):
        state, outputs = x.new_zeros(len(x), 6), []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(state)
        return Output(torch.stack(outputs, 1), object())


def by_hand(model, x, found, donors):
    """Exchange and see, one place after the other."""
    rows = []
    for (row, time), donor in zip(found.places, donors, strict=True):
        changed = x[row : row + 1].clone()
        changed[0, time] = donor
        moved = (model(changed) - model(x[row : row + 1]))[0, time:].abs().amax(-1)
        rows.append(moved[: len(found.lags)])
    return torch.stack(rows).detach().numpy()


def test_of_a_linear_layer_the_change_is_the_impulse_response_times_the_exchange():
    layer, x = linear().double(), torch.randn(6, 120, 2, dtype=torch.float64)
    found = memory_on_data(layer, x, places=12, horizon=60)
    # |C A^k B d| by the layer itself: the response to d alone, from 0
    zero = layer(torch.zeros(1, 61, 2, dtype=torch.float64))[0]
    for size, (row, time) in zip(found.sizes, found.places, strict=True):
        fits = []
        for other in x.flatten(0, 1):
            impulse = torch.zeros(1, 61, 2, dtype=torch.float64)
            impulse[0, 0] = other - x[row, time]
            fits.append((layer(impulse)[0] - zero)[0].abs().amax(-1).detach().numpy())
        # the exchanged input is one of the data: the nearest response is equal to rounding of float64
        assert min(np.abs(size - fit).max() for fit in fits) < 1e-12 * size.max()
    rate = float(-torch.linalg.eigvals(layer.recurrent_matrix().detach()).abs().max().log())
    assert rate == pytest.approx(-np.log(0.9), rel=1e-5)  # weights made in float32
    assert fit_decay(found.curve()).rate == pytest.approx(rate, rel=0.1)  # medians of 12 places at the phases of a pair
    assert found.causal and not found.one_answer


def test_a_loop_by_hand_gives_the_same_steps():
    torch.manual_seed(0)
    model, x = nn.LSTM(2, 8, batch_first=True).double(), torch.randn(5, 80, 2, dtype=torch.float64)
    found = memory_on_data(model, x, places=10, horizon=40)

    def alone(x):
        return model(x)[0]

    donors = []  # the exchanged input is one of the data: the one whose first change fits
    for size, (row, time) in zip(found.sizes, found.places, strict=True):
        tries = x.flatten(0, 1)
        batch = x[row].repeat(len(tries), 1, 1)
        batch[:, time] = tries
        first = (alone(batch)[:, time] - alone(x[row : row + 1])[:, time]).abs().amax(-1)
        donors.append(tries[(first - size[0]).abs().argmin()])
    sizes = by_hand(alone, x, found, donors)
    assert np.abs(sizes - found.sizes).max() < 1e-12
    last = [np.flatnonzero(row > 0.01 * row.max())[-1] + 1 for row in sizes]
    assert found.steps == np.quantile(last, 0.5, method="inverted_cdf")
    assert found.state_steps == found.steps  # its outputs are its hidden states


@pytest.mark.parametrize(
    ("model", "x", "run"),
    [
        (Tokens(), torch.randint(9, (6, 40)), None),
        (Own(), torch.randn(4, 40, 2), None),
        (nn.GRU(2, 4), torch.randn(40, 4, 2), Run(layout="time_first")),
        (lambda x: x.cumsum(1) * 0.5, torch.randn(4, 40, 2), None),
    ],
    ids=["tokens in a dict", "a state class of its own", "time first", "a function"],
)
def test_models_of_every_form_are_followed(model, x, run):
    found = memory_on_data(model, x, run=run, places=8)
    assert found.sizes.shape == (8, len(found.lags)) and found.lags[-1] == 29  # three quarters of 39
    assert found.shares.max() == 1


def test_a_sum_of_all_inputs_keeps_every_one():
    found = memory_on_data(lambda x: x.cumsum(1), torch.randn(4, 40, 2), places=8)
    assert np.isinf(found.steps) and found.left == pytest.approx(1, rel=1e-4)
    assert "more than 29 steps" in found.summary()


def test_one_answer_a_sequence_is_told_by_the_distance_from_the_end():
    found = memory_on_data(Tokens(pooled=True).double(), torch.randint(9, (6, 60)))
    assert found.one_answer and found.lags[0] == 0 and found.lags[-1] == 59
    # of a GRU that answers from its last state, the same steps as of its outputs, to the coarser lags and few rows
    along = memory_on_data(Tokens().double(), torch.randint(9, (6, 60)))
    assert found.steps == pytest.approx(along.steps, rel=0.5)


def test_nothing_behind_the_length_of_a_row_is_exchanged_or_looked_at():
    x, lengths = torch.randn(6, 50, 2), torch.tensor([50, 30, 12, 40, 50, 8])
    padded = x.clone()
    for row, length in enumerate(lengths):
        padded[row, length:] = 0.0
    found = memory_on_data(linear(), padded, lengths=lengths, horizon=20, places=20)
    assert all(time + 20 < lengths[row] for row, time in found.places)
    assert (found.sizes[:, 0] > 0).all()


def test_a_model_that_reads_both_ways_is_said_to():
    torch.manual_seed(0)
    found = memory_on_data(nn.GRU(2, 4, batch_first=True, bidirectional=True), torch.randn(4, 60, 2), places=8)
    assert not found.causal and "both ways" in found.notes[0]


@pytest.mark.parametrize(
    ("x", "error", "said"),
    [
        (torch.randn(5), ShapeError, "expected numbers"),
        (torch.full((2, 9, 2), float("nan")), ArgumentError, "36 of 36 that are NaN"),
        (torch.zeros(2, 9, 2), ArgumentError, "some that differ"),
        (torch.randn(2, 9, 3), ModelError, "failed on inputs"),
    ],
)
def test_data_are_checked_and_what_is_wrong_is_named(x, error, said):
    with pytest.raises(error, match=said):
        memory_on_data(linear(), x)


def test_tokens_beyond_the_table_are_refused():
    with pytest.raises(ArgumentError, match="tokens from 0 to 8, got 0 to 11"):
        memory_on_data(Tokens(), torch.arange(12).reshape(1, 12))


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    memory_on_data(model, torch.randn(3, 12, 2))
    assert model.training and all(torch.equal(before[name], value) for name, value in model.state_dict().items())
