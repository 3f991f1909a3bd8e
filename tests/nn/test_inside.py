"""The network inside another library's object, and another recurrence in the place of its LSTM, GRU or RNN."""

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import ArgumentError
from holdfast.nn import RecurrentStack, network_inside, swap_recurrences


class Network(nn.Module):
    """Unpacks the states as code for an LSTM does, and takes no tensor alone."""

    def __init__(self, kind=nn.LSTM, **choices):
        super().__init__()
        self.rnn, self.out = kind(2, 6, batch_first=True, **choices), nn.Linear(choices.get("proj_size") or 6, 1)

    def forward(self, batch):
        y, (h, c) = self.rnn(batch["x"])
        again, _ = self.rnn(batch["x"], (h, c))
        return self.out(y), self.out(h[-1]), again


class Forecaster:
    """Holds a network as a forecaster does, beside a loss and a list."""

    def __init__(self, network):
        self.loss, self.model, self.callbacks = nn.MSELoss(), network, [print]


@pytest.mark.parametrize("wrap", [lambda n: n, Forecaster, lambda n: type("P", (), {})()])
def test_the_network_is_found_among_the_attributes(wrap):
    network = Network()
    thing = wrap(network)
    if not isinstance(thing, (nn.Module, Forecaster)):
        thing.models = [network]
    assert network_inside(thing) is network


def test_the_one_with_a_recurrence_counts_and_two_of_them_are_named():
    thing = Forecaster(Network())
    thing.head = nn.Linear(2, 2)
    assert network_inside(thing) is thing.model
    thing.others = {"b": Network()}
    with pytest.raises(ArgumentError, match=r"got Forecaster with several: model, others\['b'\]"):
        network_inside(thing)
    with pytest.raises(ArgumentError, match="for 0 epochs to leave it untrained"):
        network_inside(Forecaster(None))


@pytest.mark.parametrize("choices", [{}, {"num_layers": 2, "dropout": 0.1}, {"bidirectional": False, "proj_size": 4}])
def test_an_lstm_is_swapped_where_its_states_are_unpacked(choices):
    network = Network(**choices).double().eval()
    assert swap_recurrences(Forecaster(network), "lru") == ["rnn"]
    made = network.rnn
    assert isinstance(made, RecurrentStack) and not made.training
    assert next(made.parameters()).dtype == torch.float64
    y, last, _ = network({"x": torch.randn(3, 7, 2, dtype=torch.float64)})
    torch.testing.assert_close(last, y[:, -1], rtol=1e-12, atol=1e-12)


def test_gru_and_rnn_and_shared_modules_are_swapped_too():
    shared = nn.GRU(2, 6, batch_first=True)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared), "c": nn.RNN(2, 6)})
    assert swap_recurrences(model, "s4d", state_size=4) == ["a", "b.0", "c"]
    assert model["a"] is model["b"][0]
    assert model["a"].layers[0].state_size == 4
    assert model["c"].batch_first is False


def test_what_cannot_be_swapped_is_said():
    with pytest.raises(ArgumentError, match="got the LSTM itself"):
        swap_recurrences(nn.LSTM(1, 2))
    with pytest.raises(ArgumentError, match="got Linear without"):
        swap_recurrences(nn.Linear(1, 2))


@pytest.mark.slow
def test_a_diagnosis_looks_at_the_recurrence_of_a_model_that_takes_no_tensor():
    forecaster = Forecaster(Network())
    found = holdfast.diagnose(forecaster, horizon=64)
    alone = holdfast.diagnose(forecaster.model.rnn, horizon=64)
    assert found.name == "Forecaster"
    assert found.edge is not None and found.edge.worst.margin == alone.edge.worst.margin
    assert any("the whole Network" in line and "model is its rnn" in line for line in found.unseen)
