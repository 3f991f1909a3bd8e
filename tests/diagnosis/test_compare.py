"""Several models side by side: numbers that can be worked out by hand, gaps with a reason, one figure."""

import json
import math

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import holdfast
from holdfast.cli.app import app
from holdfast.diagnosis import ComparedModel, _compare
from holdfast.diagnosis._cost import cost_of
from holdfast.errors import ArgumentError


class Leak(nn.Module):
    """y_t = keep y_(t-1) + x_t."""

    def __init__(self, keep):
        super().__init__()
        self.rnn = holdfast.nn.LinearRNN(1, 1, parameterization="direct", W=torch.tensor([[keep]]))
        with torch.no_grad():
            self.rnn.U.fill_(1.0)
            self.rnn.C.fill_(1.0)

    def forward(self, x):
        return self.rnn(x)[0]


class OnKernel(nn.Module):
    """torch's weights, run by holdfast's kernel."""

    def __init__(self, kind, layer):
        super().__init__()
        self.kind, self.layer = kind, layer

    def forward(self, x):
        layer = self.layer
        weights = (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0)
        return getattr(holdfast.kernels, self.kind)(x, weights)[0]


class Broken(nn.Module):
    def forward(self, x):
        raise ValueError("expected something else")


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 4)
        self.rnn = nn.GRU(4, 4, batch_first=True)

    def forward(self, x):
        return self.rnn(self.table(x))[0]


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    numbers, tokens = torch.randn(2, 60, 1), torch.randint(20, (2, 60))
    models = {
        "half": Leak(0.5),
        "most": Leak(0.9),
        "mean": lambda x: x.cumsum(1),
        "tokens": Tokens(),
        "broken": Broken(),
    }
    inputs = dict.fromkeys(models, numbers) | {"tokens": tokens}
    return holdfast.compare(models, inputs, horizon=256)


def test_a_leak_has_the_numbers_that_its_factor_says(found):
    for name, keep in (("half", 0.5), ("most", 0.9)):
        row = found[name]
        # the first step at which keep^k is below 1%, at rest and for an exchanged input alike
        assert row.steps == row.data_steps == math.floor(math.log(0.01) / math.log(keep)) + 1
        assert row.time_constant == pytest.approx(-1 / math.log(keep), rel=1e-6)
        assert row.exponent == pytest.approx(math.log(keep), rel=1e-6)
        assert row.margin == pytest.approx(1 - keep, rel=1e-6)
        assert row.law.startswith("exponential")
        # W h, U x and C h, one number each
        assert (row.weights, row.operations) == (3, 3)


def test_a_sum_does_not_fade_and_has_no_recurrence_to_look_at(found):
    row = found["mean"]
    assert math.isinf(row.steps)
    assert row.margin is None
    assert any(reason.startswith("edge:") for reason in row.unseen)


def test_a_model_of_tokens_stands_beside_models_of_numbers(found):
    assert found["tokens"].weights == 20 * 4 + 3 * 4 * (4 + 4 + 2)
    assert found["tokens"].operations == 3 * 4 * (4 + 4)
    assert found["tokens"].data_steps > 0


def test_a_model_that_fails_is_a_row_with_its_reason(found):
    row = found["broken"]
    assert row.steps is None
    assert "expected something else" in " ".join(row.unseen)
    table = found.table()
    assert "broken: model" in table
    assert len({len(line) for line in table.split("\n\n")[0].splitlines()}) == 1


def test_figure_json_and_file_keep_everything(found, tmp_path):
    rest, data = found.figure().panels
    names = [layer.label for layer in rest.layers]
    assert names == ["half", "most", "mean", "tokens", "1%"]
    colours = [layer.colour for layer in rest.layers[:-1]]
    assert colours == [layer.colour for layer in data.layers[:-1]] == [0, 1, 2, 3]
    shown = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [row["name"] for row in shown["models"]] == ["half", "most", "mean", "tokens", "broken"]
    loaded = holdfast.Comparison.load(found.save(tmp_path / "c.json"))
    assert loaded.table() == found.table()
    assert "half 7, most 44" in found.summary()


