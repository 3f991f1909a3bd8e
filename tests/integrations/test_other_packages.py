"""Forecasters, policies and estimators of other packages with our layers inside; each is skipped where it is not installed."""

import copy
import logging
import re
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import holdfast
from holdfast.nn import RecurrentStack, swap_recurrences

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of other packages are theirs


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pytorch_lightning", "darts"):
        logging.getLogger(name).setLevel(logging.ERROR)


@pytest.fixture
def printed(monkeypatch, capsys):
    def run(name, *arguments):
        monkeypatch.setattr("sys.argv", [name, *arguments])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


QUIET = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_model_summary": False,
    "enable_progress_bar": False,
}  # fmt: skip


def needs_darts():
    for name in ("darts", "holidays", "pandas"):
        pytest.importorskip(name)


def test_a_forecaster_of_darts_goes_on_from_the_states_of_another_recurrence():
    needs_darts()
    import pandas
    from darts import TimeSeries
    from darts.models import RNNModel

    times = pandas.date_range("2026-01-01", periods=120, freq="h")
    series = TimeSeries.from_times_and_values(times, np.sin(np.arange(120) / 4).astype(np.float32))
    from holdfast.cli.watch import command as watch
    from holdfast.integrations.lightning import HoldfastCallback

    given = {**QUIET, "callbacks": [HoldfastCallback(every=1, folder="runs/darts")]}
    forecaster = RNNModel(24, model="LSTM", hidden_dim=8, training_length=30, n_epochs=1, pl_trainer_kwargs=given)
    forecaster.fit(series, epochs=0)
    assert swap_recurrences(forecaster, "lru") == ["rnn"]
    before = copy.deepcopy(forecaster.model.rnn.state_dict())
    forecaster.fit(series)
    network = forecaster.model
    assert any(not torch.equal(value, before[name]) for name, value in network.rnn.state_dict().items())  # it trains
    watch(Path("runs/darts"), once=True)
    assert "rnn.layers.0" in Path("runs/darts/watch.html").read_text()
    # its forecast is the recurrence run by hand: the last 24 values, then each forecast as the next input
    found = forecaster.predict(5).values()[:, 0]
    x, state, expected = torch.tensor(series.values()[-24:]).view(1, 24, 1), None, []
    with torch.no_grad():
        for _ in range(5):
            y, state = network.rnn(x, state)
            x = network.V(y[:, -1:])
            expected.append(float(x))
    np.testing.assert_allclose(found, expected, atol=1e-5)  # float32, values of order 1


def test_the_recipe_with_darts_names_what_was_looked_at_and_tells_both_errors(printed):
    needs_darts()
    text = printed("forecast_with_darts", "--epochs", "2", "--seeds", "1", "--series", "2")
    assert "model is its rnn" in " ".join(text.split())
    assert "needs 168 steps" in text
    errors = re.search(r"seed 0: test error LSTM ([\d.]+), S4D ([\d.]+)", text).groups()
    assert all(0 < float(error) < 2 for error in errors)  # series of deviation 1


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_model_of_neuralforecast_learns_with_another_recurrence(recurrent):
    for name in ("neuralforecast", "pyarrow", "pandas"):
        pytest.importorskip(name)
    import pandas
    from neuralforecast import NeuralForecast
    from neuralforecast.models import LSTM

    hours, frames = np.arange(400), []
    for i in range(3):
        times = pandas.date_range("2026-01-01", periods=400, freq="h")
        frames.append(
            pandas.DataFrame({"unique_id": f"s{i}", "ds": times, "y": np.sin(2 * np.pi * (hours / 24 + i / 3))})
        )
    frame = pandas.concat(frames)
    train, test = frame.groupby("unique_id").head(376), frame.groupby("unique_id").tail(24)
    torch.manual_seed(0)
    model = LSTM(
        h=24, input_size=72, encoder_hidden_size=16, encoder_n_layers=1, decoder_hidden_size=16, max_steps=150,
        learning_rate=1e-2, windows_batch_size=32, recurrent=recurrent, random_seed=1, **QUIET,
    )  # fmt: skip
    assert swap_recurrences(model, "lru") == ["hist_encoder"]
    forecaster = NeuralForecast([model], freq="h")
    forecaster.fit(train)
    both = forecaster.predict().merge(test, on=["unique_id", "ds"])
    assert float((both["LSTM"] - both["y"]).pow(2).mean()) < 0.1  # the series has a mean square of 0.5
    found = holdfast.diagnose(forecaster.models[0], horizon=256)
    assert any("model is its hist_encoder" in line for line in found.unseen)
    assert found.edge is not None and found.edge.worst.margin > 0


