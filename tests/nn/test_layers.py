"""The contract of every layer: step = forward, carried state, padding, both directions, irregular time, gradients."""

import copy
import math

import pytest
import torch
from layer_cases import BATCH, CONTINUOUS, FEATURES, LAYERS, PARAMETERIZED, STEPS, build, sequence
from torch import nn

from holdfast import parameterizations
from holdfast.errors import ArgumentError, DtypeError, RangeError, ShapeError, UnknownNameError
from holdfast.nn import LRU, S4D, ContinuousGRU, ContinuousRNN, DiagonalSSM, LinearRNN, SelectiveSSM

every = pytest.mark.parametrize("name", LAYERS)
# float64: sums of at most a few hundred terms of size 1
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


@every
def test_steps_equal_forward(name):
    layer, x = build(name), sequence()
    state = torch.randn_like(layer.initial_state(BATCH))
    y, last = layer(x, state)
    outputs = []
    for t in range(STEPS):
        y_t, state = layer.step(x[:, t], state)
        outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1), y, **TIGHT)
    torch.testing.assert_close(state, last, **TIGHT)


@every
def test_steps_without_gradients_notice_a_changed_weight(name):
    layer, x = build(name), sequence()
    with torch.no_grad():
        layer.step(x[:, 0])
        for parameter in layer.parameters():
            parameter.data.mul_(0.9)  # .data leaves the version counter alone
        torch.testing.assert_close(layer.step(x[:, 0])[0], layer(x[:, :1])[0][:, 0], **TIGHT)


@every
def test_chunks_with_a_carried_state_equal_one_pass(name):
    layer, x = build(name), sequence()
    y, last = layer(x)
    state, pieces = None, []
    for piece in x.split([3, 1, STEPS - 4], dim=1):
        out, state = layer(piece, state)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, 1), y, **TIGHT)
    torch.testing.assert_close(state, last, **TIGHT)


@every
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padded_sequences_equal_unpadded_ones(name, bidirectional):
    layer, x = build(name, bidirectional=bidirectional), sequence()
    lengths = torch.tensor([STEPS, 5, 0])
    state = torch.randn_like(layer.initial_state(BATCH))
    padded = x.clone()
    for row, length in enumerate(lengths.tolist()):
        padded[row, length:] = math.nan if length == 0 else 1e3  # padding must not be read into the result
    padded = padded.nan_to_num(7.0)
    y, last = layer(padded, state, lengths=lengths)
    batch_dim = 1 if bidirectional else 0
    for row, length in enumerate(lengths.tolist()):
        alone, end = layer(x[row : row + 1, :length], state.narrow(batch_dim, row, 1))
        torch.testing.assert_close(y[row : row + 1, :length], alone, **TIGHT)
        torch.testing.assert_close(last.narrow(batch_dim, row, 1), end, **TIGHT)
        assert bool((y[row, length:] == 0).all())


@every
def test_bidirectional_equals_a_pass_in_each_direction(name):
    layer, x = build(name, bidirectional=True), sequence()
    state = torch.randn_like(layer.initial_state(BATCH))
    y, last = layer(x, state)
    ahead = copy.deepcopy(layer)
    behind = ahead.backward_layer
    ahead.backward_layer = None
    y_ahead, last_ahead = ahead(x, state[0])
    y_behind, last_behind = behind(x.flip(1), state[1])
    torch.testing.assert_close(y, y_ahead + y_behind.flip(1), **TIGHT)
    torch.testing.assert_close(last, torch.stack([last_ahead, last_behind]), **TIGHT)


@every
def test_gradients_pass_gradcheck_for_inputs_state_and_weights(name):
    layer = build(name, features=2, state_size=2)
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    state = torch.randn_like(layer.initial_state(2)).requires_grad_()
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(x, state, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x, state))

    values = [w.detach().clone().requires_grad_() for w in weights]
    assert torch.autograd.gradcheck(run, (x, state, *values))


