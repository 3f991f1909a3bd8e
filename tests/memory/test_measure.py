import functools
import math
import random

import numpy as np
import pytest
import torch
from models import (
    BatchMixing,
    Bump,
    CausalTransformer,
    Clock,
    Integrator,
    Linear,
    Remembering,
    Resuming,
    random_linear,
)
from torch import nn

from holdfast import nn as holdfast_nn
from holdfast.errors import ArgumentError, ShapeError, UnknownNameError
from holdfast.memory import (
    InputSearch,
    MemoryCurve,
    ModelError,
    Probe,
    Run,
    _probes,
    check_properties,
    closed_form,
    memory_function,
)

PROBES = ("heaviside", "impulse", "reversed")


def exact(model, horizon, norm=math.inf):
    return closed_form.diagonal(model.lam, model.B, model.C, range(horizon + 1), time="discrete").memory(norm).numpy()


@pytest.mark.parametrize("inputs", [1, 3])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("probe", PROBES)
def test_every_probe_of_a_linear_model_measures_the_l1_norm_of_rho(probe, inputs, outputs):
    model = random_linear(inputs, outputs)
    curve = memory_function(model, input_size=inputs, horizon=150, probe=probe)
    assert curve.status == "ok"
    # the reversed probe leaves rho(t + burn-in), which settling bounds by 1e-9 of the response; the rest is rounding
    np.testing.assert_allclose(curve.values, exact(model, 150), rtol=0, atol=1e-10)


def test_complex_modes_and_the_paper_form_of_the_reversed_probe_agree_with_rho():
    lam = torch.tensor([0.9 + 0.3j, 0.5 - 0.6j], dtype=torch.complex128)
    model = Linear(lam, torch.ones(2, 1, dtype=torch.complex128), torch.ones(1, 2, dtype=torch.complex128))
    for options in ({"probe": "heaviside"}, {"probe": Probe("reversed", form="window")}):
        curve = memory_function(model, horizon=60, run=Run(dtype=torch.float64), **options)
        np.testing.assert_allclose(curve.values, exact(model, 60), rtol=0, atol=1e-13)


@pytest.mark.parametrize("probe", ["heaviside", "impulse"])
def test_a_continuous_time_model_shows_rho_averaged_over_a_step(probe):
    rates, dt = torch.tensor([-0.3, -2.0], dtype=torch.float64), 0.1
    b, c = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([[1.0, -1.0]]).double()
    held = torch.expm1(rates * dt) / rates
    model = Linear(torch.exp(rates * dt), held.unsqueeze(1) * b, c)
    curve = memory_function(model, horizon=100, probe=Probe(probe, dt=dt))
    kernel = closed_form.diagonal(rates, b, c, curve.time, step=dt)
    # differences of outputs of size 1 over dt = 0.1
    np.testing.assert_allclose(curve.values, kernel.memory().numpy(), rtol=0, atol=1e-13)


def test_norm_over_outputs_and_the_other_normalization():
    model = random_linear(3, 2)
    curve = memory_function(model, input_size=3, horizon=40, probe=Probe(norm=2.0))
    np.testing.assert_allclose(curve.values, exact(model, 40, 2.0), rtol=0, atol=1e-13)
    shifted = memory_function(
        model, input_size=3, horizon=40, probe=Probe(normalization="x+1"), search=InputSearch(amplitudes=(1.0, 4.0))
    )
    # a / (a + 1) grows with a, so that the largest amplitude wins
    np.testing.assert_allclose(shifted.values, exact(model, 40) * 4 / 5, rtol=0, atol=1e-13)


def test_with_many_inputs_sign_vectors_are_found_from_the_unit_responses():
    model = random_linear(40, modes=3)
    curve = memory_function(model, input_size=40, horizon=60)
    # 3 modes change signs few times, so that all patterns fit the budget of 64
    np.testing.assert_allclose(curve.values, exact(model, 60), rtol=0, atol=1e-12)
    at = curve.maximiser[7]
    rho = closed_form.diagonal(model.lam, model.B, model.C, [7], time="discrete").rho[0, 0]
    assert abs(float(rho @ torch.from_numpy(at))) / np.abs(at).max() == pytest.approx(curve.values[7], rel=1e-12)