def test_a_policy_resets_its_states_where_sb3_contrib_does(monkeypatch):
    pytest.importorskip("sb3_contrib")
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy

    from holdfast.integrations.sb3 import RecurrentStackPolicy

    torch.manual_seed(0)
    stack = RecurrentStack(3, 6, num_layers=2, layer="lru", state_form="lstm").double()
    for steps in (1, 7):
        features = torch.randn(4 * steps, 3, dtype=torch.float64)
        starts = (torch.rand(4 * steps) < 0.3).double()
        states = tuple(torch.randn_like(part) for part in stack.initial_state(4))
        theirs, ours = (
            policy._process_sequence(features, states, starts, stack)
            for policy in (RecurrentActorCriticPolicy, RecurrentStackPolicy)
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_policy_with_an_lru_learns_what_its_lstm_does_not_in_as_many_steps(printed):
    pytest.importorskip("sb3_contrib")
    rewards = dict(re.findall(r"(LSTM|LRU), seed 0: mean reward ([\d.]+)", printed("rl_memory", "--seeds", "1")))
    assert float(rewards["LRU"]) > 0.9
    assert float(rewards["LSTM"]) < 0.75


def test_a_saved_policy_is_loaded_with_its_recurrence(tmp_path):
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("sb3_contrib")
    from sb3_contrib import RecurrentPPO

    from holdfast.integrations.sb3 import RecurrentStackPolicy

    choices = {"layer": "mingru", "lstm_hidden_size": 8, "net_arch": []}
    env = gymnasium.make("CartPole-v1")
    model = RecurrentPPO(
        RecurrentStackPolicy, env, n_steps=16, batch_size=16, n_epochs=1, seed=0, policy_kwargs=choices
    )
    before = copy.deepcopy(model.policy.state_dict())
    model.learn(16)
    changed = [name for name, value in model.policy.state_dict().items() if not torch.equal(value, before[name])]
    assert any("lstm_actor" in name for name in changed) and any("lstm_critic" in name for name in changed)
    model.save(tmp_path / "policy")
    loaded = RecurrentPPO.load(tmp_path / "policy")
    observation, _ = env.reset(seed=0)
    for policy in (model, loaded):
        policy.action, policy.state = policy.predict(observation, deterministic=True)
    assert model.action == loaded.action
    np.testing.assert_array_equal(model.state[1], loaded.state[1])


def test_torchrls_module_gives_each_trajectory_as_if_it_had_been_run_alone():
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from torchrl.modules import LSTMModule, set_recurrent_mode

    torch.manual_seed(0)
    stack = RecurrentStack(3, 6, num_layers=2, batch_first=True, proj_size=4, state_form="lstm").double()
    module = LSTMModule(lstm=stack, in_key="observation", out_key="features")
    x, begins = torch.randn(2, 9, 3, dtype=torch.float64), torch.zeros(2, 9, 1, dtype=torch.bool)
    begins[:, 0] = begins[0, 4] = begins[1, 7] = True
    with set_recurrent_mode(True):
        y = module(TensorDict({"observation": x, "is_init": begins}, [2, 9]))["features"]
    for row, first, last in ((0, 0, 4), (0, 4, 9), (1, 0, 7), (1, 7, 9)):
        alone = stack(x[row : row + 1, first:last])[0][0]
        torch.testing.assert_close(y[row, first:last], alone, rtol=1e-12, atol=1e-12)


def test_a_grid_search_finds_a_layer_that_remembers(printed):
    pytest.importorskip("skorch")
    text = printed("grid_search", "--epochs", "12", "--rows", "180")
    scores = {
        (layer, rate): float(s) for layer, rate, s in re.findall(r"^(\w+) +rate (\S+) +accuracy ([\d.]+)", text, re.M)
    }
    assert len(scores) == 6
    assert re.search(r"best: (lru|s4d)", text)
    assert max(s for (layer, _), s in scores.items() if layer != "lstm") > max(
        scores["lstm", r] for r in ("0.001", "0.01")
    )
    assert "NeuralNetClassifier: Classifier" in text