@pytest.mark.parametrize(("layer_type", "parameterization", "options"), PARAMETERIZED)
def test_gradients_pass_gradcheck_with_every_parameterization(layer_type, parameterization, options):
    torch.manual_seed(0)
    layer = layer_type(2, 2, parameterization=parameterization, **options).double()
    x = torch.randn(1, 3, 2, dtype=torch.float64)
    names = [n for n, _ in layer.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in layer.parameters()]

    def run(*values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))[0]

    assert torch.autograd.gradcheck(run, values)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_equal_step_sizes_in_a_tensor_equal_one_number(name):
    layer, x = build(name), sequence()
    y, last = layer(x, dt=0.3)
    for dt in (torch.full((BATCH, STEPS), 0.3, dtype=torch.float64), torch.full((STEPS,), 0.3, dtype=torch.float64)):
        again, end = layer(x, dt=dt)
        torch.testing.assert_close(again, y, **TIGHT)
        torch.testing.assert_close(end, last, **TIGHT)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_steps_with_irregular_time_equal_forward(name):
    layer, x = build(name), sequence()
    dt = torch.rand(BATCH, STEPS, dtype=torch.float64)
    y, last = layer(x, dt=dt)
    state, outputs = None, []
    for t in range(STEPS):
        y_t, state = layer.step(x[:, t], state, dt=dt[:, t])
        outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1), y, **TIGHT)
    torch.testing.assert_close(state, last, **TIGHT)