def test_a_bias_is_burnt_in_and_subtracted():
    model = random_linear(1)
    biased = random_linear(1, bias=5.0)
    plain = memory_function(model, horizon=50)
    shifted = memory_function(biased, horizon=50)
    # outputs of size 5, divided by the smallest amplitude 0.1: 5 * 2e-16 * 10, some roundings
    np.testing.assert_allclose(shifted.values, plain.values, rtol=0, atol=1e-13)
    assert shifted.zero_input == pytest.approx([5.0])
    torch.manual_seed(0)
    gru = nn.GRU(1, 8, batch_first=True)
    curve = memory_function(gru, horizon=20)
    assert curve.burn_in > 8
    assert curve.status == "ok"
    assert np.abs(curve.zero_input).max() > 0.01


def test_gradient_ascent_finds_an_amplitude_that_the_grid_misses():
    grid = memory_function(Bump(), horizon=3, search="grid")
    ascent = memory_function(Bump(), horizon=3, search="ascent")
    assert grid.jump < 1e-6
    # 20 shrinking sign steps end within a percent or two of x = 3
    assert ascent.jump == pytest.approx(1.0, abs=0.02)
    assert ascent.maximiser[0, 0] == pytest.approx(3.0, abs=0.1)


def test_ascent_without_a_gradient_is_noted():
    curve = memory_function(lambda x: torch.tanh(x.detach()), horizon=3, search="ascent")
    assert "no gradient" in curve.notes[0]
    assert curve.jump == pytest.approx(math.tanh(0.1) / 0.1)


def test_given_candidates_are_the_only_ones_tried():
    model = random_linear(2)
    x = torch.tensor([[1.0, 0.5], [-2.0, 1.0]])
    curve = memory_function(model, input_size=2, horizon=10, search=InputSearch(candidates=x))
    assert curve.tried == 2
    rho = closed_form.diagonal(model.lam, model.B, model.C, range(11), time="discrete").rho[:, 0]
    expected = (rho @ x.double().T).abs() / x.abs().amax(-1)
    np.testing.assert_allclose(curve.values, expected.amax(-1).numpy(), rtol=0, atol=1e-13)


def test_reversed_probe_takes_a_number_of_steps_linear_in_the_horizon():
    steps = {}
    for horizon in (500, 1000):
        model = random_linear(1)
        memory_function(model, horizon=horizon, probe="reversed")
        steps[horizon] = sum(model.steps)
    # 6 probes, the zero input, and 3 rows twice for causality; a quadratic method would take 6 * 1000^2
    assert steps[1000] - steps[500] == 13 * 500


def test_reversed_probe_of_a_model_that_never_rests_takes_the_paper_form_or_says_so():
    done = []
    curve = memory_function(Integrator(), horizon=100, probe="reversed", progress=lambda *a: done.append(a))
    np.testing.assert_allclose(curve.values, 1.0, rtol=1e-4)  # float32: sums up to 1000 divided by 10
    assert curve.status == "ok"
    assert done[-1] == (6 * 102, 6 * 102)
    long = memory_function(Integrator(), horizon=300, probe=Probe("reversed", max_burn_in=64))
    assert long.status == "unsettled"
    assert "still moved" in long.notes[0]


