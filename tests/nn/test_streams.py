"""What a stream keeps between its steps: right after every change, bounded, and safe among threads."""

import threading

import pytest
import torch
from layer_cases import build, sequence

from holdfast import parameterizations
from holdfast.nn import LRU, DiagonalSSM, LinearRNN
from holdfast.nn._kept_coefficients import MAX_ENTRIES

TIGHT = {"rtol": 1e-12, "atol": 1e-12}  # float64, one step
SOFT = {time: parameterizations.get("softplus", time=time) for time in ("continuous", "discrete")}
CHANGES = [
    ("DiagonalSSM", "dt", 0.3),
    ("DiagonalSSM", "discretization", "euler"),
    ("DiagonalSSM", "parameterization", SOFT["continuous"]),
    ("DiagonalSSM discrete", "parameterization", parameterizations.get("best", time="discrete")),
    ("LRU", "parameterization", SOFT["discrete"]),
    ("S4D lin", "discretization", "bilinear"),
    ("S4D lin", "parameterization", SOFT["continuous"]),
    ("S4D real", "parameterization", parameterizations.get("best", time="continuous")),
    ("SelectiveSSM", "parameterization", SOFT["continuous"]),
    ("LinearRNN continuous", "dt", 0.3),
    ("LinearRNN continuous", "discretization", "euler"),
    ("LinearRNN diagonal", "recurrence.parameterization", SOFT["continuous"]),
    ("ContinuousRNN", "dt", 0.3),
    ("ContinuousRNN relu", "activation", "tanh"),
    ("ContinuousRNN diagonal", "recurrence.parameterization", SOFT["continuous"]),
    ("ContinuousGRU", "dt", 0.3),
]


def _started(layer):
    state = layer.initial_state(3)
    return torch.randn(state.shape, dtype=state.dtype, generator=torch.Generator().manual_seed(3))


def _agrees_with_gradients_on(layer, x):
    """With gradients on nothing is kept: that is what the step must equal; returns it."""
    state = _started(layer)
    with torch.no_grad():
        kept, _ = layer.step(x, state)
    torch.testing.assert_close(kept, layer.step(x, state)[0].detach(), **TIGHT)
    return kept


@pytest.mark.parametrize(("name", "setting", "value"), CHANGES)
def test_a_changed_setting_is_noticed(name, setting, value):
    layer, x = build(name), sequence()[:, 0]
    before = _agrees_with_gradients_on(layer, x)
    *inside, setting = setting.split(".")
    setattr(layer.get_submodule(".".join(inside)), setting, value)
    assert not torch.equal(_agrees_with_gradients_on(layer, x), before)


def test_a_changed_constant_of_the_parameterization_is_noticed():
    layer, x = DiagonalSSM(3, 4).double(), sequence()[:, 0]
    _agrees_with_gradients_on(layer, x)
    layer.parameterization.b = 0.2
    _agrees_with_gradients_on(layer, x)


def test_a_weight_transposed_in_place_is_noticed():
    layer, x = LRU(8, 4).double(), torch.randn(3, 8, dtype=torch.float64)
    _agrees_with_gradients_on(layer, x)
    layer.B.data = layer.B.data.t()
    _agrees_with_gradients_on(layer, x)


def test_free_weights_of_another_number_are_noticed():
    layer, x = LinearRNN(3, 4, parameterization="direct", time="continuous", dt=0.4).double(), sequence()[:, 0]
    _agrees_with_gradients_on(layer, x)
    layer.recurrence.switch_(parameterizations.get_matrix("complete", time="continuous"))
    _agrees_with_gradients_on(layer, x)


def test_a_step_size_that_changes_all_the_time_fills_no_memory():
    layer, x = DiagonalSSM(3, 4).double(), sequence()[:, 0]
    with torch.no_grad():
        for i in range(100):
            layer.step(x, dt=0.1 + i * 1e-5)
            assert len(layer._kept) <= MAX_ENTRIES
        kept = layer.step(x, dt=0.1)[0]
    torch.testing.assert_close(kept, layer.step(x, dt=0.1)[0].detach(), **TIGHT)


def test_step_sizes_that_take_turns_are_made_once(monkeypatch):
    layer, x = DiagonalSSM(3, 4), sequence()[:, 0].float()
    made = []
    plain = DiagonalSSM._folded
    monkeypatch.setattr(DiagonalSSM, "_folded", lambda self, dt: made.append(dt) or plain(self, dt))
    with torch.no_grad():
        for dt in [0.1, 0.2, 0.5] * 5:
            layer.step(x, dt=dt)
    assert made == [0.1, 0.2, 0.5]


def test_weights_that_change_while_coefficients_are_made_are_not_kept_with_the_old_ones():
    layer, x = DiagonalSSM(3, 4).double(), sequence()[:, 0]
    plain, begun, changed = layer._folded, threading.Event(), threading.Event()

    def slow(dt):
        made = plain(dt)
        begun.set()
        assert changed.wait(10)
        return made

    layer.__dict__["_folded"] = slow
    with torch.no_grad():
        thread = threading.Thread(target=torch.no_grad()(layer.step), args=(x,))
        thread.start()
        assert begun.wait(10)
        layer.w.data.mul_(2)
        changed.set()
        thread.join()
        del layer.__dict__["_folded"]
    _agrees_with_gradients_on(layer, x)


def test_settings_that_change_while_coefficients_are_made_are_not_kept_with_the_old_ones():
    layer, x = DiagonalSSM(3, 4).double(), sequence()[:, 0]
    plain = layer._folded

    def changing(dt):
        made = plain(dt)
        layer.dt = 0.25
        return made

    layer.__dict__["_folded"] = changing
    with torch.no_grad():
        layer.step(x)
    del layer.__dict__["_folded"]
    _agrees_with_gradients_on(layer, x)


def test_threads_that_stream_with_moving_weights_share_what_is_kept():
    """`.data = clone` moves a weight to another address: what one thread prepared for the old one is not mixed up."""
    layer, x = DiagonalSSM(3, 4).double(), sequence()[:, 0]
    expected = layer.step(x)[0].detach()
    failures = []
    old = [layer.w.data]  # held, as a thread may still read it

    def stream():
        with torch.no_grad():
            for _ in range(300):
                try:
                    torch.testing.assert_close(layer.step(x)[0], expected, **TIGHT)
                except Exception as error:
                    failures.append(error)

    threads = [threading.Thread(target=stream) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        old.append(layer.w.data.clone())
        layer.w.data = old[-1]
    for thread in threads:
        thread.join()
    assert not failures