@pytest.mark.parametrize("name", ["DiagonalSSM", "S4D lin", "S4D real", "LinearRNN continuous", "LinearRNN diagonal"])
def test_irregular_steps_equal_a_fine_grid_for_input_that_is_held(name):
    """Zero-order hold is exact: cutting each step into 50 with the same input changes nothing."""
    layer, x = build(name), sequence(steps=4)
    dt = torch.tensor([[0.1, 2.0, 0.0, 0.7]], dtype=torch.float64).expand(BATCH, 4)
    y, last = layer(x, dt=dt)
    fine, end = layer(x.repeat_interleave(50, dim=1), dt=dt.repeat_interleave(50, dim=1) / 50)
    # 200 roundings instead of 4
    torch.testing.assert_close(fine[:, 49::50], y, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(end, last, rtol=1e-10, atol=1e-11)


@every
def test_empty_batches_and_sequences_work(name):
    layer = build(name)
    y, state = layer(torch.zeros(0, STEPS, FEATURES, dtype=torch.float64))
    assert y.shape == (0, STEPS, FEATURES)
    start = torch.randn_like(layer.initial_state(2))
    y, state = layer(torch.zeros(2, 0, FEATURES, dtype=torch.float64), start)
    assert y.shape == (2, 0, FEATURES)
    torch.testing.assert_close(state, start)


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_keep_a_float32_state(name, dtype):
    layer = build(name).float()
    x = sequence().to(dtype)
    y, state = layer(x)
    assert y.dtype == dtype
    assert state.dtype == torch.float32
    exact, _ = layer(x.float())
    # only the output is rounded, to half of the last bit of its dtype
    torch.testing.assert_close(y, exact.to(dtype))


@every
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_computed_in_float32(name, dtype, bidirectional):
    layer = build(name, bidirectional=bidirectional).to(dtype)
    exact = copy.deepcopy(layer).float()
    x = sequence().to(dtype)
    y, state = layer(x)
    expected, last = exact(x.float())
    assert (y.dtype, state.dtype) == (dtype, torch.float32)
    # only the output is rounded
    assert torch.equal(y, expected.to(dtype))
    assert torch.equal(state, last)
    y.float().sum().backward()
    expected.sum().backward()
    for (path, a), b in zip(layer.named_parameters(), exact.parameters(), strict=True):
        assert a.grad is not None, path
        assert torch.equal(a.grad, b.grad.to(dtype)), path


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_of_half_precision_tells_its_eigenvalues_and_margin(name, dtype):
    layer = build(name).to(dtype)
    exact = copy.deepcopy(layer).float()
    torch.testing.assert_close(layer.eigenvalues(), exact.eigenvalues())
    assert layer.step_margin() == pytest.approx(exact.step_margin(), rel=1e-5, nan_ok=True)  # gates have none


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gradients", [False, True])
def test_half_precision_weights_stream_with_a_float32_state(name, dtype, gradients):
    layer, x = build(name).to(dtype), sequence().to(dtype)
    exact = copy.deepcopy(layer).float()
    with torch.set_grad_enabled(gradients):
        state = other = None
        for t in range(3):
            y, state = layer.step(x[:, t], state)
            expected, other = exact.step(x[:, t].float(), other)
            assert (y.dtype, state.dtype) == (dtype, torch.float32)
            assert torch.equal(y, expected.to(dtype))
        for parameter in layer.parameters():
            parameter.data.mul_(0.9)
        changed = copy.deepcopy(layer).float().step(x[:, 3].float(), state)[0]
        assert torch.equal(layer.step(x[:, 3], state)[0], changed.to(dtype))


@every
def test_autocast_does_not_reach_the_recurrence(name):
    layer, x = build(name).float(), sequence().float()
    plain, _ = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast, _ = layer(x)
    assert torch.equal(plain, cast)


@every
def test_weights_are_real_and_survive_a_state_dict(name, tmp_path):
    from safetensors.torch import load_file, save_file

    layer, x = build(name), sequence()
    assert all(not p.is_complex() for p in layer.parameters())
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    other = build(name, seed=1)
    other.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(other(x)[0], layer(x)[0])


@pytest.mark.parametrize("kind", ["exp", "softplus", "best", "clip", "direct"])
def test_layers_start_from_the_same_eigenvalues_whatever_the_parameterization(kind):
    lam = -torch.tensor([0.01, 0.3, 3.0], dtype=torch.float64)
    first = DiagonalSSM(1, 3, parameterization="exp", eigenvalues=lam).double()
    other = DiagonalSSM(1, 3, parameterization=kind, eigenvalues=lam).double()
    # weights are created in float32
    torch.testing.assert_close(other.eigenvalues(), lam, rtol=1e-5, atol=1e-7)
    other.set_eigenvalues_(first.eigenvalues())
    torch.testing.assert_close(other.eigenvalues(), first.eigenvalues(), rtol=1e-12, atol=0)
    ring = LRU(1, 3).double()
    copy_of = LRU(1, 3, parameterization="tanh").double()
    copy_of.set_eigenvalues_(ring.eigenvalues())
    torch.testing.assert_close(copy_of.eigenvalues(), ring.eigenvalues(), rtol=1e-12, atol=0)


def test_lru_starts_on_its_ring_uniform_in_area():
    torch.manual_seed(0)
    radius = LRU(1, 20_000, r_min=0.5, r_max=0.9).eigenvalues().detach().abs()
    assert float(radius.min()) >= 0.5 - 1e-6
    assert float(radius.max()) <= 0.9 + 1e-6
    # uniform in area: |lam|^2 is uniform, so its mean is the middle, within 4 standard errors of 20,000 draws
    assert float((radius**2).mean()) == pytest.approx((0.25 + 0.81) / 2, abs=4 * 0.56 / math.sqrt(12 * 20_000))


def test_lru_normalisation_gives_white_noise_a_state_of_unit_size():
    torch.manual_seed(0)
    layer = LRU(8, 64, r_min=0.9, r_max=0.99)
    _, state = layer(torch.randn(64, 2000, 8))
    # the mean square of B u is 1/2 in each of the two parts; 64 x 64 draws leave a few per cent
    assert float(state.detach().square().mean()) == pytest.approx(0.5, rel=0.1)


def test_legs_eigenvalues_are_those_of_the_hippo_matrix():
    from holdfast.nn._s4d import initial_modes

    n = torch.arange(8, dtype=torch.float64)
    root = torch.sqrt(2 * n + 1)
    # A_nk = -sqrt((2n+1)(2k+1)) below the diagonal, -(n+1) on it; A + p p' is normal for p = root/sqrt 2
    hippo = -torch.tril(torch.outer(root, root), -1) - torch.diag(n + 1)
    normal = hippo + torch.outer(root, root) / 2
    found = torch.linalg.eigvals(normal)
    torch.testing.assert_close(found.real, torch.full((8,), -0.5, dtype=torch.float64), rtol=0, atol=1e-10)
    upper = found.imag[found.imag > 0].sort().values
    torch.testing.assert_close(initial_modes("legs", 4).imag, upper, rtol=1e-10, atol=1e-10)


def test_gru_with_unit_steps_equals_torch():
    layer = ContinuousGRU(FEATURES, 4).double()
    theirs = nn.GRU(FEATURES, 4, batch_first=True, dtype=torch.float64)
    n = 4
    with torch.no_grad():
        # torch: rows r, z, n; h = z h + (1 - z) n, so that its z is 1 - ours: a sign on weights and bias
        order = [slice(n, 2 * n), slice(0, n), slice(2 * n, 3 * n)]
        W, U = (torch.cat([w[s] for s in order]) for w in (layer.W, layer.U))
        W[n : 2 * n] *= -1
        U[n : 2 * n] *= -1
        W[n : 2 * n], U[n : 2 * n] = -layer.W[:n], -layer.U[:n]
        W[:n], U[:n] = layer.W[n : 2 * n], layer.U[n : 2 * n]
        theirs.weight_ih_l0.copy_(W)
        theirs.weight_hh_l0.copy_(U)
        theirs.bias_ih_l0.zero_()
        theirs.bias_hh_l0.zero_()
        layer.U[2 * n :].zero_()  # torch applies r after U_h, the paper before: equal without that product
        theirs.weight_hh_l0[2 * n :].zero_()
    x = sequence()
    h, _ = theirs(x)
    torch.testing.assert_close(layer(x)[0], nn.functional.linear(h, layer.C), **TIGHT)


def test_linear_rnn_equals_its_impulse_response():
    layer = LinearRNN(1, 5, W=0.9 * torch.linalg.qr(torch.randn(5, 5)).Q).double()
    x = torch.zeros(1, 12, 1, dtype=torch.float64)
    x[0, 0] = 1
    W, U, C = layer.recurrence(), layer.U, layer.C
    expected = torch.stack([(C @ torch.linalg.matrix_power(W, k) @ U).squeeze() for k in range(12)])
    torch.testing.assert_close(layer(x)[0].flatten(), expected, **TIGHT)


@pytest.mark.usefixtures("user_mistakes")
class TestMistakes:
    def test_wrong_inputs_say_what_was_expected(self):
        layer = DiagonalSSM(FEATURES, 4)
        x = torch.zeros(2, 5, FEATURES)
        with pytest.raises(ShapeError, match=r"expected x of shape \(batch, time, 3\), got \(2, 5, 4\)"):
            layer(torch.zeros(2, 5, 4))
        with pytest.raises(ShapeError, match=r"shape \(batch, time, 3\), got \(5, 3\)"):
            layer(x[0])
        with pytest.raises(DtypeError, match=r"x is torch\.float64 and the weights are torch\.float32; convert one"):
            layer(x.double())
        with pytest.raises(DtypeError, match="real floating-point tensor, got a int64 tensor"):
            layer(x.long())
        with pytest.raises(
            ShapeError, match=r"a state of shape \(2, 4\) for x of \(2, 5, 3\), got a float32 tensor of shape \(1, 4\)"
        ):
            layer(x, torch.zeros(1, 4))
        with pytest.raises(DtypeError, match=r"a state in torch\.float32 for x in torch\.float32, got torch\.float64"):
            layer(x, torch.zeros(2, 4, dtype=torch.float64))
        with pytest.raises(ArgumentError, match="0 <= lengths <= 5"):
            layer(x, lengths=torch.tensor([6, 2]))
        with pytest.raises(ArgumentError, match=r"dt as a finite number >= 0 or a tensor, got float -0\.1"):
            layer(x, dt=-0.1)
        with pytest.raises(ArgumentError, match="step sizes dt >= 0, got a smallest of -1"):
            layer(x, dt=-torch.ones(2, 5))
        with pytest.raises(ShapeError, match=r"dt as a number or a real tensor of shape \(2, 5\)"):
            layer(x, dt=torch.ones(2, 4))
        with pytest.raises(ArgumentError, match="LRU runs in discrete time and has no step size; leave dt out"):
            LRU(FEATURES, 4)(x, dt=0.1)
        with pytest.raises(ArgumentError, match="needs the whole sequence"):
            LRU(FEATURES, 4, bidirectional=True).step(x[:, 0])

    def test_wrong_choices_are_refused(self):
        with pytest.raises(ArgumentError, match="features must be a whole number >= 1, got 0"):
            LRU(0, 4)
        with pytest.raises(ArgumentError, match="state_size must be even, got 3"):
            S4D(2, 3)
        with pytest.raises(UnknownNameError, match=r"unknown initialization 'line'. Did you mean 'lin'"):
            S4D(2, 4, initialization="line")
        with pytest.raises(ArgumentError, match="are for time='continuous'"):
            DiagonalSSM(2, 4, time="discrete", dt=0.1)
        with pytest.raises(RangeError, match=r"2 of 2 eigenvalues outside it: 0\.5, 1"):
            DiagonalSSM(2, 2, eigenvalues=torch.tensor([0.5, 1.0]))
        with pytest.raises(ArgumentError, match="r_min < r_max"):
            LRU(2, 4, r_min=0.9, r_max=0.5)
        with pytest.raises(UnknownNameError, match="parameterization of a dense weight 'complet'"):
            ContinuousRNN(2, 4, parameterization="complet")
        with pytest.raises(ShapeError, match=r"dense recurrent weight W \(`initial`\) of shape \(4, 4\), got \(3, 3\)"):
            LinearRNN(2, 4, W=torch.eye(3))


def test_mamba_like_eigenvalues_get_constants_that_hold_them():
    layer = SelectiveSSM(2, 16, parameterization="best")
    assert float(layer.eigenvalues().detach().min()) == pytest.approx(-16, rel=1e-5)
    assert layer.parameterization.range.low <= -32
    assert parameterizations.get("best").range.low == -2