@pytest.mark.parametrize("probe", PROBES)
def test_a_model_with_a_state_runs_its_past_once_and_measures_the_same(probe):
    plain, resuming = (random_linear(1, slowest=0.97, drive=1.0, kind=kind) for kind in (Linear, Resuming))
    curve, again = (memory_function(model, horizon=100, probe=probe) for model in (plain, resuming))
    np.testing.assert_allclose(again.values, curve.values, rtol=0, atol=1e-12)  # outputs of size 100, differenced
    assert min(again.burn_in, curve.burn_in) > 100
    # the last run holds 6 probes and the zero input: with a state, over the horizon alone
    own = 101 + again.burn_in if probe == "reversed" else 101
    assert (resuming.steps[-1], plain.steps[-1]) == (7 * own, 7 * (101 + curve.burn_in))


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("kind", [Linear, Resuming])
def test_pieces_of_time_measure_the_same_and_bound_a_call(probe, kind, monkeypatch):
    model = random_linear(1, outputs=3, slowest=0.97, drive=1.0, kind=kind)
    whole = memory_function(model, horizon=400, probe=probe)
    monkeypatch.setattr(_probes, "PIECE_NUMBERS", 1)
    again = memory_function(model, horizon=400, probe=probe)
    np.testing.assert_allclose(again.values, whole.values, rtol=0, atol=1e-12)
    np.testing.assert_allclose(again.values[:100], exact(model, 99), rtol=0, atol=1e-9)
    if kind is Linear or probe == "reversed":
        assert model.steps[-1] == 7 * (401 + again.burn_in)
    else:  # 401 steps of 6 probes and the zero input in 7 calls, none of which is short
        assert [steps // 7 for steps in model.steps[-7:]] == [57, 57, 57, 58, 57, 57, 58]


def test_a_state_that_is_not_one_is_not_used():
    class Wrong(Linear):
        def forward(self, x, state=None):
            return super().forward(x)

    class Averaged(Linear):
        def forward(self, x, state=None):
            y, h = super().forward(x)
            return y, h.mean()

    for kind in (Wrong, Averaged):
        model = random_linear(1, kind=kind)
        np.testing.assert_allclose(memory_function(model, horizon=50).values, exact(model, 50), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("layout", ["batch_first", "time_first"])
def test_torch_recurrences_start_from_their_state_and_measure_the_same(kind, layout):
    torch.manual_seed(0)
    model = kind(2, 6, num_layers=2, batch_first=layout == "batch_first").double()
    stateless = memory_function(lambda x: model(x)[0], input_size=2, horizon=40, run=Run(layout, dtype=torch.float64))
    curve = memory_function(model, input_size=2, horizon=40, run=Run(layout))
    # the rest state is settled to 1e-9 of its movement, and divided by the smallest amplitude
    np.testing.assert_allclose(curve.values, stateless.values, rtol=0, atol=1e-12)


def test_a_slow_layer_settles_on_its_own_state():
    torch.manual_seed(0)
    model = holdfast_nn.SequenceModel(1, 8, depth=2, layer="s4d", state_size=8)
    curve = memory_function(model, horizon=50)
    assert curve.status == "ok"
    assert curve.burn_in > 4096  # rates of 0.0005 to 0.05 per step, and float32 ends after 13 e-folds


def test_a_given_burn_in_is_checked_too():
    model = random_linear(1, slowest=0.97, drive=1.0)
    short, enough = (memory_function(model, horizon=20, probe=Probe(burn_in=n)) for n in (20, 1000))
    assert short.status == "unsettled"
    assert "after 20 steps" in short.notes[0]
    assert enough.status == "ok"
    np.testing.assert_allclose(enough.values, exact(model, 20), rtol=0, atol=1e-10)


def test_one_pass_holds_every_shorter_horizon():
    model = random_linear(1)
    whole, part = memory_function(model, horizon=80), memory_function(model, horizon=30)
    np.testing.assert_array_equal(whole.until(30.0).values, part.values)
    assert whole.until(30.0).maximiser.shape == (31, 1)


def test_double_lowers_the_rounding_floor_and_keeps_the_model_in_float32():
    torch.manual_seed(0)
    model = nn.GRU(1, 8, batch_first=True)
    single, double = memory_function(model, horizon=50), memory_function(model, horizon=50, double=True)
    assert double.floor.max() < 1e-7 * single.floor.max()
    assert model.weight_hh_l0.dtype == torch.float32
    # ten times the floor of the float32 curve, which is divided by the smallest amplitude
    np.testing.assert_allclose(single.values, double.values, rtol=1e-3, atol=10 * single.floor.max())


def test_double_widens_complex_weights_too():
    lam = torch.tensor([0.9 + 0.3j, 0.5 - 0.6j], dtype=torch.complex64)
    model = Linear(lam, torch.ones(2, 1, dtype=torch.complex64), torch.ones(1, 2, dtype=torch.complex64))
    curve = memory_function(model, horizon=60, double=True, run=Run(dtype=torch.float64))
    np.testing.assert_allclose(curve.values, exact(model, 60), rtol=0, atol=1e-13)
    assert model.lam.dtype == torch.complex64


def test_ascent_from_a_state_finds_no_less_than_the_grid():
    torch.manual_seed(0)
    model = nn.GRU(2, 8, batch_first=True)
    auto, ascent = (memory_function(model, input_size=2, horizon=30, search=how) for how in ("auto", "ascent"))
    assert (ascent.values >= auto.values).all()
    assert (ascent.values > 1.01 * auto.values).any()


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM, CausalTransformer])
def test_torch_models_are_measured_by_one_call(kind):
    torch.manual_seed(0)
    model = kind(1, 16, batch_first=True) if issubclass(kind, nn.RNNBase) else kind()
    for probe in PROBES:
        curve = memory_function(model, horizon=60, probe=probe)
        assert curve.status == "ok"
        assert 0 < curve.values[-1] < curve.values.max()


