"""The product x W' + b against torch's own in float64: values, gradients, which of the two runs, and who calls it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import holdfast
from holdfast.kernels import _linear
from holdfast.kernels._common import library
from holdfast.nn._precision import applied

native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
# float64 sums of at most 1000 tokens and 272 columns, of numbers of size 1
EXACT = {"rtol": 1e-11, "atol": 1e-11}
# ends of a tile (192 tokens), of a product's block of rows (12 or 6) and columns (64), outputs that fill no vector
SHAPES = [
    (1, 16, 16),
    (7, 32, 65),
    (192, 48, 33),
    (193, 16, 64),
    (1000, 80, 130),
    (20, 272, 17),
    (400, 64, 1),
    (300, 272, 250),
]


@pytest.fixture
def taken(monkeypatch):
    """Every product that the C++ function can take is its own, also where torch's would be as fast; counts them."""
    monkeypatch.setattr(_linear, "pays", lambda: library.status().available)
    monkeypatch.setattr(_linear, "_MIN_PRODUCTS", 0)
    monkeypatch.setattr(_linear, "_MIN_TOKENS", 0)
    monkeypatch.setattr(_linear, "_MIN_OUTPUTS", 1)
    monkeypatch.setattr("holdfast.nn._precision.pays", _linear.pays)
    calls, own = [], _linear._run
    monkeypatch.setattr(_linear, "_run", lambda name, *given, **rest: (calls.append(name), own(name, *given, **rest)))
    return calls


def problem(tokens, inputs, outputs, dtype=torch.float64):
    """x, weight, bias, and the gradient of the result."""
    g = torch.Generator().manual_seed(tokens + inputs + outputs)
    shapes = (tokens, inputs), (outputs, inputs), (outputs,), (tokens, outputs)
    return [torch.randn(shape, dtype=torch.float64, generator=g).to(dtype) for shape in shapes]


def result_and_gradients(function, tensors, seed):
    tensors = [t.detach().requires_grad_() for t in tensors]
    y = function(*tensors)
    return [y.detach(), *torch.autograd.grad(y, tensors, seed)]


@native
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 3])
def test_values_and_gradients_agree_with_torch(shape, count, threads, taken, poisoned):
    threads(count)
    *tensors, seed = problem(*shape)
    for given in (tensors, tensors[:2]):
        taken.clear()
        expected = result_and_gradients(functional.linear, given, seed)
        first, again = (result_and_gradients(_linear.linear, given, seed) for _ in range(2))
        for got, same, want in zip(first, again, expected, strict=True):
            torch.testing.assert_close(got, want, **EXACT)
            assert torch.equal(got, same)  # bit-equal run to run
        with torch.no_grad():
            assert torch.equal(_linear.linear(*given), first[0])
        assert taken == ["forward", "backward"] * 2 + ["forward"]


@native
@pytest.mark.parametrize("shape", [(500, 64, 96), (200, 2048, 64), (30_000, 16, 16)])
def test_float32_errors_are_within_twice_those_of_torch(shape, taken):
    *tensors, seed = problem(*shape, torch.float32)
    exact = result_and_gradients(functional.linear, [t.double() for t in tensors], seed.double())
    plain = result_and_gradients(functional.linear, tensors, seed)
    for got, torchs, truth in zip(result_and_gradients(_linear.linear, tensors, seed), plain, exact, strict=True):
        # the floor is two roundings of the largest element: sums in another order
        assert (got - truth).abs().max() <= 2 * (torchs - truth).abs().max() + 1.2e-7 * truth.abs().max()


@native
def test_gradients_that_are_not_needed_are_not_computed(taken):
    x, weight, bias, seed = problem(20, 32, 48)
    for needed in ((True, False, False), (False, True, False), (False, False, True)):
        given = [t.clone().requires_grad_(need) for t, need in zip((x, weight, bias), needed, strict=True)]
        y = _linear.linear(*given)
        y.backward(seed)
        assert [t.grad is not None for t in given] == [*needed]
        want = [t.clone().requires_grad_(need) for t, need in zip((x, weight, bias), needed, strict=True)]
        functional.linear(*want).backward(seed)
        for got, expected in zip(given, want, strict=True):
            if expected.grad is not None:
                torch.testing.assert_close(got.grad, expected.grad, **EXACT)


