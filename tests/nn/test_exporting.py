"""Whole sequences of any length through torch.export and ONNX, and single steps of stacks."""

import warnings

import pytest
import torch
from layer_cases import FEATURES, build, sequence
from torch import nn
from torch.export import Dim

from holdfast.nn import S4D, LanguageModel, LinearRNN, RecurrentStack, SequenceModel
from holdfast.nn.discretize import discretize, discretize_pairs
from holdfast.parameterizations import get

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
@pytest.mark.parametrize("name", ["S4D bilinear", "LinearRNN dense"])
def test_a_layer_is_exported_after_it_has_streamed_and_with_its_gradients_on(name):
    torch.manual_seed(0)
    made = {"S4D bilinear": S4D(FEATURES, 6, discretization="bilinear"), "LinearRNN dense": LinearRNN(FEATURES, 6)}
    layer, longer = made[name], torch.randn(2, 13, FEATURES)
    with torch.no_grad():
        layer.step(longer[:, 0])  # leaves coefficients behind, which are numbers and no part of a graph
    found = exported_with_open_length(layer).module()(longer)
    torch.testing.assert_close(found, layer(longer), **CLOSE)
    layer.step(longer[:, 0])  # and nothing of the graph is left in the layer


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
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_onnx_of_a_matrix_behind_a_factorization_says_what_to_export_instead(tmp_path):
    layer, x = LinearRNN(FEATURES, 4).eval(), torch.randn(1, 3, FEATURES)
    with pytest.raises(Exception, match=r"layer\.stepper\(\)"):
        torch.onnx.export(layer, (x,), str(tmp_path / "m.onnx"), dynamo=True, verbose=False)
    expected = layer(x)
    layer.recurrence.switch_(get("direct", time=layer.time))
    found = in_onnxruntime(torch.export.export(layer, (x,)), tmp_path / "m.onnx", x)
    torch.testing.assert_close(tuple(found), expected, **CLOSE)


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