def test_time_first_models_are_refused_or_measured_by_their_layout():
    torch.manual_seed(0)
    model = nn.LSTM(1, 8)
    with pytest.raises(ModelError, match="layout='time_first'"):
        memory_function(model, horizon=20)
    swapped = memory_function(model, horizon=20, run=Run("time_first"))
    model.batch_first = True
    np.testing.assert_allclose(swapped.values, memory_function(model, horizon=20).values, rtol=1e-4, atol=1e-6)


def test_batch_and_time_swapped_inside_a_wrapper_is_caught():
    inner = nn.GRU(1, 8)
    with pytest.raises(ModelError, match="rows of a batch influence each other"):
        memory_function(lambda x: inner(x)[0], horizon=20)
    with pytest.raises(ModelError, match="rows of a batch influence each other"):
        memory_function(BatchMixing(), horizon=20)
    with pytest.raises(ModelError, match="rows of a batch influence each other"):
        memory_function(nn.TransformerEncoderLayer(4, 2, 8), input_size=4, horizon=20)


def test_a_model_that_is_random_in_eval_mode_is_caught_and_one_with_plain_dropout_is_measured():
    with pytest.raises(ModelError, match="dropout or noise is on"):
        memory_function(lambda x: nn.functional.dropout(x, 0.5, training=True), horizon=10)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1))
    model[1].eval()
    assert memory_function(model, horizon=10).status == "ok"
    assert [model.training, model[0].training, model[1].training] == [True, True, False]
    with pytest.raises(ModelError, match="dropout or noise is on"):
        memory_function(model, horizon=10, run=Run(mode="as is"))


def test_nan_is_a_status_and_infinite_on_the_curve():
    always = memory_function(lambda x: x * math.nan, horizon=10)
    assert always.status == "not finite"
    assert np.isinf(always.values).all()

    def late(x):
        k = torch.arange(x.shape[1]).view(1, -1, 1)
        return torch.where((k > 20) & (x != 0), torch.full_like(x, math.nan), x)

    curve = memory_function(late, horizon=30)
    assert curve.status == "not finite"
    first = 21 - curve.burn_in
    assert np.isfinite(curve.values[:first]).all()
    assert np.isinf(curve.values[first:]).all()
    assert f"from t = {first}" in curve.notes[0]


def test_models_that_are_not_causal_are_caught():
    for model in (nn.LSTM(1, 4, batch_first=True, bidirectional=True), lambda x: x - x.mean(1, keepdim=True)):
        with pytest.raises(ModelError, match="not causal"):
            memory_function(model, horizon=20)


@pytest.mark.parametrize("probe", ["heaviside", "impulse", "reversed"])
@pytest.mark.parametrize("steps", [1, 20, 99])
def test_a_model_that_sees_some_steps_ahead_is_caught_however_far(probe, steps):
    def ahead(x):
        return torch.cat([x, torch.zeros(len(x), steps, 1)], 1)[:, steps:]

    with pytest.raises(ModelError, match="not causal"):
        memory_function(ahead, horizon=100, probe=probe)
    assert check_properties(ahead, horizon=100).causal.answer == "no"


