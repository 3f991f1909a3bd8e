"""recurrences: one view of any model's recurrences, by structure or by the Jacobian of a step; nothing else walks a model."""

import ast
import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import holdfast
from holdfast import certify, parameter_groups, perturbation_error, recurrences
from holdfast.errors import ArgumentError
from holdfast.memory.preserve import undisturbed
from holdfast.nn import (
    LRU,
    S4D,
    ContinuousGRU,
    ContinuousRNN,
    DiagonalSSM,
    LinearRNN,
    Mamba,
    Mamba2,
    SelectiveSSM,
    SequenceModel,
    StepFunction,
)
from holdfast.nn._views.reads import settle_views
from holdfast.stability import Ball, DivergenceWarning, GradientMonitor
from holdfast.stability.certificates._certificate import time_constant

pytestmark = pytest.mark.filterwarnings("ignore:.*fast path is not available")
ROUNDING = 1e-9  # two ways to one equilibrium in float64


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def transformers_mamba(kind="Mamba"):
    transformers = pytest.importorskip("transformers")
    more = {"num_heads": 4, "head_dim": 8, "n_groups": 1} if kind == "Mamba2" else {}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=20, hidden_size=16, state_size=8, num_hidden_layers=2, expand=2, **more
    )
    return getattr(transformers, f"{kind}Model")(config)


def rwkv():
    transformers = pytest.importorskip("transformers")
    return transformers.RwkvModel(
        transformers.RwkvConfig(vocab_size=20, hidden_size=8, attention_hidden_size=8, num_hidden_layers=2)
    )


def griffin():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 24, "num_attention_heads": 2, "lru_width": 8}
    return transformers.RecurrentGemmaModel(
        transformers.RecurrentGemmaConfig(vocab_size=20, num_hidden_layers=1, attention_window_size=16, **sizes)
    )


def holding(*names):
    """A module of someone else that has vectors of these names."""
    module = nn.Module()
    for name in names:
        setattr(module, name, nn.Parameter(-torch.ones(3)))
    return module


class S4DKernel(nn.Module):
    """The weights of state-spaces' S4D."""

    def __init__(self):
        super().__init__()
        self.log_dt = nn.Parameter(torch.rand(3) - 4)
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(3, 4)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(4.0).repeat(3, 1))
        self.C = nn.Parameter(torch.randn(3, 4, 2))


