"""States in the form of torch.nn.LSTM: (h, c) of its shapes, resets and masks, steps and episodes on their own."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from holdfast.errors import ArgumentError, ShapeError
from holdfast.nn import LRU, RecurrentStack
from holdfast.nn._stack import LAYERS

EXACT = {"rtol": 1e-11, "atol": 1e-11}  # float64, two layers of at most 9 steps
WIDE = {"s4d", "selective", "mamba", "mamba2"}  # a second layer's state has more than hidden_size numbers
OPTIONS = {"mamba2": {"head_size": 2}}


def stack(layer="lru", **choices):
    torch.manual_seed(0)
    size = {"state_size": 2} if layer in WIDE else {}
    given = {"num_layers": 2, "batch_first": True, "state_form": "lstm", **size, **OPTIONS.get(layer, {}), **choices}
    return RecurrentStack(3, 6, layer=layer, **given).double()


def inputs(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_state(module, batch):
    return tuple(inputs(*part.shape, seed=5) for part in module.initial_state(batch))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("proj_size", [0, 4])
def test_states_have_the_shapes_of_torch_for_batches_single_sequences_and_packed_ones(proj_size, bidirectional):
    given = {"num_layers": 2, "batch_first": True, "bidirectional": bidirectional, "proj_size": proj_size}
    theirs, ours = nn.LSTM(3, 6, **given).double(), stack(**given)
    packed = pack_padded_sequence(inputs(2, 9, 3), [9, 4], batch_first=True)
    for x in (inputs(2, 9, 3), inputs(9, 3), packed):
        found, expected = ours(x), theirs(x)
        for a, b in zip(found[1], expected[1], strict=True):
            assert a.shape == b.shape
        assert ours(x, expected[1])[1][1].shape == expected[1][1].shape  # theirs are taken
        if isinstance(x, torch.Tensor):
            assert found[0].shape == expected[0].shape


@pytest.mark.parametrize("layer", LAYERS)
def test_a_sequence_in_two_calls_and_step_by_step_is_one_call(layer):
    module, x = stack(layer), inputs(2, 9, 3)
    before = random_state(module, 2)
    whole, end = module(x, before)
    first, middle = module(x[:, :4], before)
    second, last = module(x[:, 4:], middle)
    torch.testing.assert_close(torch.cat((first, second), 1), whole, **EXACT)
    torch.testing.assert_close(last, end, **EXACT)
    state, rows = before, []
    for t in range(9):
        y, state = module.step(x[:, t], state)
        rows.append(y)
    torch.testing.assert_close(torch.stack(rows, 1), whole, **EXACT)
    torch.testing.assert_close(state, end, **EXACT)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_h_is_the_output_of_each_direction_where_it_ends(bidirectional):
    module, x = stack(bidirectional=bidirectional), inputs(3, 9, 3)
    lengths = [9, 5, 2]
    packed = pack_padded_sequence(x, lengths, batch_first=True)
    found, (h, _) = module(packed)
    rows, _ = pad_packed_sequence(found, batch_first=True)
    for i, length in enumerate(lengths):
        torch.testing.assert_close(h[-2 if bidirectional else -1, i], rows[i, length - 1, :6], **EXACT)
        if bidirectional:
            torch.testing.assert_close(h[-1, i], rows[i, 0, 6:], **EXACT)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_resets_give_each_episode_as_if_it_had_been_run_alone(layer, batch_first):
    module, x = stack(layer, batch_first=batch_first), inputs(2, 9, 3)
    before = random_state(module, 2)
    resets = torch.zeros(2, 9, dtype=torch.bool)
    resets[0, [0, 4]] = resets[1, 7] = True
    given = (x, resets) if batch_first else (x.transpose(0, 1), resets.T)
    y, (h, c) = module(given[0], before, resets=given[1])
    y = y if batch_first else y.transpose(0, 1)
    # row 0: two episodes from zeros; row 1: one that continues from the state before, and one from zeros
    for row, first, last, start in ((0, 0, 4, False), (0, 4, 9, False), (1, 0, 7, True), (1, 7, 9, False)):
        state = tuple(part[:, row : row + 1] for part in before) if start else None
        piece = x[row : row + 1, first:last]
        alone, end = module(piece if batch_first else piece.transpose(0, 1), state)
        torch.testing.assert_close(y[row, first:last], alone.reshape(last - first, 6), **EXACT)
        if last == 9:
            torch.testing.assert_close((h[:, row : row + 1], c[:, row : row + 1]), end, **EXACT)


def test_states_that_are_multiplied_by_zero_where_an_episode_begins_are_resets():
    module, x = stack(batch_first=False), inputs(9, 2, 3)
    starts = torch.zeros(9, 2, dtype=torch.bool)
    starts[3, 0] = starts[6, 1] = True
    state, rows = random_state(module, 2), []
    whole, end = module(x, state, resets=starts)
    for t in range(9):  # as policies with an LSTM do it
        keep = (~starts[t]).double().view(1, 2, 1)
        y, state = module(x[t : t + 1], tuple(keep * part for part in state))
        rows.append(y)
    torch.testing.assert_close(torch.cat(rows), whole, **EXACT)
    torch.testing.assert_close(state, end, **EXACT)


def test_a_mask_is_the_same_as_a_packed_sequence():
    module, x, lengths = stack(), inputs(3, 9, 3), [9, 5, 2]
    before = random_state(module, 3)
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    y, end = module(x, before, mask=mask)
    packed, expected = module(pack_padded_sequence(x, lengths, batch_first=True), before)
    torch.testing.assert_close(y, pad_packed_sequence(packed, batch_first=True)[0], **EXACT)
    torch.testing.assert_close(end, expected, **EXACT)


def test_gradients_reach_the_state_before():
    module, x = stack(), inputs(1, 3, 3)
    c = random_state(module, 1)[1].requires_grad_()
    h = torch.zeros(2, 1, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda c: module(x, (h, c))[1], (c,))


@pytest.mark.parametrize("layer", sorted(LAYERS.keys() - WIDE))
def test_as_many_states_as_fit_are_taken(layer):
    module = RecurrentStack(3, 7, num_layers=2, layer=layer, state_form="lstm")
    assert module.cell_size == 7
    sizes = {math.prod(part.state_shape) for part in module.layers}
    assert sizes == ({6} if layer == "lru" else {7})  # complex states are pairs of numbers


def test_a_state_that_does_not_fit_is_refused_unless_its_size_is_given():
    with pytest.raises(
        ArgumentError, match=r"hidden_size = 6 numbers.*at least 12 for a S4D with 6 inputs.*layer='lru'"
    ):
        RecurrentStack(3, 6, num_layers=2, layer="s4d", state_form="lstm")
    assert RecurrentStack(3, 6, num_layers=2, layer="s4d", state_form="lstm", state_size=2).cell_size == 12
    assert RecurrentStack(1, 25, layer="s4d", state_form="lstm").layers[0].state_size == 24
    own = RecurrentStack(3, 6, layer=lambda i, o: LRU(i, 8, out_features=o), state_form="lstm")
    assert own.cell_size == 16


def test_what_does_not_fit_is_said():
    module, x = stack(), inputs(2, 5, 3)
    h, c = module.initial_state(2)
    with pytest.raises(ArgumentError, match=r"expected a tuple of \(h, c\).*got 1 of them"):
        module(x, (h,))
    with pytest.raises(ShapeError, match=r"expected c of shape \(2, batch, 6\)"):
        module(x, (h, c[..., :5]))
    with pytest.raises(ShapeError, match="resets: expected bool"):
        module(x, resets=torch.zeros(5, 2, dtype=torch.bool))
    with pytest.raises(ArgumentError, match="reads in one direction"):
        stack(bidirectional=True)(x, resets=torch.zeros(2, 5, dtype=torch.bool))
    hole = torch.tensor([[True, False, True, True, True]] * 2)
    with pytest.raises(ArgumentError, match="got one with a gap"):
        module(x, mask=hole)
    with pytest.raises(ArgumentError, match="its own lengths"):
        module(pack_padded_sequence(x, [5, 5], batch_first=True), mask=hole)
    with pytest.raises(ShapeError, match="at least one step"):
        module(x[:, :0])
    with pytest.raises(ArgumentError, match="proj_size"):
        stack(proj_size=-1)