def test_a_model_that_sees_ahead_within_blocks_is_caught():
    def blocks(x):
        return torch.cat([part.mean(1, keepdim=True).expand(-1, part.shape[1], -1) for part in x.split(25, 1)], 1)

    with pytest.raises(ModelError, match="not causal"):
        memory_function(lambda x: torch.where(torch.arange(x.shape[1]).view(1, -1, 1) < 25, x, blocks(x)), horizon=100)


def test_a_chaotic_model_is_not_taken_for_one_that_sees_ahead():
    torch.manual_seed(0)
    unit = nn.RNN(1, 64, batch_first=True)
    with torch.no_grad():
        unit.weight_hh_l0.mul_(4)  # differences grow tenfold in a few steps
    assert memory_function(unit, horizon=500).time[-1] == 500


def test_a_leak_that_only_a_long_run_shows_is_caught():
    def leaks_when_long(x):
        return x if x.shape[1] < 100 else x + 0.1 * x.mean(1, keepdim=True)

    with pytest.raises(ModelError, match="not causal"):
        memory_function(leaks_when_long, horizon=200)


def test_wrong_output_shapes_are_named():
    with pytest.raises(ModelError, match="one answer per sequence"):
        memory_function(lambda x: x.mean(1), horizon=10)
    with pytest.raises(ModelError, match="as long as the input"):
        memory_function(lambda x: x[:, ::2], horizon=10)
    with pytest.raises(ModelError, match="one output per step at every length"):
        memory_function(lambda x: x if x.shape[1] < 60 else x[:, 1:], horizon=100)
    with pytest.raises(ModelError, match="Check input_size"):
        memory_function(nn.Linear(3, 1), horizon=10)
    with pytest.raises(ModelError, match="begins with one"):
        memory_function(lambda x: {"y": "no tensor"}, horizon=10)
    assert memory_function(lambda x: {"loss": x.mean(), "y": x}, horizon=10).jump == pytest.approx(1.0)
    assert memory_function(lambda x: x.squeeze(-1), horizon=10).jump == pytest.approx(1.0)


def test_a_model_that_does_not_settle_says_so():
    curve = memory_function(Clock(), horizon=20, probe=Probe(max_burn_in=100))
    assert curve.status == "unsettled"
    assert "after 100 steps" in curve.notes[0]
    # the zero-input response is subtracted anyway
    assert curve.jump == pytest.approx(1.0, abs=1e-5)


def test_a_state_kept_between_calls_is_caught_and_put_back():
    model = Remembering()
    with pytest.raises(ModelError, match="keeps a state between calls"):
        memory_function(model, horizon=20)
    assert model.state is None
    assert float(model.calls) == 0


