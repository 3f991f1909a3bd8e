"""Our layers where torch.nn.LSTM, GRU or RNN stood: the same shapes, packed sequences and directions."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from holdfast.errors import ArgumentError, ShapeError
from holdfast.nn import LRU, Mamba, RecurrentStack
from holdfast.nn._stack import LAYERS

EXACT = {"rtol": 1e-11, "atol": 1e-11}  # float64, two layers of at most 7 steps
SIZES = (3, 4)
LENGTHS = [4, 7, 2]


OPTIONS = {"mamba2": {"head_size": 2}}  # of layers that need one at these sizes


def stack(**choices):
    torch.manual_seed(0)
    return RecurrentStack(*SIZES, **{"num_layers": 2, "batch_first": True, **choices}).double()


def inputs(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("theirs", [nn.LSTM, nn.GRU, nn.RNN])
def test_it_takes_the_arguments_of_torch_and_gives_the_same_shapes(theirs, bidirectional):
    given = {"num_layers": 2, "dropout": 0.1, "bidirectional": bidirectional}
    for batch_first in (False, True):
        made = [kind(*SIZES, batch_first=batch_first, **given) for kind in (theirs, RecurrentStack)]
        for x in (torch.randn(5, 2, 3), torch.randn(5, 3)):
            outputs = [module(x)[0] for module in made]
            assert outputs[0].shape == outputs[1].shape


@pytest.mark.parametrize("layer", LAYERS)
def test_a_sequence_in_two_calls_is_one_call(layer):
    module, x = stack(layer=layer, **OPTIONS.get(layer, {})), inputs(2, 7, 3)
    whole, end = module(x)
    first, state = module(x[:, :3])
    second, last = module(x[:, 3:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), whole, **EXACT)
    for found, expected in zip(last, end, strict=True):
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences_come_back_packed_and_equal_each_alone(bidirectional):
    module, x = stack(bidirectional=bidirectional), inputs(3, 7, 3)
    before = tuple(torch.randn_like(state) for state in module.initial_state(3))
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    found, state = module(packed, before)
    assert torch.equal(found.unsorted_indices, packed.unsorted_indices)
    rows, lengths = pad_packed_sequence(found, batch_first=True)
    assert lengths.tolist() == LENGTHS
    for i, length in enumerate(LENGTHS):
        alone, end = module(x[i : i + 1, :length], tuple(s[i : i + 1] for s in before))
        torch.testing.assert_close(rows[i, :length], alone[0], **EXACT)
        for a, b in zip(state, end, strict=True):
            torch.testing.assert_close(a[i : i + 1], b, **EXACT)


def test_both_directions_of_a_layer_follow_one_another():
    module, x = stack(num_layers=1, bidirectional=True), inputs(2, 7, 3)
    ahead, behind = module.layers
    expected = torch.cat((ahead(x)[0], behind(x.flip(1))[0].flip(1)), -1)
    torch.testing.assert_close(module(x)[0], expected, **EXACT)


def test_time_first_and_no_batch_are_the_same_numbers():
    first, x = stack(), inputs(2, 7, 3)
    turned = stack(batch_first=False)
    turned.load_state_dict(first.state_dict())
    y, state = first(x)
    torch.testing.assert_close(turned(x.transpose(0, 1))[0].transpose(0, 1), y, **EXACT)
    single, alone = first(x[0])
    torch.testing.assert_close(single, y[0], **EXACT)
    torch.testing.assert_close(first(x[0], alone)[0], first(x, state)[0][0], **EXACT)


def test_dropout_is_between_layers_and_only_in_training():
    module, x = stack(dropout=0.5), inputs(2, 7, 3)
    assert not torch.equal(module(x)[0], module(x)[0])
    module.eval()
    assert torch.equal(module(x)[0], module(x)[0])
    alone = stack(dropout=0.5, num_layers=1)
    assert torch.equal(alone(x)[0], alone(x)[0])


def test_a_layer_is_given_by_a_function_too():
    module = stack(layer=lambda inputs, outputs: Mamba(inputs, 2, out_features=outputs))
    assert module(inputs(2, 5, 3))[0].shape == (2, 5, 4)
    with pytest.raises(ArgumentError, match="must return a holdfast layer with 3 inputs and 4 outputs"):
        stack(layer=lambda inputs, outputs: LRU(inputs, outputs))


def test_arguments_come_in_the_order_of_torch_and_its_attributes_are_there():
    theirs, ours = nn.GRU(3, 4, 2, False, True, 0.1, True), RecurrentStack(3, 4, 2, False, True, 0.1, True)
    x = torch.randn(2, 5, 3)
    assert ours(x)[0].shape == theirs(x)[0].shape
    names = ("input_size", "hidden_size", "num_layers", "batch_first", "dropout", "bidirectional")
    assert [getattr(ours, n) for n in names] == [getattr(theirs, n) for n in names]
    made = RecurrentStack(3, 4, device="meta", dtype=torch.float64)
    assert all(p.is_meta and p.dtype == torch.float64 for p in made.parameters())


def test_a_bias_is_taken_where_a_layer_has_one():
    assert RecurrentStack(*SIZES, bias=True, layer="linear").layers[0].b is not None
    assert RecurrentStack(*SIZES, bias=False, layer="rnn").layers[0].b is None
    RecurrentStack(*SIZES, bias=False, layer="lru")
    with pytest.raises(ArgumentError, match="a layer with a bias, got LRU; leave bias out"):
        RecurrentStack(*SIZES, bias=True, layer="lru")
    with pytest.raises(ArgumentError, match="bias is for a layer given by name"):
        RecurrentStack(*SIZES, bias=True, layer=lambda inputs, outputs: LRU(inputs, 2, out_features=outputs))


def test_what_only_torch_has_is_refused_by_name():
    with pytest.raises(ArgumentError, match=r"no nonlinearity: layer says which recurrence"):
        stack(nonlinearity="relu")
    zeros = torch.zeros(2, 2, 4, dtype=torch.float64)
    with pytest.raises(
        ShapeError, match=r"shape \(batch, 8\).*initial_state\(batch\).*got \(2, 2, 4\).*state_form=.lstm"
    ):
        stack()(inputs(2, 5, 3), (zeros, zeros))
    with pytest.raises(ArgumentError, match="a bidirectional RecurrentStack needs the whole sequence"):
        stack(bidirectional=True).stepper()


def test_what_does_not_fit_is_said():
    module = stack()
    with pytest.raises(ArgumentError, match=r"expected a tuple of 2 states.*got 1 of them"):
        module(inputs(2, 5, 3), module.initial_state(2)[:1])
    with pytest.raises(ShapeError, match="or a PackedSequence, got"):
        module(inputs(3))