# a model, the class of its views, their paths, and what is perturbed: one line for each family
CASES = {
    "layer": (lambda: SequenceModel(1, 4, depth=2, layer="lru", state_size=4), "LayerView", 2, {"w", "phase"}),
    "gated layer": (lambda: ContinuousGRU(1, 4), "GatedLayerView", 1, {"U"}),
    "torch": (lambda: nn.GRU(1, 4, 2, bidirectional=True), "TorchView", 4, {"weight_hh_l0", "weight_hh_l1_reverse"}),
    "cell": (lambda: nn.LSTMCell(2, 3), "TorchView", 1, {"weight_hh"}),
    "projected": (lambda: nn.LSTM(2, 4, proj_size=2), "TorchView", 1, {"weight_hh_l0", "weight_hr_l0"}),
    "mamba": (transformers_mamba, "MambaView", 2, {"A_log"}),
    "mamba2": (lambda: transformers_mamba("Mamba2"), "MambaView", 2, {"A_log"}),
    "rwkv": (rwkv, "DecayView", 2, {"time_decay"}),
    "griffin": (griffin, "GriffinView", 1, {"recurrent_param"}),
    "s4d": (S4DKernel, "DecayView", 1, {"log_A_real", "A_imag", "log_dt"}),
    "lru": (lambda: holding("nu_log", "theta_log", "gamma_log", "B", "C"), "LRUView", 1, {"nu_log", "theta_log"}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_family_is_viewed_and_every_reader_agrees(name):
    make, kind, count, names = CASES[name]
    model = make()
    views = recurrences(model)
    assert [type(view).__name__ for view in views] == [kind] * count
    assert names <= {weight.name for view in views for weight in view.weights}
    every = dict(model.named_parameters())
    for view in views:
        assert view.owner == "" or model.get_submodule(view.owner) is view.module
        assert all(every[path] is p for path, p in view.undecayed.items())
        assert {path for weight in view.weights for path in weight.free} <= set(view.undecayed)
        step = view.step_map()
        h = 1e-3 * torch.randn(2, step.size, dtype=torch.float64)
        assert step(h).shape == h.shape
    whole = certify(model)
    parts = whole.parts or (whole,)
    assert [part.path for part in parts] == [view.path for view in views]
    with undisturbed(model), torch.no_grad():
        settle_views(model, views)  # margins are those where the whole model rests
    for part, view in zip(parts, views, strict=True):
        assert view.margin() == pytest.approx(part.margin, rel=1e-4, abs=ROUNDING)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    monitor = GradientMonitor(model, share=1.0)
    monitor.record()
    assert np.nanmin(monitor.history.margin[0]) == pytest.approx(whole.margin, rel=1e-4, abs=ROUNDING)


def test_the_step_map_of_a_linear_layer_has_the_factors_of_its_step():
    for layer in (LRU(2, 4), S4D(2, 4), LinearRNN(2, 4), DiagonalSSM(1, 3, dt=0.1)):
        (view,) = recurrences(layer)
        step = view.step_map()
        J = step.jacobians(step, torch.zeros(1, step.size, dtype=torch.float64))[0]
        assert 1 - float(torch.linalg.eigvals(J).abs().max()) == pytest.approx(
            view.margin(), rel=1e-3
        )  # float32 weights


class TestNoNameIsEnough:
    def test_a_gated_delta_rule_is_not_certified_as_mamba(self):
        class DeltaNet(nn.Module):  # the weights of Qwen3-Next's linear attention
            def __init__(self):
                super().__init__()
                self.in_proj, self.conv1d = nn.Linear(8, 16), nn.Conv1d(16, 16, 4, groups=16)
                self.A_log, self.dt_bias = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(4))
                self.D = nn.Parameter(torch.ones(4))

        assert recurrences(DeltaNet()) == ()
        with pytest.raises(ArgumentError, match="a recurrence that holdfast recognizes"):
            certify(DeltaNet())

    def test_qwen3_next_itself_is_not_certified(self):
        transformers = pytest.importorskip("transformers")
        if not hasattr(transformers, "Qwen3NextConfig"):
            pytest.skip("this transformers has no Qwen3-Next")
        from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

        config = transformers.Qwen3NextConfig(
            hidden_size=16, linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8,
            linear_value_head_dim=8,
        )  # fmt: skip
        assert recurrences(Qwen3NextGatedDeltaNet(config, 0)) == ()

    @pytest.mark.parametrize(
        "names", [("A_log",), ("log_A_real", "A_imag"), ("Lambda_re", "Lambda_im"), ("time_decay",)]
    )
    def test_names_without_the_rest_are_no_recurrence(self, names):
        model = nn.Module()
        for name in names:
            setattr(model, name, nn.Parameter(-torch.ones(2, 2)))
        assert recurrences(model) == ()

    def test_a_read_out_given_by_name_rests_on_the_callers_word(self):
        found = certify(nn.Sequential(nn.Linear(3, 3)), "0.weight", time="discrete")
        assert found.scope == "stated"
        assert found.summary().endswith("stated")
        assert "is your word" in found.notes[0]


class PeepholeLSTM(nn.Module):
    """A cell that no library has: gates see c, and it returns the state alone."""

    def __init__(self, features, size):
        super().__init__()
        self.x, self.h = nn.Linear(features, 4 * size), nn.Linear(size, 4 * size, bias=False)
        self.peep = nn.Parameter(0.1 * torch.randn(3, size))
        self.head = nn.Linear(size, 1)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = (self.x(x) + self.h(h)).chunk(4, -1)
        c = torch.sigmoid(f + self.peep[0] * c) * c + torch.sigmoid(i + self.peep[1] * c) * torch.tanh(g)
        return torch.sigmoid(o + self.peep[2] * c) * torch.tanh(c), c


class MinimalUnit(nn.Module):
    """A minimal gated unit over (batch, time, features) that returns (y, state)."""

    def __init__(self, features, size):
        super().__init__()
        self.input_size, self.size = features, size
        self.read = nn.Linear(features, 2 * size)
        self.turn, self.keep = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(size, 1)

    def forward(self, x, state=None):
        h = x.new_zeros(len(x), self.size) if state is None else state
        outputs = []
        for drive in self.read(x).unbind(1):
            a, b = drive.chunk(2, -1)
            f = torch.sigmoid(a + self.keep(h))
            h = (1 - f) * h + f * torch.tanh(b + self.turn(f * h))
            outputs.append(h)
        return self.head(self.drop(torch.stack(outputs, 1))), h


def peephole():
    cell = PeepholeLSTM(2, 5)
    return cell, StepFunction(cell, torch.zeros(1, 2), (torch.zeros(1, 5), torch.zeros(1, 5)), lambda x, s: cell(x, s))


class TestUnknownRecurrences:
    def test_a_described_cell_is_linearised_where_it_rests(self):
        cell, model = peephole()
        found = certify(model)
        twin = cell.double()
        h = c = torch.zeros(1, 5, dtype=torch.float64)
        with torch.no_grad():
            for _ in range(3000):
                h, c = twin(torch.zeros(1, 2, dtype=torch.float64), (h, c))

        def step(state):
            return torch.cat(
                twin(torch.zeros(1, 2, dtype=torch.float64), state.reshape(2, 1, 5).unbind(0)), 1
            ).flatten()

        rest = torch.cat([h, c], 1).flatten()
        radius = torch.linalg.eigvals(torch.autograd.functional.jacobian(step, rest)).abs().max()
        np.testing.assert_allclose(found.equilibria[0].state, rest.numpy(), atol=1e-7)  # weights of float32
        assert found.margin == pytest.approx(1 - float(radius), abs=1e-7)
        assert (found.scope, found.status) == ("local", "stable")

    def test_its_recurrent_weights_are_those_that_its_jacobian_depends_on(self):
        _, model = peephole()
        (view,) = recurrences(model)
        # x.weight multiplies an input of 0, head reads the state and does not move it
        assert [weight.path for weight in view.weights] == ["module.peep", "module.x.bias", "module.h.weight"]

    def test_a_model_that_returns_its_state_is_viewed_without_a_word(self):
        model = MinimalUnit(3, 4).train()
        before = torch.get_rng_state()
        (view,) = recurrences(model)
        assert {weight.path for weight in view.weights} == {"read.bias", "turn.weight", "keep.weight"}
        found = certify(model)
        zeros = torch.zeros(1, 4000, 3, dtype=torch.float64)
        with torch.no_grad():
            rest = model.double().eval()(zeros)[1].flatten()

        def step(h):
            return model(zeros[:, :1], h.unsqueeze(0))[1].flatten()

        radius = torch.linalg.eigvals(torch.autograd.functional.jacobian(step, rest)).abs().max()
        assert found.margin == pytest.approx(1 - float(radius), abs=1e-7)
        assert torch.equal(torch.get_rng_state(), before)

    def test_what_returns_more_than_outputs_is_no_recurrence_unless_it_goes_on(self):
        class Masked(nn.Module):
            input_size = 3

            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(3, 3)

            def forward(self, x, mask=None):
                weights = torch.softmax(self.inner(x) if mask is None else mask, -1)
                return weights * x, weights

        assert recurrences(Masked()) == ()
        assert recurrences(MinimalUnit(3, 4)) != ()

    def test_looking_leaves_mode_and_buffers_as_they_were(self):
        class Counting(MinimalUnit):
            def __init__(self):
                super().__init__(2, 3)
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x, state=None):
                self.calls += 1
                return super().forward(x, state)

        model = Counting().train()
        assert recurrences(model)[0].margin() > 0
        assert model.training and model.drop.training
        assert float(model.calls) == 0

    def test_monitor_groups_and_perturbation_work_on_it(self):
        model = MinimalUnit(2, 4)
        x = torch.randn(3, 10, 2)
        curve = perturbation_error(
            model, x, model.eval()(x)[0].detach(), np.array([0.01, 0.1]), norm=Ball(scope="recurrent"), draws=3
        )
        assert set(curve.scope) == {"read.bias", "turn.weight", "keep.weight"}
        assert curve.errors[1] > curve.errors[0] > 0
        *_, recurrent = parameter_groups(model, lr=1.0, weight_decay=0.1)
        assert {id(p) for p in recurrent["params"]} == {
            id(model.read.bias),
            id(model.turn.weight),
            id(model.keep.weight),
        }
        model(x)[0].square().mean().backward()
        monitor = GradientMonitor(model)
        monitor.record()
        assert monitor.history.margin[0] == pytest.approx(certify(model).margin, abs=ROUNDING)

    def test_the_monitor_warns_where_an_unknown_recurrence_runs_away(self):
        class Growing(nn.Module):
            input_size = 1

            def __init__(self):
                super().__init__()
                self.W = nn.Parameter(1.5 * torch.eye(2))
                self.b = nn.Parameter(torch.ones(2))

            def forward(self, x, state=None):
                h = x.new_zeros(len(x), 2) if state is None else state
                outputs = [h := torch.relu(h @ self.W + self.b) for _ in range(x.shape[1])]
                return torch.stack(outputs, 1), h

        model = Growing()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        with pytest.warns(DivergenceWarning, match="grows without bound"):
            GradientMonitor(model).record()

    def test_a_fused_module_inside_an_unknown_one_is_known_by_itself(self):
        class Wrapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm = nn.LSTM(2, 3, batch_first=True)

            def forward(self, x, state=None):
                return self.lstm(x, state)

        model = Wrapped()
        assert [view.path for view in recurrences(model)] == ["lstm.weight_hh_l0"]
        # described as a whole, the fused operator has no batching rule: its rows go one by one
        state = (torch.zeros(1, 1, 3), torch.zeros(1, 1, 3))
        whole = StepFunction(model, torch.zeros(1, 1, 2), state)
        assert [type(view).__name__ for view in recurrences(whole)] == ["JacobianView"]
        assert recurrences(whole)[0].margin() == pytest.approx(certify(model).margin, abs=1e-7)

    def test_what_does_not_step_is_told(self):
        with pytest.raises(ArgumentError, match="the step failed"):
            certify(StepFunction(nn.Linear(2, 2), torch.zeros(1, 2), torch.zeros(1, 3), lambda x, s: s @ torch.eye(2)))
        with pytest.raises(ArgumentError, match="expected a next state of 2 numbers, got 1"):
            certify(StepFunction(nn.Linear(2, 2), torch.zeros(1), torch.zeros(2), lambda x, s: s[:1]))


