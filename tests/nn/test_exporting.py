"""Whole sequences of any length through torch.export and ONNX, and single steps of stacks."""

import warnings

import pytest
import torch
from layer_cases import FEATURES, build, sequence
from torch import nn
from torch.export import Dim

from holdfast.nn import LanguageModel, RecurrentStack, SequenceModel

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
    if name == "LRU":  # ONNX has no complex numbers, which a step of S4D compares
        torch.testing.assert_close(tuple(in_onnxruntime(exported, tmp_path / "m.onnx", *given)), expected, **CLOSE)


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
