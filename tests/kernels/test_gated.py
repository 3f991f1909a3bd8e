"""LSTM and GRU: the C++ kernels against the plain loop in float64, and both against torch's own modules."""

import pytest
import torch
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.kernels import gru, lstm
from holdfast.kernels._common import library
from holdfast.kernels.gated import gru_reference, lstm_reference
from holdfast.kernels.gated._reference import Weights

native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
KINDS = {"lstm": (4, 2, lstm, lstm_reference), "gru": (3, 1, gru, gru_reference)}
# no row, no step, one unit; a vector and one more; more rows than one group takes; a group of rows of several lengths
SHAPES = [(0, 3, 2, 4), (2, 0, 2, 4), (1, 1, 1, 1), (3, 2, 5, 7), (2, 63, 3, 17), (41, 4, 2, 8), (5, 65, 20, 33)]


def problem(kind, shape, dtype, *, bias=True, start=True, lengths=False):
    batch, time, features, state = shape
    gates, states, _, _ = KINDS[kind]
    generator = torch.Generator().manual_seed(sum(shape))

    def normal(*size, scale=1.0):
        values = scale * torch.randn(*size, generator=generator, dtype=torch.float64)
        return values.to(dtype).requires_grad_()

    weights = [normal(gates * state, features, scale=0.4), normal(gates * state, state, scale=0.4)]
    weights += [normal(gates * state), normal(gates * state)] if bias else []
    initial = [normal(batch, state) for _ in range(states)] if start else []
    ends = torch.randint(0, time + 1, (batch,), generator=generator) if lengths else None
    return normal(batch, time, features), weights, initial, ends


def results(function, x, weights, initial, **options):
    outputs = function(x, weights, *initial, **options)
    generator = torch.Generator().manual_seed(1)
    seen = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in outputs]
    inputs = [x, *(weight for weight in weights if weight is not None), *initial]
    followed = [(y, g) for y, g in zip(outputs, seen, strict=True) if y.requires_grad and y.numel()]
    if not followed:
        return list(outputs)
    ends, given = zip(*followed, strict=True)
    return [*outputs, *torch.autograd.grad(ends, inputs, given, allow_unused=True)]


def largest_difference(ours, theirs):
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if b is not None and b.numel()]
    return max(
        (float((a - b).detach().abs().max() / b.detach().abs().max().clamp(min=1e-30)) for a, b in pairs), default=0.0
    )


@native
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
def test_the_kernel_is_the_plain_loop_with_all_its_gradients(kind, shape, reverse, lengths):
    x, weights, initial, ends = problem(kind, shape, torch.float64, lengths=lengths)
    _, _, function, reference = KINDS[kind]
    ours = results(function, x, tuple(weights), initial, lengths=ends, reverse=reverse, backend="native")
    theirs = results(reference, x, Weights(*weights), initial, lengths=ends, reverse=reverse)
    # 65 steps of sums of at most 53 terms, each rounded to 1.1e-16, through gates whose slopes are at most 1
    assert largest_difference(ours, theirs) < 1e-12


@native
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("bias", "start"), [(False, True), (True, False), (False, False)])
def test_biases_and_first_states_may_be_left_out(kind, bias, start):
    x, weights, initial, _ = problem(kind, (3, 9, 4, 5), torch.float64, bias=bias, start=start)
    _, _, function, reference = KINDS[kind]
    ours = results(function, x, tuple(weights), initial)
    assert largest_difference(ours, results(reference, x, Weights(*weights), initial)) < 1e-13


@native
@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_as_near_to_float64_as_the_plain_loop_in_float32(kind):
    shape = (9, 200, 24, 40)
    _, _, function, reference = KINDS[kind]
    wide = problem(kind, shape, torch.float64)
    truth = results(reference, wide[0], Weights(*wide[1]), wide[2])
    narrow = [
        wide[0].detach().float().requires_grad_(),
        *([t.detach().float().requires_grad_() for t in part] for part in wide[1:3]),
    ]
    own = largest_difference(results(function, narrow[0], tuple(narrow[1]), narrow[2]), truth)
    plain = largest_difference(results(reference, narrow[0], Weights(*narrow[1]), narrow[2]), truth)
    assert own < 3 * plain  # other orders of sums, and polynomials for tanh and sigmoid within 2 ulp


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_it_is_torchs_own_layer(kind, backend):
    layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](4, 6, batch_first=True).double()
    x = torch.randn(3, 20, 4, dtype=torch.float64)
    theirs, last = layer(x)
    ours, *ends = KINDS[kind][2](x, tuple(layer.parameters()), backend=backend)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-14)  # 20 steps in float64
    for mine, their in zip(ends, last if kind == "lstm" else (last,), strict=True):
        assert torch.allclose(mine, their[0], rtol=0, atol=1e-14)


@native
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_derivative_is_that_of_the_plain_loop(kind):
    x, weights, initial, _ = problem(kind, (2, 4, 3, 3), torch.float64)
    _, _, function, reference = KINDS[kind]

    def second(call, weights):
        y = call(x, weights, *initial)[0].square().sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), weights)

    assert largest_difference(second(function, tuple(weights)), second(reference, Weights(*weights))) < 1e-12


@native
@pytest.mark.parametrize("kind", KINDS)
def test_it_may_be_mapped_and_compiled(kind):
    x, weights, initial, _ = problem(kind, (2, 5, 3, 4), torch.float64)
    function = KINDS[kind][2]
    rows = torch.stack([x.detach(), 2 * x.detach()])
    mapped = torch.vmap(lambda x: function(x, tuple(weights), *initial)[0])(rows)
    assert torch.equal(mapped[1], function(rows[1], tuple(weights), *initial)[0])
    compiled = torch.compile(lambda x: function(x, tuple(weights), *initial)[0], fullgraph=True, backend="aot_eager")
    grad = torch.autograd.grad(compiled(x).square().sum(), x)[0]
    assert torch.allclose(grad, torch.autograd.grad(function(x, tuple(weights), *initial)[0].square().sum(), x)[0])


@pytest.mark.parametrize(
    "change",
    [
        {"weights": 3},
        {"w_hh": (7, 2)},
        {"w_ih": (8, 5)},
        {"h0": (3, 3)},
        {"dtype": torch.float32},
        {"lengths": torch.tensor([9, 1])},
    ],
    ids=str,
)
def test_a_mistake_is_named(change):
    x = torch.zeros(2, 4, 3)
    given = {"w_ih": torch.zeros(8, 3), "w_hh": torch.zeros(8, 2), "b_ih": torch.zeros(8), "b_hh": torch.zeros(8)}
    options = {}
    if "weights" in change:
        given.popitem()
    for name in ("w_hh", "w_ih"):
        if name in change:
            given[name] = torch.zeros(change[name])
    if "dtype" in change:
        x = x.double()
    if "h0" in change:
        options["h0"] = torch.zeros(change["h0"])
    options |= {"lengths": change["lengths"]} if "lengths" in change else {}
    with pytest.raises(HoldfastError, match="expected"):
        lstm(x, tuple(given.values()), **options)