GLOBAL_CELL = nn.GRUCell(2, 5)


@pytest.mark.parametrize(
    "made",
    [
        lambda cell: lambda x, state: cell(x, state),
        lambda cell: lambda x, state, cell=cell: cell(x, state),
        lambda cell: lambda x, state, *, cell=cell: cell(x, state),
        lambda cell: cell.forward,
        lambda cell: lambda x, state: GLOBAL_CELL(x, state),
    ],
    ids=["closure", "default", "keyword", "method", "global"],
)
def test_a_copied_step_function_runs_the_copied_weights(made):
    """A float64 copy of it failed, and copies that train or change their weights would have read the original's."""
    cell = GLOBAL_CELL
    own = StepFunction(cell, torch.zeros(1, 2), torch.zeros(1, 5), made(cell)).eval()
    copied = copy.deepcopy(own).double()
    assert not copied.training and copied.module is not cell
    before = certify(own).spectral_radius
    assert certify(copied).spectral_radius == pytest.approx(before, rel=1e-5)  # float32 weights
    with torch.no_grad():
        copied.module.weight_hh.zero_()
    assert certify(own).spectral_radius == before != certify(copied).spectral_radius


def _remembering(module):
    with torch.no_grad():
        module.bias_hh_l0[8:16] += 3.0
    return module