def test_names_of_inputs_and_an_empty_set_are_checked():
    with pytest.raises(ArgumentError, match="expected names of models"):
        holdfast.compare({"a": Leak(0.5)}, {"b": torch.zeros(1, 4, 1)})
    with pytest.raises(ArgumentError, match="at least one"):
        holdfast.compare({})


@pytest.mark.parametrize(
    ("layer", "operations"),
    [
        (nn.LSTM(3, 5, 2, batch_first=True), 4 * 5 * (3 + 5) + 4 * 5 * (5 + 5)),
        (nn.GRU(3, 5, batch_first=True), 3 * 5 * (3 + 5)),
        (OnKernel("lstm", nn.LSTM(3, 5)), 4 * 5 * (3 + 5)),
        (OnKernel("gru", nn.GRU(3, 5)), 3 * 5 * (3 + 5)),
        (nn.Conv1d(3, 3, 1), None),
        (holdfast.nn.LinearRNN(3, 5), 5 * 5 + 5 * 3 + 3 * 5),
        # complex: B u and C h have twice the rows, each mode is one complex product
        (holdfast.nn.LRU(3, 5), 2 * 5 * 3 + 3 * 2 * 5 + 4 * 5),
        # 4 complex modes for a state of 8, of each channel: the update and both projections
        (holdfast.nn.S4D(3, 8), 3 * 4 * 8),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_operations_are_those_counted_by_hand(layer, operations):
    cost = cost_of(layer, lambda steps: torch.zeros(1, steps, 3))
    assert cost.operations == operations
    assert cost.weights == sum(p.numel() for p in layer.parameters())


def test_the_command_prints_the_table_and_ends_with_1_where_a_model_fails(tmp_path):
    (tmp_path / "models.py").write_text(
        "from torch import nn\n"
        "def small(): return nn.GRU(1, 2, batch_first=True)\n"
        "class Broken(nn.Module):\n"
        "    def forward(self, x): raise ValueError('no')\n"
    )
    file = tmp_path / "models.py"
    arguments = ["compare", f"{file}:small", f"{file}:Broken", "--horizon", "64", "--json"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 1
    first, second = json.loads(shown.stdout)["models"]
    assert first["weights"] == 3 * 2 * (1 + 2 + 2)
    assert second["weights"] is None


def test_an_oscillating_memory_is_followed_past_the_zero_at_the_end_of_the_first_window():
    # r^t cos(w t) with its first zero at step 256, where the first window ends: 1% is left for good from step 918 on
    r, w = 0.995, math.pi / 2 / 256
    W = r * torch.tensor([[math.cos(w), -math.sin(w)], [math.sin(w), math.cos(w)]])
    model = holdfast.nn.LinearRNN(1, 2, out_features=1, W=W)
    with torch.no_grad():
        model.U.copy_(torch.tensor([[1.0], [0.0]]))
        model.C.copy_(torch.tensor([[1.0, 0.0]]))
    t = torch.arange(4000, dtype=torch.float64)
    last = int((r**t * torch.cos(w * t)).abs().gt(0.01).nonzero().max())
    assert abs(holdfast.compare({"damped": model}).models[0].steps - last) <= 2


def test_the_input_size_of_a_plain_module_is_that_of_its_inputs():
    class Gated(nn.Module):
        """A recurrence whose first Linear does not read the input."""

        def __init__(self):
            super().__init__()
            self.W, self.U = nn.Linear(3, 3), nn.Linear(1, 3)

        def forward(self, x):
            h = x.new_zeros(len(x), 3)
            steps = []
            for x_t in x.unbind(1):
                h = torch.tanh(self.W(h) + self.U(x_t))
                steps.append(h)
            return torch.stack(steps, 1)

    torch.manual_seed(0)
    row = holdfast.compare({"mine": Gated()}, torch.randn(4, 60, 1), horizon=64).models[0]
    assert row.steps is not None
    assert not any("model:" in line for line in row.unseen)


@pytest.mark.parametrize(("share", "shown"), [(1.0, "100%"), (2.344, "234%"), (0.123, "12%"), (0.0512, "5.1%")])
def test_what_a_model_survives_is_a_percentage_without_an_exponent(share, shown):
    one = ComparedModel("a", "GRU", survival=share)
    assert _compare._cell("survival", one) == shown
