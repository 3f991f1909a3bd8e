"""`stepper()` of accelerated LSTM, GRU and RNN: the module's own outputs and states, one step at a time."""

import copy
import pickle

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import ArgumentError, DtypeError, ShapeError
from holdfast.kernels._common import library
from holdfast.nn._torch_recurrent import ACCELERATED

pytestmark = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
KINDS = {"LSTM": (nn.LSTM, {}), "GRU": (nn.GRU, {}), "RNN": (nn.RNN, {}), "relu": (nn.RNN, {"nonlinearity": "relu"})}
# features, units, layers, batch: vectors that are whole and not, more rows than one group of 8
SIZES = [(64, 64, 1, 1), (3, 7, 3, 2), (5, 33, 2, 17), (1, 1, 1, 1), (20, 16, 2, 8)]
# one step of float32, where the sum of 128 products is in another order than torch's; float64 by 2^29 less
ROUNDING = {torch.float32: 2e-6, torch.float64: 1e-14}


def made(kind, features, units, layers=1, dtype=torch.float64, **options):
    torch.manual_seed(0)
    own, choices = KINDS[kind]
    return own(features, units, layers, **choices, **options).to(dtype)


def parts(state):
    return state if isinstance(state, tuple) else (state,)


def same(ours, theirs, dtype):
    (y, state), (y_torch, state_torch) = ours, theirs
    for mine, their in zip((y, *parts(state)), (y_torch, *parts(state_torch)), strict=True):
        assert mine.shape == their.shape
        torch.testing.assert_close(mine, their, rtol=0, atol=ROUNDING[dtype])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_step_of_a_stream_is_that_of_torchs_module(kind, size, dtype, bias):
    features, units, layers, batch = size
    model = made(kind, features, units, layers, dtype, bias=bias)
    x = torch.randn(6, batch, features, dtype=dtype)
    plain = copy.deepcopy(model)
    holdfast.accelerate(model)
    stepper = model.stepper()
    with torch.no_grad():
        state = None
        for x_t in x:
            before = state  # both start each step from the same state, so that one step's rounding is what differs
            y, state = stepper(x_t, before)
            y_torch, state_torch = plain(x_t.unsqueeze(0), before)
            same((y, state), (y_torch[0], state_torch), dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_ends_where_the_whole_sequence_ends(kind):
    model = made(kind, 5, 12, 2)
    x = torch.randn(65, 3, 5, dtype=torch.float64)
    holdfast.accelerate(model)
    stepper, state, outputs = model.stepper(), None, []
    with torch.no_grad():
        whole = model(x)
        for x_t in x:
            y, state = stepper(x_t, state)
            outputs.append(y)
    for mine, their in zip((torch.stack(outputs), *parts(state)), (whole[0], *parts(whole[1])), strict=True):
        torch.testing.assert_close(mine, their, rtol=0, atol=1e-13)  # float64, 65 steps of a contraction


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_other_layouts_pass_through_a_step(kind):
    model = made(kind, 5, 7, 2)
    plain = copy.deepcopy(model)
    holdfast.accelerate(model)
    stepper = model.stepper()
    x = torch.randn(5, 4, dtype=torch.float64).t().requires_grad_()  # not contiguous
    state = stepper(torch.randn(4, 5, dtype=torch.float64), None)[1]
    y, after = stepper(x, state)
    y_torch, after_torch = plain(x.unsqueeze(0), state)
    same((y, after), (y_torch[0], after_torch), torch.float64)
    ours, theirs = (torch.autograd.grad(out.sin().sum(), x)[0] for out in (y, y_torch))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    with torch.no_grad():
        same(stepper(x, state), (y_torch[0], after_torch), torch.float64)


def test_a_stepper_has_the_weights_of_its_making_and_takes_new_ones_by_loading():
    model = made("GRU", 4, 9)
    holdfast.accelerate(model)
    stepper, x = model.stepper(), torch.randn(2, 4, dtype=torch.float64)
    with torch.no_grad():
        before = stepper(x, None)[0]
        model.weight_hh_l0.mul_(2), model.weight_ih_l0.mul_(2)
        assert torch.equal(stepper(x, None)[0], before)
        moved = model.stepper()
        assert not torch.equal(moved(x, None)[0], before)
        stepper.load_state_dict(moved.state_dict())
        assert torch.equal(stepper(x, None)[0], moved(x, None)[0])
        single = copy.deepcopy(moved).float()
        torch.testing.assert_close(single(x.float(), None)[0], moved(x, None)[0].float(), rtol=0, atol=2e-6)
        assert torch.equal(pickle.loads(pickle.dumps(moved))(x, None)[0], moved(x, None)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_stepper_is_exported_as_torchs_operators(kind):
    model = made(kind, 5, 7, 2)
    holdfast.accelerate(model)
    stepper, x = model.stepper(), torch.randn(3, 5, dtype=torch.float64)
    with torch.no_grad():
        _, state = stepper(x, None)
        exported = torch.export.export(stepper, (x, state)).module()
        same(exported(x, state), stepper(x, state), torch.float64)


def test_a_stabilised_module_streams_with_its_effective_weights():
    model = nn.Sequential(made("RNN", 3, 6))
    holdfast.accelerate(model)
    x = torch.randn(1, 2, 3, dtype=torch.float64)
    holdfast.stabilize(model)
    with torch.no_grad():
        y, last = model[0](x)
        same(model[0].stepper()(x[0], None), (y[0], last), torch.float64)


def test_outputs_are_apart_from_states():
    model = made("GRU", 4, 6)
    holdfast.accelerate(model)
    with torch.no_grad():
        y, state = model.stepper()(torch.randn(2, 4, dtype=torch.float64), None)
        kept = state.clone()
        y.zero_()
    assert torch.equal(state, kept)


def test_what_cannot_be_streamed_is_refused_by_name():
    both = made("LSTM", 3, 4, bidirectional=True)
    holdfast.accelerate(both)
    with pytest.raises(ArgumentError, match="bidirectional LSTM needs the whole sequence"):
        both.stepper()
    model = made("LSTM", 3, 4)
    holdfast.accelerate(model)
    stepper, x = model.stepper(), torch.randn(2, 3, dtype=torch.float64)
    h = torch.zeros(1, 2, 4, dtype=torch.float64)
    with torch.no_grad():
        for state in (h, (h,), (h, h[:, :1]), (h, None)):
            with pytest.raises(ShapeError, match=r"expected the state as \(h, c\) of shape \(1, 2, 4\) each"):
                stepper(x, state)
        with pytest.raises(DtypeError, match=r"expected a state in torch\.float64"):
            stepper(x, (h.float(), h.float()))
        with pytest.raises(ShapeError, match=r"expected x of shape \(batch, 3\)"):
            stepper(x[:, :2], (h, h))
        with pytest.raises(ShapeError):
            stepper(x.unsqueeze(0), (h, h))


def test_every_accelerated_class_has_a_stepper():
    assert all(hasattr(kind, "stepper") for kind in ACCELERATED.values())