@native
def test_gradients_pass_gradcheck_twice(taken):
    tensors = [t.requires_grad_() for t in problem(5, 16, 3)[:3]]
    assert torch.autograd.gradcheck(_linear.linear, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(_linear.linear, tensors, fast_mode=True)


@native
def test_any_strides_and_leading_shapes_do(taken):
    x, weight, bias, _ = problem(24, 32, 48)
    want = functional.linear(x, weight, bias)
    for shape in ((2, 12, 32), (2, 3, 4, 32)):
        torch.testing.assert_close(_linear.linear(x.view(shape), weight, bias), want.view(*shape[:-1], 48), **EXACT)
    strided, seed = [t.t().contiguous().t() for t in (x, weight)], torch.randn(48, 24, dtype=torch.float64).t()
    torch.testing.assert_close(_linear.linear(*strided, bias), want, **EXACT)
    expected = result_and_gradients(functional.linear, (x, weight, bias), seed)
    for got, wanted in zip(result_and_gradients(_linear.linear, (*strided, bias), seed), expected, strict=True):
        torch.testing.assert_close(got, wanted, **EXACT)


@native
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch.func uses it inside
def test_what_it_does_not_take_goes_to_torch(taken):
    x, weight, bias, _ = problem(24, 32, 48, torch.float32)
    cases = {
        "no whole vectors": (x[:, :30], weight[:, :30], bias),
        "half precision": (x.half(), weight.half(), bias.half()),
        "whole numbers": (x.int(), weight.int(), None),
        "one row": (x[0], weight, bias),
        "meta": (x.to("meta"), weight.to("meta"), bias.to("meta")),
    }
    for name, given in cases.items():
        assert _linear.linear(*given).shape == functional.linear(*given).shape, name
    with torch.autocast("cpu", dtype=torch.float16):
        assert _linear.linear(x, weight, bias).dtype == torch.float16
    tangent = torch.func.jvp(lambda x: _linear.linear(x, weight, bias), (x,), (x,))[1]
    torch.testing.assert_close(tangent, x @ weight.T)
    mapped = torch.func.vmap(lambda x: _linear.linear(x, weight, bias))(x.view(2, 12, 32))
    torch.testing.assert_close(mapped, functional.linear(x, weight, bias).view(2, 12, 48))
    assert taken == []


@pytest.mark.parametrize("wrong", [{0: torch.zeros(24, 16)}, {2: torch.zeros(3)}])
def test_mistakes_get_torchs_own_message(wrong, taken):
    given = [wrong.get(i, t) for i, t in enumerate(problem(24, 32, 48, torch.float32)[:3])]
    with pytest.raises(RuntimeError) as expected:
        functional.linear(*given)
    with pytest.raises(RuntimeError) as got:
        _linear.linear(*given)
    assert str(got.value) == str(expected.value)


@native
def test_a_linear_module_with_hooks_is_called_as_it_is(taken):
    module, x = nn.Linear(32, 48), torch.randn(24, 32)
    want = module(x)
    torch.testing.assert_close(applied(module, x), want)
    assert taken == ["forward"]
    seen = []
    handle = module.register_forward_hook(lambda *_: seen.append("hook"))
    applied(module, x)
    assert seen == ["hook"] and taken == ["forward"]
    handle.remove()
    module.forward = lambda x: torch.zeros(1)
    assert applied(module, x).shape == (1,)


@native
@pytest.mark.parametrize("layer", ["diagonal", "lru", "mamba", "mingru"])
def test_models_train_alike_with_either_product(layer, taken, monkeypatch):
    def losses():
        torch.manual_seed(0)
        model = holdfast.nn.LanguageModel(32, 32, depth=2, layer=layer, state_size=16, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens, found = torch.randint(0, 32, (2, 40)), []
        for _ in range(4):
            loss = functional.cross_entropy(model(tokens)[0].flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        return found

    ours = losses()
    assert {"forward", "backward"} <= {*taken}
    monkeypatch.setattr(_linear, "pays", lambda: False)
    monkeypatch.setattr("holdfast.nn._precision.pays", _linear.pays)
    assert ours == pytest.approx(losses(), rel=1e-10)


@native
def test_a_tiled_mlp_has_the_same_gradients_with_either_product(taken, monkeypatch):
    from holdfast.nn._tiled_mlp import TILE_ROWS, tiled_mlp

    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).double()
    x = torch.randn(TILE_ROWS + 70, 16, dtype=torch.float64)
    seed = torch.randn_like(x)

    def gradients():
        given = x.clone().requires_grad_()
        return torch.autograd.grad(tiled_mlp(mlp, given), [given, *mlp.parameters()], seed)

    ours = gradients()
    assert taken.count("backward") == 4
    monkeypatch.setattr(_linear, "pays", lambda: False)
    for got, want in zip(ours, gradients(), strict=True):
        torch.testing.assert_close(got, want, **EXACT)


@native
def test_strided_inputs_of_a_tiled_mlp_get_their_gradients(taken):
    from holdfast.nn._tiled_mlp import TILE_ROWS, tiled_mlp

    mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).double()
    x = torch.randn(1, 16, TILE_ROWS + 70, dtype=torch.float64).mT.requires_grad_()
    (got,) = torch.autograd.grad(tiled_mlp(mlp, x).square().sum(), x)
    (want,) = torch.autograd.grad(mlp(x).square().sum(), x)
    torch.testing.assert_close(got, want, **EXACT)


@native
def test_a_short_mlp_with_hooks_is_called_as_it_is(taken):
    from holdfast.nn._tiled_mlp import tiled_mlp

    mlp, seen = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), []
    mlp.register_forward_hook(lambda *_: seen.append("hook"))
    tiled_mlp(mlp, torch.randn(30, 16))
    assert seen == ["hook"]


@native
def test_only_what_the_needed_gradients_read_is_saved(taken):
    x, weight, bias, _ = problem(24, 32, 48)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        _linear.linear(x.requires_grad_(), weight, bias).sum().backward()
        _linear.linear(x.detach(), weight.requires_grad_(), bias).sum().backward()
        _linear.linear(x.detach(), weight.detach(), bias.requires_grad_()).sum().backward()
    assert kept == [(48, 32), (24, 32)]


@native
def test_many_gradients_at_once_are_torchs_own(taken):
    x, weight, bias, _ = problem(24, 32, 4)

    def first(x):
        return _linear.linear(x, weight, bias)[0]

    got = torch.autograd.functional.jacobian(first, x, vectorize=True)
    torch.testing.assert_close(got, torch.autograd.functional.jacobian(first, x), **EXACT)


@native
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler looks at it
def test_a_backward_pass_that_is_compiled_is_torchs_own(taken):
    x, weight, bias, seed = problem(24, 32, 48)
    y = _linear.linear(x.requires_grad_(), weight.requires_grad_(), bias)
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda: y.backward(seed), backend="eager")()
    torch.testing.assert_close(x.grad, seed @ weight.detach(), **EXACT)
    torch.testing.assert_close(weight.grad, seed.T @ x.detach(), **EXACT)
