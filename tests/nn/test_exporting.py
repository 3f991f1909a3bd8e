"""Whole sequences of any length through torch.export and ONNX, and single steps of stacks."""

import warnings

import pytest
import torch
from layer_cases import FEATURES, LAYERS, build, sequence
from torch import nn
from torch.export import Dim

import holdfast
from holdfast.nn import LRU, S4D, ContinuousRNN, LanguageModel, LinearRNN, RecurrentStack, SequenceModel, exportable
from holdfast.nn._discretize import discretize, discretize_pairs

CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # two float32 runtimes, up to 17 steps


class Padded(nn.Module):
    """A layer with its lengths by place, as an exporter gives them."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, state, lengths):
        return self.layer(x, state, lengths=lengths)


def in_onnxruntime(exported, path, *inputs):
    import onnxruntime

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        torch.onnx.export(exported, (), str(path), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {i.name: v.numpy() for i, v in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(output) for output in session.run(None, feeds)]


@pytest.mark.usefixtures("user_mistakes")  # what checks annotations while testing cannot be traced
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own, in its loop
@pytest.mark.parametrize("name", ["S4D lin", "LRU"])
@torch.no_grad()
def test_a_layer_is_exported_with_its_length_open(name, tmp_path):
    layer = build(name).float().eval()
    state, longer = torch.randn_like(layer.initial_state(3)), torch.randn(3, 17, FEATURES)
    lengths = torch.tensor([17, 3, 8])
    example = (sequence().float(), state, torch.tensor([9, 4, 2]))
    exported = torch.export.export(Padded(layer), example, dynamic_shapes=({1: Dim("time")}, None, None))
    given = (longer, state, lengths)
    expected = layer(longer, state, lengths=lengths)
    torch.testing.assert_close(exported.module()(*given), expected, **CLOSE)
    torch.testing.assert_close(tuple(in_onnxruntime(exported, tmp_path / "m.onnx", *given)), expected, **CLOSE)


def exported_with_open_length(model):
    return torch.export.export(model, (torch.randn(2, 5, FEATURES),), dynamic_shapes=({1: Dim("time")},))


@pytest.mark.usefixtures("user_mistakes")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", ["S4D bilinear", "LinearRNN dense", "LinearRNN continuous"])
def test_a_layer_is_exported_after_it_has_streamed_and_with_its_gradients_on(name):
    torch.manual_seed(0)
    made = {"S4D bilinear": S4D(FEATURES, 6, discretization="bilinear"), "LinearRNN dense": LinearRNN(FEATURES, 6)}
    made["LinearRNN continuous"] = LinearRNN(FEATURES, 1, time="continuous")
    layer, longer = made[name], torch.randn(2, 13, FEATURES)
    with torch.no_grad():
        layer.step(longer[:, 0])  # leaves coefficients behind, which are numbers and no part of a graph
    found = exported_with_open_length(layer).module()(longer)
    torch.testing.assert_close(found, layer(longer), **CLOSE)
    layer.step(longer[:, 0])  # and nothing of the graph is left in the layer


class Sampled(nn.Module):
    """A layer with its step sizes by place."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, dt):
        return self.layer(x, dt=dt)


@pytest.mark.usefixtures("user_mistakes")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", ["ContinuousRNN", "LinearRNN continuous", "S4D lin"])
@torch.no_grad()
def test_step_sizes_that_change_in_time_are_exported(name):
    layer, time = build(name).eval(), Dim("time")
    given = [(torch.randn(2, steps, FEATURES).double(), torch.rand(2, steps).double()) for steps in (5, 11)]
    exported = torch.export.export(Sampled(layer), given[0], dynamic_shapes=({1: time}, {1: time})).module()
    torch.testing.assert_close(
        exported(*given[1]), layer(given[1][0], dt=given[1][1]), rtol=1e-9, atol=1e-11
    )  # float64


@pytest.mark.usefixtures("user_mistakes")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_a_stack_is_exported_for_one_step_and_for_many():
    torch.manual_seed(0)
    model = SequenceModel(FEATURES, 16, depth=1, state_size=4).eval()  # 16 is a width that the gate's kernel takes
    exported = exported_with_open_length(model).module()
    for steps in (1, 2, 40):
        x = torch.randn(2, steps, FEATURES)
        torch.testing.assert_close(exported(x)[0], model(x)[0], **CLOSE)


