"""The gated residual against torch's own operators in float64: values, gradients, and every way of calling it."""

import pytest
import torch

from holdfast.errors import ArgumentError, ShapeError
from holdfast.kernels import gate
from holdfast.kernels._common import library
from holdfast.kernels.gate import gate_reference

native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
# float64 sums of at most 1000 tokens and 256 columns, of numbers of size 1
EXACT = {"rtol": 1e-11, "atol": 1e-11}
# ends of a tile (96 tokens), of a product's block of rows (12 or 6) and columns (32), a stream's step, and torch's path
SHAPES = [(1, 16), (16, 64), (17, 48), (96, 32), (97, 16), (1000, 80), (20, 256), (7, 5), (50, 272), (0, 32)]


def problem(tokens, width, dtype=torch.float64):
    """y, x, weight, bias and the gradient of the result."""
    g = torch.Generator().manual_seed(tokens + width)
    y, x, seed = torch.randn(3, tokens, width, dtype=torch.float64, generator=g).to(dtype)
    weight = torch.randn(2 * width, width, dtype=torch.float64, generator=g).to(dtype) / width**0.5
    return (y, x, weight, torch.randn(2 * width, dtype=torch.float64, generator=g).to(dtype)), seed


def result_and_gradients(function, tensors, seed):
    tensors = [t.detach().requires_grad_() for t in tensors]
    out = function(*tensors)
    return [out.detach(), *torch.autograd.grad(out, tensors, seed)]


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
@pytest.mark.parametrize("count", [1, 3])
def test_values_and_gradients_agree_with_torch(tokens, width, count, threads):
    threads(count)
    tensors, seed = problem(tokens, width)
    expected = result_and_gradients(gate_reference, tensors, seed)
    first, again = (result_and_gradients(gate, tensors, seed) for _ in range(2))
    for got, same, want in zip(first, again, expected, strict=True):
        torch.testing.assert_close(got, want, **EXACT)
        assert torch.equal(got, same)  # bit-equal run to run
    with torch.no_grad():
        assert torch.equal(gate(*tensors), first[0])


@native
def test_float32_errors_are_within_twice_those_of_torch():
    tensors, seed = problem(500, 64, torch.float32)
    exact = result_and_gradients(gate_reference, [t.double() for t in tensors], seed.double())
    plain = result_and_gradients(gate_reference, tensors, seed)
    for got, torchs, truth in zip(result_and_gradients(gate, tensors, seed), plain, exact, strict=True):
        # the floor is two roundings of the largest element: sums in another order
        assert (got - truth).abs().max() <= 2 * (torchs - truth).abs().max() + 1.2e-7 * truth.abs().max()


def test_extreme_inputs_saturate_and_nan_stays():
    (y, x, weight, bias), _ = problem(20, 16)
    y[0, 0], y[1, 0], y[2, 0] = 1e30, -1e30, float("nan")
    got, want = gate(y, x, weight, bias), gate_reference(y, x, weight, bias)
    assert torch.equal(got.isnan(), want.isnan()) and bool(got[2].isnan().all())
    torch.testing.assert_close(got[[0, 1, *range(3, 20)]], want[[0, 1, *range(3, 20)]], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", [3, 16])
def test_gradients_pass_gradcheck_twice(width):
    tensors = [t.requires_grad_() for t in problem(17, width)[0]]
    assert torch.autograd.gradcheck(gate, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(gate, tensors, fast_mode=True)


def test_any_strides_and_leading_shapes_do():
    (y, x, weight, bias), _ = problem(24, 32)
    want = gate_reference(y, x, weight, bias)
    for shape in ((2, 12, 32), (2, 3, 4, 32)):
        torch.testing.assert_close(gate(y.view(shape), x.view(shape), weight, bias), want.view(shape), **EXACT)
    strided = y.t().contiguous().t()
    torch.testing.assert_close(gate(strided, x, weight.t().contiguous().t(), bias), want, **EXACT)


@native
def test_compiles_into_one_graph(user_mistakes):
    tensors, seed = problem(20, 32)
    compiled = torch.compile(gate, fullgraph=True, backend="aot_eager")
    for got, want in zip(
        result_and_gradients(compiled, tensors, seed), result_and_gradients(gate, tensors, seed), strict=True
    ):
        torch.testing.assert_close(got, want, **EXACT)


def test_vmap_over_tokens_and_over_weights():
    (y, x, weight, bias), _ = problem(20, 16)
    many_y, many_w = torch.stack([y, 2 * y]), torch.stack([weight, -weight])
    got = torch.func.vmap(gate, in_dims=(0, None, None, None))(many_y, x, weight, bias)
    torch.testing.assert_close(got, torch.stack([gate(v, x, weight, bias) for v in many_y]), **EXACT)
    got = torch.func.vmap(gate, in_dims=(None, None, 0, None))(y, x, many_w, bias)
    torch.testing.assert_close(got, torch.stack([gate(y, x, w, bias) for w in many_w]), **EXACT)


def check_build():
    """Every shape against the reference, for a build that this process has loaded."""
    for shape in SHAPES:
        tensors, seed = problem(*shape)
        got, want = (result_and_gradients(f, tensors, seed) for f in (gate, gate_reference))
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, **EXACT)


works = check_build


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({1: torch.zeros(3, 16)}, ShapeError, r"x of shape \(2, 16\) \(y's\), got \(3, 16\)"),
        ({2: torch.zeros(16, 16)}, ShapeError, r"weight of shape \(32, 16\)"),
        ({3: torch.zeros(16)}, ShapeError, r"bias of shape \(32,\)"),
        ({3: torch.zeros(32, device="meta")}, ArgumentError, "one device"),
    ],
)
def test_mistakes_are_answered_with_what_was_expected(change, error, text, user_mistakes):
    arguments = [change.get(i, t) for i, t in enumerate(problem(2, 16, torch.float32)[0])]
    with pytest.raises(error, match=text):
        gate(*arguments)
