"""The Mamba and Mamba-2 blocks: the contract of a layer, and equality with transformers' modules."""

import pytest
import torch

from holdfast.errors import ArgumentError
from holdfast.nn import Mamba, Mamba2

# float64 through five products and 40 steps
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(autouse=True)
def one_thread(threads):
    """Small sizes: a second thread only waits."""
    threads(1)


KINDS = {Mamba: {}, Mamba2: {"head_size": 2, "groups": 2}}


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def block(request):
    def build(**choices):
        torch.manual_seed(0)
        return request.param(4, 3, **{**KINDS[request.param], **choices}).double()

    return build


def inputs(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("choices", [{}, {"bias": True, "conv_bias": False, "taps": 2}, {"taps": 1}])
def test_steps_and_pieces_give_what_the_whole_sequence_gives(block, choices):
    layer, x = block(**choices), inputs(2, 9, 4)
    whole, end = layer(x)
    y, state = layer(x[:, :5])
    outputs = [y]
    for t in range(5, 9):
        y, state = layer.step(x[:, t], state)
        outputs.append(y.unsqueeze(1))
    torch.testing.assert_close(torch.cat(outputs, 1), whole, **EXACT)
    torch.testing.assert_close(state, end, **EXACT)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_changes_nothing(block, bidirectional):
    layer, x = block(bidirectional=bidirectional, bias=True), inputs(3, 9, 4)
    lengths = torch.tensor([9, 4, 1])
    y, state = layer(x, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        alone, end = layer(x[i : i + 1, :length])
        torch.testing.assert_close(y[i : i + 1, :length], alone, **EXACT)
        torch.testing.assert_close(state.narrow(int(bidirectional), i, 1), end, **EXACT)
        assert (y[i, length:] == 0).all()


def test_reading_backwards_is_reading_the_turned_sequence(block):
    layer, x = block(bidirectional=True), inputs(2, 9, 4)
    ahead, _ = layer._run(x, None, None, None, False)
    behind, _ = layer.backward_layer._run(x.flip(1), None, None, None, False)
    torch.testing.assert_close(layer(x)[0], ahead + behind.flip(1), **EXACT)


def test_step_sizes_multiply_delta(block):
    layer, x = block(), inputs(2, 6, 4)
    torch.testing.assert_close(layer(x, dt=1.0)[0], layer(x)[0], **EXACT)
    steps = torch.rand(2, 6, dtype=torch.float64)
    whole, _ = layer(x, dt=steps)
    y, _ = layer.step(x[:, 0], dt=steps[:, 0])
    torch.testing.assert_close(y, whole[:, 0], **EXACT)


def test_every_weight_has_its_gradient(block):
    layer = block(bias=True)
    y, state = layer(inputs(2, 7, 4), torch.ones(2, *layer.state_shape, dtype=torch.float64))
    (y.square().sum() + state.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())


SIZES = {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 1, "vocab_size": 10, "conv_kernel": 4}
HEADS = {"num_heads": 4, "head_dim": 4, "n_groups": 2, "chunk_size": 8}


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def kind_and_mixer(request):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    name, more = request.param.__name__, HEADS if request.param is Mamba2 else {}
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**SIZES, **more)).double()
    mixer = model.layers[0].mixer
    with torch.no_grad():  # norms start at one and biases at zero, which would hide a missing one
        for weight in mixer.parameters():
            weight.add_(0.1 * torch.rand_like(weight))
    return request.param, mixer


@pytest.fixture
def without_casts(monkeypatch):
    """transformers rounds A, B, D, the step's bias and the norm to float32 also in a float64 model; here it does not."""
    plain = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "float", lambda self: self)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *how, **more: self if how == (torch.float32,) else plain(self, *how, **more)
    )


def test_it_is_transformers_mixer_in_values_and_gradients(kind_and_mixer, without_casts):
    kind, mixer = kind_and_mixer
    layer, x = kind.from_transformers(mixer), inputs(2, 70, 8)
    seed, results = inputs(2, 70, 8).flip(1), []
    for run in (lambda x: layer(x)[0], mixer):
        x = x.detach().requires_grad_()
        y = run(x)
        results.append([y, *torch.autograd.grad(y, [x, *_same_weights(run, layer, mixer)], seed)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs.reshape(ours.shape), **EXACT)


def _same_weights(run, layer, mixer):
    module, conv = (mixer, mixer.conv1d.weight) if run is mixer else (layer, layer.conv_weight)
    shared = [weight for name in layer.shared_modules for weight in getattr(module, name).parameters()]
    rates = mixer.A_log if run is mixer else layer.w
    return [conv, rates, *shared, *(getattr(module, name) for name in layer.shared_weights)]


def test_weights_go_back_to_transformers(kind_and_mixer):
    kind, mixer = kind_and_mixer
    layer = kind.from_transformers(mixer)
    before = {name: value.clone() for name, value in mixer.state_dict().items()}
    with torch.no_grad():
        for weight in mixer.parameters():
            weight.zero_()
    layer.to_transformers(mixer)
    for name, value in mixer.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=1e-14, atol=1e-14)  # A_log through exp and log


def test_a_block_is_built_again_from_its_choices(block):
    layer = block(bias=True, taps=2, out_features=5)
    again = type(layer)(layer.features, layer.state_size, **layer.choices()).double()
    again.load_state_dict(layer.state_dict())
    assert layer(inputs(1, 4, 4))[0].shape[-1] == 5
    torch.testing.assert_close(again(inputs(1, 4, 4))[0], layer(inputs(1, 4, 4))[0], rtol=0, atol=0)


def test_heads_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match=r"head_size to divide the 8 inner channels.*got head_size=3, groups=1"):
        Mamba2(4, 3, head_size=3)


def test_another_module_is_refused_with_what_it_lacks():
    with pytest.raises(ArgumentError, match=r"expected transformers' MambaMixer.*got Linear without in_proj, conv1d"):
        Mamba.from_transformers(torch.nn.Linear(2, 2))