@pytest.mark.parametrize("method", ["zoh", "bilinear", "euler"])
def test_real_pairs_are_discretised_as_complex_numbers_are(method):
    lam = torch.complex(-torch.logspace(-6, 1, 8).double(), torch.linspace(-30, 30, 8).double())
    lam = torch.cat([lam, torch.complex(lam.real, 0 * lam.real), 0 * lam[:1]])
    for dt in (0.01, torch.rand(3, 1, dtype=torch.float64)):
        pairs = discretize_pairs(lam.real, lam.imag, dt, method)
        for pair, expected in zip(pairs, discretize(lam, dt, method), strict=True):
            # float64 beside float64: a few roundings each
            torch.testing.assert_close(torch.view_as_complex(pair), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.usefixtures("user_mistakes")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_sizes_that_an_earlier_export_fixed_can_be_left_open_by_the_next():
    torch.manual_seed(0)
    layer, x = LRU(FEATURES, 4).eval(), torch.randn(2, 5, FEATURES)
    torch.export.export(layer, (x,))
    exported_with_open_length(layer)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({0: Dim("batch"), 1: Dim("time")},)).module()
    other = torch.randn(3, 11, FEATURES)
    torch.testing.assert_close(exported(other), layer(other), **CLOSE)


@pytest.mark.usefixtures("user_mistakes")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@torch.no_grad()
def test_a_language_model_is_exported_with_batch_and_length_open(tmp_path):
    torch.manual_seed(0)
    model, tokens = LanguageModel(7, 8, depth=1, state_size=4).eval(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    exported = torch.export.export(model, (tokens,), dynamic_shapes=({0: Dim("batch"), 1: Dim("time")},))
    more = torch.randint(0, 7, (3, 9))
    scores, states = model(more)
    found = in_onnxruntime(exported, tmp_path / "m.onnx", more)
    for a, b in zip(found, (scores, *states[0]), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


DENSE = {
    "linear": lambda: LinearRNN(FEATURES, 4, bias=True),
    "continuous linear": lambda: LinearRNN(FEATURES, 4, time="continuous", dt=0.4, bias=True, bidirectional=True),
    "rnn": lambda: ContinuousRNN(FEATURES, 4),
    "stack": lambda: SequenceModel(FEATURES, 8, depth=1, layer="linear", state_size=4),
}


@pytest.mark.usefixtures("user_mistakes")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", DENSE)
def test_onnx_of_a_matrix_behind_a_factorization_says_what_to_export_instead(kind, tmp_path):
    model, x = DENSE[kind]().eval(), torch.randn(1, 3, FEATURES)
    with pytest.raises(Exception, match=r"holdfast\.nn\.exportable\(model\).*layer\.stepper\(\)"):
        torch.onnx.export(model, (x,), str(tmp_path / "m.onnx"), dynamo=True, verbose=False)


@pytest.mark.usefixtures("user_mistakes")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("kind", ["continuous linear", "stack"])
@torch.no_grad()
def test_a_copy_with_its_matrices_as_numbers_goes_through_onnx(kind, tmp_path):
    torch.manual_seed(0)
    model = DENSE[kind]().eval()
    before = {name: value.clone() for name, value in model.named_parameters()}
    exported = exported_with_open_length(exportable(model))
    longer = torch.randn(2, 17, FEATURES)
    found = in_onnxruntime(exported, tmp_path / "m.onnx", longer)
    expected = torch.utils._pytree.tree_leaves(model(longer))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in LAYERS if "RNN" in name])
def test_a_copy_for_export_computes_the_same_and_does_not_train(name):
    layer, x = build(name), sequence()
    copied = exportable(nn.Sequential(layer))[0]
    for found, expected in zip(copied(x), layer(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)  # float64: one factorization, 9 steps
    assert not any(p.requires_grad for p in copied.parameters())
    assert all(p.requires_grad for p in layer.parameters())


@torch.no_grad()
def test_a_copy_for_export_has_no_parametrization_of_stabilize():
    torch.manual_seed(0)
    model = nn.RNN(FEATURES, 4, batch_first=True)
    holdfast.stabilize(model)
    copied, x = exportable(model), torch.randn(2, 9, FEATURES)
    assert not nn.utils.parametrize.is_parametrized(copied) and nn.utils.parametrize.is_parametrized(model)
    torch.testing.assert_close(copied(x)[0], model(x)[0], **CLOSE)


STACKS = {
    "sequence": lambda: (SequenceModel(3, 8, depth=2, layer="lru", state_size=4), torch.randn(2, 3)),
    "language": lambda: (LanguageModel(7, 8, depth=2, state_size=4), torch.tensor([1, 2])),
    "drop in": lambda: (RecurrentStack(3, 4, 2), torch.randn(2, 3)),
}


@pytest.mark.parametrize("kind", STACKS)
def test_the_stepper_of_a_stack_is_its_step(kind):
    torch.manual_seed(0)
    model, x = STACKS[kind]()
    model.eval()
    state = model.initial_state(2)
    exported = torch.export.export(model.stepper(), (x, state)).module()
    found, expected = exported(x, exported(x, state)[1]), model.step(x, model.step(x)[1])
    for a, b in zip(*(torch.utils._pytree.tree_leaves(part) for part in (found, expected)), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
