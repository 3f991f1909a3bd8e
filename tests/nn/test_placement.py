"""Where weights are made, and layers where torch's default device is another one than that of their inputs."""

import copy

import pytest
import torch
from layer_cases import BATCH, FEATURES, LAYERS, STEPS, build, sequence

from holdfast import nn
from holdfast.errors import ArgumentError, DtypeError

MIXER = {"features": FEATURES, "state_size": 4}
# what stands around layers; a name of holdfast.nn that makes weights and is in neither list fails the test below
AROUND = {
    "GatedMLP": lambda **place: nn.GatedMLP(FEATURES, 2, **place),
    "GatedBlock": lambda **place: nn.GatedBlock(nn.LRU(**MIXER, **place), expansion=2, **place),
    "HyenaBlock": lambda **place: nn.HyenaBlock(nn.LRU(**MIXER, **place), **place),
    "NaiveBlock": lambda **place: nn.NaiveBlock(nn.LRU(**MIXER, **place)),
    "LanguageModel": lambda **place: nn.LanguageModel(5, FEATURES, depth=1, state_size=4, **place),
    "SequenceModel": lambda **place: nn.SequenceModel(FEATURES, 4, depth=1, state_size=4, **place),
    "SequenceClassifier": lambda **place: nn.SequenceClassifier(FEATURES, 2, 4, depth=1, state_size=4, **place),
    "RecurrentStack": lambda **place: nn.RecurrentStack(FEATURES, 4, batch_first=True, **place),
    "RecurrentWeight": lambda **place: nn.RecurrentWeight(3, "dense", "complete", "continuous", **place),
}
MODULES = {name: lambda name=name, **place: make(name, **place) for name in LAYERS} | AROUND
# another layer at each step of a stream would be a wrong one; a whole model has a step of its own
STREAMED = [*LAYERS, "GatedBlock", "HyenaBlock", "LanguageModel", "SequenceModel", "RecurrentStack"]


def make(name, **place):
    kind, options = LAYERS[name]
    return kind(FEATURES, 4, **options, **place)


def inputs(name):
    """Inputs on the CPU, whatever the default device."""
    with torch.device("cpu"):
        return drawn(name)


def drawn(name):
    return torch.arange(BATCH * STEPS, device="cpu").view(BATCH, STEPS) % 5 if name == "LanguageModel" else sequence()


def results(name, module):
    """Outputs, gradients and a stream of two steps without gradients, as one list."""
    if name == "RecurrentWeight":
        W = module()
        W.sum().backward()
        return [W, *(p.grad for p in module.parameters())]
    x = inputs(name)
    x = x.requires_grad_() if x.is_floating_point() else x
    y = module(x)
    y = y[0] if isinstance(y, tuple) else y
    y.sum().backward()
    found = [y, x.grad, *(p.grad for p in module.parameters())]
    if name in STREAMED:
        with torch.no_grad():
            first, state = module.step(x[:, 0])
            second, _ = module.step(x[:, 1], state)
        found += [first, second]
    return [t for t in found if t is not None]


def test_every_module_that_makes_weights_is_covered():
    known = {kind for kind, _ in LAYERS.values()} | {getattr(nn, name) for name in AROUND}
    public = [getattr(nn, name) for name in nn.__all__]
    modules = {
        c
        for c in public
        if isinstance(c, type) and issubclass(c, torch.nn.Module) and c not in (nn.AbstractRecurrent, nn.StepFunction)
    }
    assert modules | set(nn.LAYERS.values()) <= known


@pytest.fixture
def default_meta():
    yield lambda: torch.set_default_device("meta")
    torch.set_default_device(None)


@pytest.mark.parametrize("name", MODULES)
def test_a_foreign_default_device_changes_nothing(name, default_meta):
    torch.manual_seed(0)
    module = MODULES[name](dtype=torch.float64)
    twin = copy.deepcopy(module)
    expected = results(name, module)
    default_meta()
    found = results(name, twin)
    assert [t.device.type for t in found] == ["cpu"] * len(expected)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", LAYERS)
def test_resets_lengths_and_packed_rows_on_a_foreign_default_device(name, default_meta):
    layer, x = build(name), sequence()
    resets, lengths = torch.zeros(BATCH, STEPS, dtype=torch.bool), torch.tensor([9, 4, 1])
    resets[:, 3] = True
    bounds, row = torch.tensor([0, 4, 9]), x[:1]

    def run():
        return [layer(x, lengths=lengths, resets=resets)[0], *layer(row, cu_seqlens=bounds)]

    expected = run()
    default_meta()
    assert all(torch.equal(y, e) for y, e in zip(run(), expected, strict=True))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_made_on_the_meta_device_is_filled_later(name):
    torch.manual_seed(0)
    full = MODULES[name](dtype=torch.float64)
    for assign in (False, True):
        empty = MODULES[name](device="meta", dtype=torch.float64)
        assert all(weight.is_meta and weight.dtype == torch.float64 for weight in empty.parameters())
        weights = full.state_dict()
        if assign:
            empty.load_state_dict(weights, assign=True)
        else:
            empty.to_empty(device="cpu").load_state_dict(weights)
        assert all(
            torch.equal(x, y) for x, y in zip(results(name, empty), results(name, copy.deepcopy(full)), strict=True)
        )


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_weights_have_the_dtype_that_was_asked_for(name, dtype):
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    module = MODULES[name](dtype=dtype)
    assert {weight.dtype for weight in module.parameters()} == {dtype}
    assert torch.get_default_dtype() == before


@pytest.mark.parametrize("name", LAYERS)
def test_both_directions_are_made_in_the_same_place(name):
    layer = make(name, device="meta", dtype=torch.float64, bidirectional=True)
    assert {(weight.device.type, weight.dtype) for weight in layer.parameters()} == {("meta", torch.float64)}


def test_float64_weights_start_from_float64_numbers():
    lam = torch.tensor([0.9 + 0.1j, 1 / 3 + 0j], dtype=torch.complex128)
    made = nn.LRU(2, 2, eigenvalues=lam, dtype=torch.float64).eigenvalues()
    assert (made - lam).abs().max() < 1e-14  # a few roundings; float32 would be 3e-8


def test_a_block_in_half_precision_leaves_the_mixer_as_it_came():
    block = nn.GatedBlock(nn.LRU(3, 4), dtype=torch.bfloat16)
    assert block.mixer.B.dtype == torch.float32 and block.mlp.up.weight.dtype == torch.bfloat16


def test_a_dtype_without_fractions_and_an_unknown_device_are_refused():
    with pytest.raises(DtypeError, match="floating"):
        nn.LRU(3, 4, dtype=torch.int64)
    with pytest.raises(ArgumentError, match="device must be a device"):
        nn.LRU(3, 4, device="nowhere")
    assert torch.get_default_dtype() == torch.float32


def test_a_saved_model_does_not_remember_where_it_was(tmp_path):
    model = nn.SequenceModel(3, 4, depth=1, layer="lru", state_size=4, device="cpu", dtype=torch.float64)
    model.save_pretrained(tmp_path)
    read = nn.SequenceModel.from_pretrained(tmp_path)
    assert torch.equal(read(sequence())[0], model(sequence())[0])


@pytest.mark.parametrize("name", LAYERS)
def test_a_state_dict_and_eigenvalues_on_a_foreign_default_device(name, default_meta):
    layer, other = build(name, seed=1), build(name, seed=2)
    default_meta()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(inputs(name))[0], layer(inputs(name))[0])
    views = nn.recurrences(layer)
    assert views and all(view.module is not None for view in views)