DECAYING = {
    "DiagonalSSM": lambda: DiagonalSSM(2, 8),
    "LinearRNN": lambda: LinearRNN(2, 8),
    "LRU": lambda: LRU(2, 8),
    "S4D": lambda: S4D(2, 8),
    "SelectiveSSM": lambda: SelectiveSSM(2, 8),
    "Mamba": lambda: Mamba(4, 8),
    "Mamba2": lambda: Mamba2(8, 8, head_size=8),
    "ContinuousRNN": lambda: ContinuousRNN(2, 8),
    "ContinuousGRU": lambda: ContinuousGRU(2, 8),
    "torch LSTM": lambda: _remembering(nn.LSTM(2, 8)),
    "torch GRU": lambda: _remembering(nn.GRU(2, 8)),
    "transformers Mamba": transformers_mamba,
    "S4DKernel": S4DKernel,
}


class TestDecayLeavesMemoryAlone:
    """10,000 steps of AdamW at lr 1e-3 and weight decay 0.1, gradients zero: a decayed weight is (1 - 1e-4)^10000 = 0.37
    of what it was. Run as 100 steps at lr 0.1, whose (1 - 0.01)^100 = 0.366 is the same product."""

    @pytest.mark.parametrize("name", DECAYING)
    def test_no_time_constant_moves(self, name):
        model = DECAYING[name]()
        # of the recurrence alone: where the whole model rests, other weights move what it reads
        before = [time_constant(view.margin()) for view in recurrences(model)]
        weights = {path: p.detach().clone() for path, p in model.named_parameters()}
        optimizer = torch.optim.AdamW(parameter_groups(model, lr=0.1, weight_decay=0.1))
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        for _ in range(100):
            optimizer.step()
        assert [time_constant(view.margin()) for view in recurrences(model)] == pytest.approx(before, rel=0.01)
        moved = {path for path, p in model.named_parameters() if not torch.equal(p, weights[path])}
        assert moved or name in ("S4DKernel",), "nothing decayed: the test would pass without an optimizer"
        assert not any(path.endswith(("bias", ".D", "norm.weight")) for path in moved)

    def test_marks_of_weights_are_honoured(self):
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2), nn.Linear(2, 2))
        model[1].weight._no_weight_decay = True
        model[2].weight._optim = {"lr": 1e-4, "weight_decay": 0.0}
        decayed, exempt, marked, recurrent = parameter_groups(model, lr=1e-2, weight_decay=0.1)
        assert decayed["params"] == [model[0].weight]
        assert [id(p) for p in exempt["params"]] == [id(model[1].weight), id(model[1].bias), id(model[2].bias)]
        assert (marked["params"], marked["lr"], marked["weight_decay"]) == ([model[2].weight], 1e-4, 0.0)
        assert (recurrent["params"], recurrent["name"]) == ([], "recurrent")

    def test_what_is_exempt_is_logged(self, caplog):
        with caplog.at_level("INFO", logger="holdfast"):
            parameter_groups(nn.LSTM(1, 2), lr=1.0, weight_decay=0.1)
        assert "exempt from weight decay: bias_ih_l0, bias_hh_l0, weight_hh_l0" in caplog.text


