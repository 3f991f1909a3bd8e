"""The Mamba block: the contract of a layer, and equality with transformers' module."""

import pytest
import torch

from holdfast.errors import ArgumentError
from holdfast.nn import Mamba

# float64 through five products and 40 steps
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(autouse=True)
def one_thread(threads):
    """Small sizes: a second thread only waits."""
    threads(1)


def block(**choices):
    torch.manual_seed(0)
    return Mamba(4, 3, **choices).double()


def inputs(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("choices", [{}, {"bias": True, "conv_bias": False, "taps": 2, "rank": 3}, {"taps": 1}])
def test_steps_and_pieces_give_what_the_whole_sequence_gives(choices):
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
def test_padding_changes_nothing(bidirectional):
    layer, x = block(bidirectional=bidirectional, bias=True), inputs(3, 9, 4)
    lengths = torch.tensor([9, 4, 1])
    y, state = layer(x, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        alone, end = layer(x[i : i + 1, :length])
        torch.testing.assert_close(y[i : i + 1, :length], alone, **EXACT)
        torch.testing.assert_close(state[..., i : i + 1, :, :], end, **EXACT)
        assert (y[i, length:] == 0).all()


def test_reading_backwards_is_reading_the_turned_sequence():
    layer, x = block(bidirectional=True), inputs(2, 9, 4)
    ahead, _ = layer._run(x, None, None, None, False)
    behind, _ = layer.backward_layer._run(x.flip(1), None, None, None, False)
    torch.testing.assert_close(layer(x)[0], ahead + behind.flip(1), **EXACT)


def test_step_sizes_multiply_delta():
    layer, x = block(), inputs(2, 6, 4)
    torch.testing.assert_close(layer(x, dt=1.0)[0], layer(x)[0], **EXACT)
    steps = torch.rand(2, 6, dtype=torch.float64)
    whole, _ = layer(x, dt=steps)
    y, _ = layer.step(x[:, 0], dt=steps[:, 0])
    torch.testing.assert_close(y, whole[:, 0], **EXACT)


def test_every_weight_has_its_gradient():
    layer = block(bias=True)
    y, state = layer(inputs(2, 7, 4), torch.ones(2, *layer.state_shape, dtype=torch.float64))
    (y.square().sum() + state.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())


@pytest.fixture(scope="module")
def mixer():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MambaConfig(hidden_size=8, state_size=4, num_hidden_layers=1, vocab_size=10, conv_kernel=4)
    model = transformers.MambaForCausalLM(config).double()
    return model.backbone.layers[0].mixer


@pytest.fixture
def without_casts(monkeypatch):
    """transformers rounds A, B, D and the step's bias to float32 also in a float64 model; here it does not."""
    monkeypatch.setattr(torch.Tensor, "float", lambda self: self)


def test_it_is_transformers_mixer_in_values_and_gradients(mixer, without_casts):
    layer, x = Mamba.from_transformers(mixer), inputs(2, 40, 8)
    seed, results = inputs(2, 40, 8).flip(1), []
    for run in (lambda x: layer(x)[0], mixer):
        x = x.detach().requires_grad_()
        y = run(x)
        results.append([y, *torch.autograd.grad(y, [x, *_same_weights(run, layer, mixer)], seed)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs.reshape(ours.shape), **EXACT)


def _same_weights(run, layer, mixer):
    module, conv = (mixer, mixer.conv1d.weight) if run is mixer else (layer, layer.conv_weight)
    rates = mixer.A_log if run is mixer else layer.w
    return [
        module.in_proj.weight,
        conv,
        module.x_proj.weight,
        module.dt_proj.weight,
        module.dt_proj.bias,
        rates,
        module.D,
    ]


def test_weights_go_back_to_transformers(mixer):
    layer = Mamba.from_transformers(mixer)
    before = {name: value.clone() for name, value in mixer.state_dict().items()}
    with torch.no_grad():
        for weight in mixer.parameters():
            weight.zero_()
    layer.to_transformers(mixer)
    for name, value in mixer.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=1e-14, atol=1e-14)  # A_log through exp and log


def test_another_module_is_refused_with_what_it_lacks():
    with pytest.raises(ArgumentError, match=r"expected transformers' MambaMixer.*came Linear without in_proj, conv1d"):
        Mamba.from_transformers(torch.nn.Linear(2, 2))