def test_the_model_and_the_random_states_are_left_as_they_were(user_mistakes):
    # user_mistakes switches the checking of annotations off, which itself draws from Python's random numbers
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(4, 1))
    model[1] = nn.LayerNorm(4)
    model[2].eval()
    model[0].weight.grad = torch.ones(4, 1)
    model[3].weight.requires_grad_(False)
    seen = []
    model.register_forward_hook(lambda *a: seen.append(1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    memory_function(model, horizon=20, search="ascent")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(model[0].weight.grad, torch.ones(4, 1))
    assert model[3].weight.grad is None
    assert [p.requires_grad for p in model.parameters()] == [True] * 4 + [False, True]
    assert len(model._forward_hooks) == 1
    assert seen
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


def test_modules_behind_functions_are_put_into_eval_mode_too():
    model = nn.Sequential(nn.Linear(1, 3), nn.Dropout(0.5))

    class Holder:
        def __init__(self):
            self.model = model

        def __call__(self, x):
            return self.model(x)

    for wrapped in (lambda x: model(x), functools.partial(model), model.forward, Holder()):
        assert memory_function(wrapped, horizon=8).status == "ok"
        assert model.training


def test_mistakes_are_named(user_mistakes):
    model = random_linear(1)
    for make in (
        lambda: memory_function(model, probe="step"),
        lambda: memory_function(model, search="all"),
        lambda: Probe("step"),
        lambda: Probe(normalization="relative"),
        lambda: Probe("reversed", form="fast"),
        lambda: InputSearch("all"),
        lambda: Run(mode="train"),
        lambda: Run("channels"),
    ):
        with pytest.raises(UnknownNameError):
            make()
    for make in (
        lambda: memory_function(model, horizon=0),
        lambda: memory_function(model, input_size=0),
        lambda: memory_function(model, run=Run(dtype=torch.int64)),
        lambda: memory_function(model, run="time_first"),
        lambda: Probe(dt=0.0),
        lambda: Probe(norm=0.5),
        lambda: Probe(burn_in=-1),
        lambda: Probe("reversed", burn_in=0),
        lambda: InputSearch(amplitudes=()),
        lambda: InputSearch(amplitudes=(-1.0,)),
        lambda: InputSearch(budget=0),
        lambda: InputSearch(candidates=torch.zeros(1, 1)),
    ):
        with pytest.raises(ArgumentError):
            make()
    with pytest.raises(ShapeError):
        memory_function(model, search=InputSearch(candidates=torch.ones(2, 3)))
    with pytest.raises(ArgumentError, match=r"nn\.Module or a function"):
        memory_function(3)
    with pytest.raises(ArgumentError, match="double"):
        memory_function(lambda x: x, double=True)


def test_an_option_that_would_be_ignored_is_refused(user_mistakes):
    x = torch.ones(1, 1)
    for make in (
        lambda: Probe(form="window"),
        lambda: Probe("reversed", form="window", burn_in=3),
        lambda: Probe(burn_in=3, max_burn_in=5),
        lambda: InputSearch("grid", candidates=x),
        lambda: InputSearch(candidates=x, budget=3),
        lambda: InputSearch(candidates=x, amplitudes=(1.0,)),
    ):
        with pytest.raises(ArgumentError, match=r"leave|is for"):
            make()


def test_a_curve_can_be_made_by_hand_and_checks_itself(user_mistakes):
    curve = MemoryCurve(time=[0, 1, 2], values=torch.tensor([1.0, 0.5, math.inf]))
    assert curve.values.dtype == np.float64
    assert curve.to_dict()["values"] == [1.0, 0.5, None]
    assert "3 times to 2" in repr(curve)
    for wrong in ({"time": [0, 1], "values": [1.0]}, {"time": [], "values": []}):
        with pytest.raises(ShapeError):
            MemoryCurve(**wrong)
    for values in ([1.0, -1.0], [1.0, math.nan]):
        with pytest.raises(ArgumentError):
            MemoryCurve(time=[0, 1], values=values)
    with pytest.raises(ArgumentError, match="increase"):
        MemoryCurve(time=[1, 1], values=[1.0, 1.0])


def test_the_floor_does_not_jump_where_another_amplitude_wins():
    torch.manual_seed(2)
    unit = torch.nn.LSTM(1, 32, batch_first=True)
    curve = memory_function(unit, horizon=120, probe="reversed", double=True)
    sizes = np.abs(curve.maximiser).max(1)
    assert len(set(sizes)) > 1  # the largest value comes from different amplitudes at different times
    clear = curve.values > 2 * curve.floor
    last = int(np.flatnonzero(clear)[-1])
    # the curve sinks into its floor step by step: where it ends, it is within a few steps' decay of it
    assert curve.values[last] < 40 * curve.floor[last + 1]


def test_a_model_that_rounds_to_float32_inside_has_the_floor_of_float32_and_says_so():
    class Narrow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.RNN(1, 8, batch_first=True)

        def forward(self, x):
            return self.inner(x)[0].float().to(x.dtype)

    torch.manual_seed(0)
    model = Narrow()
    narrow = memory_function(model, horizon=40, double=True)
    plain = memory_function(model.inner, horizon=40, double=True)
    # eps of float32 is 2^29 times that of float64, and more inputs sink below it
    assert narrow.floor.min() >= 2.0**28 * plain.floor.min()
    assert "float32 inside" in narrow.notes[0]
    assert plain.notes == ()