SOURCE = Path(holdfast.__file__).parent
# what walks a user's modules outside of nn/ for something else than recurrences
OTHER_WALKS = {
    "decay/_task_start.py": "weights and parameterizations below a recurrence's own module, to put them back",
    "diagnosis/_adapters.py": "hooks that show which module keeps one answer per sequence",
    "diagnosis/_reading.py": "finds the embedding, and the size of the inputs",
    "memory/_data_runner.py": "hidden states of torch's modules, and the table of tokens",
    "memory/preserve.py": "puts mode and buffers of every module back",
    "memory/_subject.py": "layout of torch's modules: batch or time first",
    "stability/perturbation/_error.py": "which modules vmap can vectorize",
    "stability/perturbation/_impulse.py": "a linear system of holdfast's own layers",
    "stability/_checkpoints.py": "parametrized weights, and what has save_pretrained",
    "stability/_plans.py": "whether a weight belongs to a module of torch, which reads it several times per pass",
    "training/_checkpoint.py": "buffers of every module, those outside of the state dict too",
    "training/_fabric.py": "shares blocks out over processes",
    "training/_folder.py": "class and settings of every module, so that another model is not resumed",
}


def walks(path):
    """Calls of modules(), named_modules(), children(), and isinstance of torch's recurrent classes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in (
            "modules",
            "named_modules",
            "children",
            "named_children",
        ):
            yield node.func.attr
        if isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            names = {n.attr for n in ast.walk(node.args[1]) if isinstance(n, ast.Attribute)}
            yield from names & {"RNNBase", "RNNCellBase", "RNN", "GRU", "LSTM"}


def test_nothing_outside_of_nn_looks_for_recurrences_in_a_model():
    files = {str(p.relative_to(SOURCE)): p for p in SOURCE.rglob("*.py")}
    walking = {name for name, p in files.items() if not name.startswith("nn/") and any(walks(p))}
    assert walking == OTHER_WALKS.keys()


def test_no_weight_is_looked_for_by_name_outside_of_nn():
    known = {"A_log", "log_A_real", "Lambda_re", "time_decay", "recurrent_param", "dt_proj", "dt_bias", "weight_hh_l0"}
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] not in ("memory", "decay", "stability", "training", "diagnosis", "cli"):
            continue
        constants = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
        attributes = {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
        assert not known & {c for c in constants | attributes if isinstance(c, str)}, path
