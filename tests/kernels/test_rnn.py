"""The nonlinear RNN: every backend against the plain loop in float64, and against torch.nn.RNN."""

import copy
import itertools
import threading

import pytest
import torch

from holdfast.errors import ArgumentError, BackendError, DtypeError, HoldfastError, ShapeError, UnknownNameError
from holdfast.kernels._common import library
from holdfast.kernels.rnn import ACTIVATIONS, choose, rnn, rnn_reference

AVAILABLE = library.status().available
needs_native = pytest.mark.skipif(not AVAILABLE, reason="the native library is not built")
FAST = [pytest.param("native", marks=needs_native), "chunked"]
# torch makes an object of a class that it calls deprecated itself, while it traces any autograd function
compiles = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _one_thread(threads):
    """One thread unless a test asks for more: the plain loop's small products only slow each other down."""
    threads(1)


# Float64 results differ by the order of sums only: 1e-12 of the largest entry is 4500 ulp, for 1000 steps in a row.
FLOAT64 = 1e-12


def problem(batch, time, features, state, dtype=torch.float64, seed=0, diagonal=False, b=True, h0=True):
    """x, w, u, b, h0 with |W| < 1, so that rounding errors do not grow with time."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    w = 0.9 * torch.tanh(normal(state)) if diagonal else 0.4 * normal(state, state) / state**0.5
    parts = (normal(batch, time, features), w, normal(state, features) / max(features, 1) ** 0.5)
    return [t.to(dtype) for t in parts] + [
        normal(state).to(dtype) if b else None,
        normal(batch, state).to(dtype) if h0 else None,
    ]


def outputs_and_gradients(function, tensors, dt=None, **options):
    """h, h_last and the gradients of a fixed linear form of both, for all tensors and a dt tensor."""
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in tensors]
    if isinstance(dt, torch.Tensor):
        dt = dt.detach().clone().requires_grad_()
    h, last = function(*leaves, dt=dt, **options)
    generator = torch.Generator().manual_seed(1)
    g_h = torch.randn(h.shape, generator=generator, dtype=torch.float64).to(h.dtype)
    g_last = torch.randn(last.shape, generator=generator, dtype=torch.float64).to(last.dtype)
    loss = (h * g_h).sum().to(last.dtype) + (last * g_last).sum()
    wanted = [t for t in (*leaves, dt) if isinstance(t, torch.Tensor)]
    if not loss.requires_grad:  # no step and no h0: nothing depends on anything
        return [h, last, *(torch.zeros_like(t) for t in wanted)]
    gradients = torch.autograd.grad(loss, wanted, materialize_grads=True)
    return [h.detach(), last.detach(), *gradients]


def error(found, exact):
    """Largest difference over the largest exact entry, or over 1 where all are tiny."""
    if exact.numel() == 0:
        return 0.0
    scale = max(float(exact.abs().max()), 1e-3)
    return float((found.double() - exact).abs().max()) / scale


def assert_agree(found, exact, tolerance):
    assert len(found) == len(exact)
    for index, (f, e) in enumerate(zip(found, exact, strict=True)):
        assert f.shape == e.shape
        assert error(f, e) <= tolerance, f"entry {index}: {error(f, e):.2e} > {tolerance:.2e}"


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(
    ("time", "state", "features", "batch"),
    [
        (0, 3, 2, 4), (1, 1, 1, 1), (1, 130, 17, 3), (2, 3, 1, 5), (2, 17, 3, 33), (63, 16, 5, 7), (63, 1, 130, 2),
        (64, 17, 16, 9), (64, 130, 4, 17), (65, 3, 3, 65), (65, 16, 1, 40), (1000, 16, 3, 3), (1000, 17, 1, 2),
        (65, 65, 33, 1), (20, 200, 40, 6),
    ],
)  # fmt: skip
def test_agrees_with_the_float64_reference(backend, time, state, features, batch):
    tensors = problem(batch, time, features, state)
    exact = outputs_and_gradients(rnn_reference, tensors)
    assert_agree(outputs_and_gradients(rnn, tensors, backend=backend), exact, FLOAT64)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("mode", ["discrete", "euler", "irregular"])
@pytest.mark.parametrize("reverse", [False, True])
def test_every_option_agrees_with_the_float64_reference(backend, activation, diagonal, mode, reverse):
    batch, time = 11, 23
    tensors = problem(batch, time, 6, 19, diagonal=diagonal, seed=2)
    dt = {"discrete": None, "euler": 0.1, "irregular": 0.2 * torch.rand(batch, time, dtype=torch.float64)}[mode]
    lengths = torch.tensor([0, 1, 23, 7, 7, 12, 22, 3, 23, 13, 5])
    for options in ({}, {"lengths": lengths}):
        options = {"dt": dt, "activation": activation, "reverse": reverse, **options}
        exact = outputs_and_gradients(rnn_reference, tensors, **options)
        assert_agree(outputs_and_gradients(rnn, tensors, backend=backend, **options), exact, FLOAT64)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("b", [False, True])
@pytest.mark.parametrize("h0", [False, True])
def test_bias_and_initial_state_may_be_left_out(backend, b, h0):
    tensors = problem(4, 30, 5, 9, b=b, h0=h0)
    exact = outputs_and_gradients(rnn_reference, tensors)
    assert_agree(outputs_and_gradients(rnn, tensors, backend=backend), exact, FLOAT64)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(("dt", "activation"), [(None, "tanh"), (0.05, "tanh"), (None, "sigmoid")])
@pytest.mark.parametrize(("time", "state", "features"), [(65, 16, 1), (200, 64, 33), (300, 17, 3)])
def test_float32_error_is_within_twice_the_references_own(backend, dt, activation, time, state, features):
    tensors = problem(6, time, features, state)
    single = [t.float() for t in tensors]
    options = {"dt": dt, "activation": activation}
    exact = outputs_and_gradients(rnn_reference, [t.double() for t in single], **options)
    own = outputs_and_gradients(rnn_reference, single, **options)
    found = outputs_and_gradients(rnn, single, backend=backend, **options)
    for f, o, e in zip(found, own, exact, strict=True):
        # 4 ulp of the largest entry: where the reference happens to be exact, the last rounding is still there
        assert error(f, e) <= 2 * error(o, e) + 5e-7


@needs_native
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_equals_torch_rnn(activation):
    peer = torch.nn.RNN(7, 37, batch_first=True, nonlinearity=activation).double()
    x = torch.randn(5, 50, 7, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(1, 5, 37, dtype=torch.float64, requires_grad=True)
    expected, expected_last = peer(x, h0)
    b = peer.bias_ih_l0 + peer.bias_hh_l0
    h, last = rnn(x, peer.weight_hh_l0, peer.weight_ih_l0, b, h0[0], activation=activation)
    leaves = (x, h0, *peer.parameters())
    gradients = torch.autograd.grad(expected.square().sum() + expected_last.sum(), leaves)
    found = torch.autograd.grad(h.square().sum() + last.sum(), leaves)
    # torch.nn.RNN starts with weights up to 1/sqrt(37), so W contracts and float64 sums agree as above
    outputs, expected_outputs = (h.detach(), last.detach()), (expected.detach(), expected_last[0].detach())
    assert_agree((*outputs, *found), (*expected_outputs, *gradients), FLOAT64)


@pytest.mark.parametrize("backend", FAST)
def test_non_contiguous_inputs_give_the_same(backend):
    x, w, u, b, h0 = problem(6, 21, 5, 18)
    dt = torch.rand(6, 21, dtype=torch.float64)
    exact = outputs_and_gradients(rnn_reference, (x, w, u, b, h0), dt=dt)
    strided = (
        x.transpose(0, 1).contiguous().transpose(0, 1),
        w.T.contiguous().T,
        torch.stack([u, u], dim=-1)[..., 0],
        torch.stack([b, b], dim=-1)[..., 1],
        h0.T.contiguous().T,
    )
    assert not any(t.is_contiguous() for t in strided)
    leaves = [t.requires_grad_() for t in strided]
    h, last = rnn(*leaves, dt=dt.T.contiguous().T, backend=backend)
    assert_agree((h.detach(), last.detach()), exact[:2], FLOAT64)
    offset = torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x)  # begins in the middle of a vector
    assert_agree(rnn(offset, w, u, b, h0, dt=dt, backend=backend), exact[:2], FLOAT64)
    wide = h0[:1].expand(6, -1)  # one row of memory for all rows of the batch
    assert_agree(rnn(x, w, u, b, wide, backend=backend), rnn_reference(x, w, u, b, wide), FLOAT64)
    # the gradient of a sum is an expanded tensor
    h, _ = rnn(*leaves, dt=dt, backend=backend)
    expected, _ = rnn_reference(*leaves, dt=dt)
    assert_agree(torch.autograd.grad(h.sum(), leaves), torch.autograd.grad(expected.sum(), leaves), FLOAT64)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("options", [{}, {"dt": "tensor", "activation": "sigmoid", "reverse": True}])
@pytest.mark.parametrize("diagonal", [False, True])
def test_gradcheck(backend, options, diagonal):
    tensors = [t.requires_grad_() for t in problem(3, 5, 2, 4, diagonal=diagonal)]
    dt = torch.rand(3, 5, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([5, 0, 3])

    def function(x, w, u, b, h0, dt):
        step = dt if options else None
        chosen = {**options, "dt": step}
        return rnn(x, w, u, b, h0, lengths=lengths, backend=backend, **chosen)

    assert torch.autograd.gradcheck(function, (*tensors, dt))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (4,), (5,), (0, 1, 3)])
def test_gradients_of_any_subset(backend, wanted):
    tensors = [*problem(4, 12, 5, 7), torch.rand(4, 12, dtype=torch.float64)]
    full = outputs_and_gradients(rnn_reference, tensors[:5], dt=tensors[5])[2:]
    for i in wanted:
        tensors[i].requires_grad_()
    h, last = rnn(*tensors[:5], dt=tensors[5], backend=backend)
    generator = torch.Generator().manual_seed(1)
    g_h = torch.randn(h.shape, generator=generator, dtype=torch.float64)
    g_last = torch.randn(last.shape, generator=generator, dtype=torch.float64)
    found = torch.autograd.grad([h, last], [tensors[i] for i in wanted], [g_h, g_last])
    assert_agree(found, [full[i] for i in wanted], FLOAT64)


@pytest.mark.parametrize("backend", FAST)
def test_the_final_state_alone_is_differentiable(backend):
    tensors = [t.requires_grad_() for t in problem(4, 12, 5, 7)]
    found = torch.autograd.grad(rnn(*tensors, backend=backend)[1].square().sum(), tensors)
    expected = torch.autograd.grad(rnn_reference(*tensors)[1].square().sum(), tensors)
    assert_agree(found, expected, FLOAT64)


@pytest.mark.parametrize("backend", [*FAST, "reference"])
def test_a_sequence_in_two_parts_equals_the_whole(backend):
    x, w, u, b, h0 = problem(4, 40, 5, 18)
    h, last = rnn(x, w, u, b, h0, dt=0.1, backend=backend)
    first, middle = rnn(x[:, :17], w, u, b, h0, dt=0.1, backend=backend)
    second, end = rnn(x[:, 17:], w, u, b, middle, dt=0.1, backend=backend)
    assert_agree((torch.cat([first, second], 1), end), (h, last), FLOAT64)


@pytest.mark.parametrize("backend", [*FAST, "reference"])
@pytest.mark.parametrize("reverse", [False, True])
def test_padding_is_never_read(backend, reverse):
    x, w, u, b, h0 = problem(5, 9, 6, 17)
    lengths = torch.tensor([9, 0, 4, 1, 8])
    dt = torch.rand(5, 9, dtype=torch.float64)
    padding = torch.arange(9) >= lengths[:, None]
    options = {"lengths": lengths, "reverse": reverse, "backend": backend}
    clean = outputs_and_gradients(rnn, (x, w, u, b, h0), dt=dt, **options)
    x[padding], dt[padding] = float("nan"), float("nan")
    soiled = outputs_and_gradients(rnn, (x, w, u, b, h0), dt=dt, **options)
    for c, s in zip(clean, soiled, strict=True):
        assert torch.equal(c, s)
    assert not clean[0][padding].any()
    assert torch.equal(clean[1][1], h0[1])
    for i in (0, 2, 3, 4):
        at = 0 if reverse else lengths[i] - 1
        assert torch.equal(clean[1][i], clean[0][i, at])


@pytest.mark.parametrize("backend", [*FAST, "reference"])
@pytest.mark.parametrize("shape", [(0, 5, 2, 3), (4, 0, 2, 3), (4, 5, 0, 3), (4, 5, 2, 0), (0, 0, 0, 0)])
def test_empty_sizes_work(backend, shape):
    batch, time, _, state = shape
    tensors = problem(*shape)
    found = outputs_and_gradients(rnn, tensors, backend=backend)
    assert found[0].shape == (batch, time, state)
    assert found[1].shape == (batch, state)
    if time == 0:
        assert torch.equal(found[1], tensors[4])
    assert all(torch.isfinite(t).all() for t in found)


@pytest.mark.parametrize("backend", [*FAST])
def test_sizes_without_memory_behind_them_cost_nothing(backend):
    x = torch.zeros(()).expand(2**40, 0, 3)
    h, last = rnn(x, torch.zeros(0, 0), torch.zeros(0, 3), backend=backend)
    assert (h.shape, last.shape) == ((2**40, 0, 0), (2**40, 0))
    h, last = rnn(torch.zeros(()).expand(0, 2**40, 3), torch.zeros(2, 2), torch.zeros(2, 3), backend=backend)
    assert (h.shape, last.shape) == ((0, 2**40, 2), (0, 2))


@needs_native
def test_the_op_itself_refuses_what_the_c_side_could_not_read():
    x, w, u, b, h0 = problem(2, 3, 4, 5)
    options = (None, None, "tanh", None, False, "native", False)
    with pytest.raises(
        ShapeError, match=r"shape \(5, 4\).*got a float64 tensor of shape \(4, 5\) on cpu; call holdfast.kernels.rnn"
    ):
        torch.ops.holdfast.rnn_forward(x, w, u.T, b, h0, *options)
    with pytest.raises(DtypeError, match=r"got a float32 tensor"):
        torch.ops.holdfast.rnn_forward(x, w, u, b.float(), h0, *options)
    h, _, y = torch.ops.holdfast.rnn_forward(x, w, u, b, h0, *options)
    settings = ("tanh", None, False, "native", [True] * 6)
    with pytest.raises(ShapeError, match=r"shape \(2, 3, 5\).*got a float64 tensor of shape \(2, 2, 5\)"):
        torch.ops.holdfast.rnn_backward(x, w, u, h0, None, None, h, y, h[:, :2], None, *settings)
    with pytest.raises(ArgumentError, match=r"got values from 1 to 4"):
        torch.ops.holdfast.rnn_backward(x, w, u, h0, None, torch.tensor([1, 4]), h, y, h, None, *settings)


@needs_native
@pytest.mark.parametrize("dt", [None, 0.1])
def test_every_entry_of_the_outputs_is_written(monkeypatch, dt):
    tensors = problem(5, 14, 6, 17, dtype=torch.float32)
    options = {"dt": dt, "lengths": torch.tensor([14, 0, 3, 13, 14]), "backend": "native"}
    clean = outputs_and_gradients(rnn, tensors, **options)
    empty, new_empty = torch.empty, torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(float("nan")))
    # all bits set is a NaN too: the workspace
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(255))
    poisoned = outputs_and_gradients(rnn, tensors, **options)
    for c, p in zip(clean, poisoned, strict=True):
        assert torch.equal(c, p)


@needs_native
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"dt": 0.1, "reverse": True}])
@pytest.mark.parametrize(
    ("batch", "state", "diagonal"), [(13, 33, False), (40, 6, False), (2, 130, False), (13, 33, True)]
)
def test_any_number_of_threads_agrees_with_the_reference_and_is_bit_equal_run_to_run(
    threads, count, options, batch, state, diagonal
):
    tensors = problem(batch, 60, 9, state, diagonal=diagonal)
    options = {**options, "lengths": 60 - torch.arange(batch) % 7 * 9}
    exact = outputs_and_gradients(rnn_reference, tensors, **options)
    threads(count)
    found = outputs_and_gradients(rnn, tensors, backend="native", **options)
    assert_agree(found, exact, FLOAT64)
    for _ in range(3):
        again = outputs_and_gradients(rnn, tensors, backend="native", **options)
        assert all(torch.equal(f, a) for f, a in zip(found, again, strict=True))


@needs_native
@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_activations_are_accurate_to_the_last_digits(activation):
    # with W = 0 and U = 1 a step is the activation of the input itself
    line = torch.linspace(-30, 30, 200_000, dtype=torch.float64)
    tiny = 10.0 ** torch.linspace(-30, 0, 50_000, dtype=torch.float64)
    for dtype, bound in ((torch.float32, 2.5 * 2.0**-23), (torch.float64, 1e-15)):
        x = torch.cat([line, tiny, -tiny, torch.tensor([0.0, torch.inf, -torch.inf])]).to(dtype)
        h, _ = rnn(x[:, None, None], x.new_zeros(1), x.new_ones(1, 1), activation=activation, backend="native")
        # float64 is checked against torch's own, which is good to 1 ulp
        exact = ACTIVATIONS[activation](x.double())
        assert float(((h.flatten().double() - exact) / exact.abs().clamp(min=1e-300)).abs().max()) <= bound
        if activation == "tanh":
            assert torch.equal(h[200_000:250_000], -h[250_000:300_000])


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_goes_through_every_activation(backend, activation):
    x, w, u, b, h0 = problem(2, 4, 3, 18)
    x[0, 1, 0] = float("nan")
    h, last = rnn(x, w, u, b, h0, activation=activation, backend=backend)
    expected, _ = rnn_reference(x, w, u, b, h0, activation=activation)
    assert torch.equal(h.isnan(), expected.isnan())
    assert last[0].isnan().all()
    assert torch.isfinite(last[1]).all()


@pytest.mark.parametrize("backend", [*FAST, "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_have_a_float32_state(backend, dtype):
    x, w, u, b, h0 = problem(3, 20, 5, 17, dtype=torch.float32)
    x, w = x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_()
    h, last = rnn(x, w, u, b, h0, dt=0.1, backend=backend)
    assert (h.dtype, last.dtype) == (dtype, torch.float32)
    expected, expected_last = rnn_reference(x.double(), w.double(), u.double(), b.double(), h0.double(), dt=0.1)
    assert error(last.detach(), expected_last.detach()) <= 1e-6  # float32 sums of 22 terms over 20 steps
    assert error(h.detach(), expected.detach()) <= torch.finfo(dtype).eps  # rounded once, at the end
    gradient, gradient_w = torch.autograd.grad(last.square().sum(), (x, w))
    exact, exact_w = torch.autograd.grad(expected_last.square().sum(), (x, w))
    assert (gradient.dtype, gradient_w.dtype) == (dtype, dtype)
    assert error(gradient, exact.double()) <= 2 * torch.finfo(dtype).eps  # both are rounded to the half dtype
    assert error(gradient_w, exact_w.double()) <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("backend", [*FAST, "reference"])
def test_autocast_changes_nothing(backend):
    tensors = [t.requires_grad_() for t in problem(3, 20, 5, 17, dtype=torch.float32)]
    h, last = rnn(*tensors, backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under, under_last = rnn(*tensors, backend=backend)
    gradients = torch.autograd.grad(under.square().sum(), tensors)
    assert torch.equal(h, under)
    assert torch.equal(last, under_last)
    for g, e in zip(gradients, torch.autograd.grad(h.square().sum(), tensors), strict=True):
        assert torch.equal(g, e)


@compiles
@pytest.mark.parametrize("backend", ["auto", "chunked"])
@pytest.mark.parametrize("dt", [None, "tensor"])
def test_compiles_as_one_graph(backend, dt):
    tensors = problem(4, 11, 5, 17)
    dt = torch.rand(4, 11, dtype=torch.float64) if dt else None
    lengths = torch.tensor([11, 3, 0, 7])

    def function(x, w, u, b, h0, dt, lengths, backend):
        h, last = rnn(x * 1.0, w, u, b, h0, dt=dt, lengths=lengths, backend=backend)
        return h * 1.0, last

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected = outputs_and_gradients(rnn_reference, tensors, dt=dt, lengths=lengths)
    found = outputs_and_gradients(lambda *leaves, dt: compiled(*leaves, dt, lengths, backend), tensors, dt=dt)
    assert_agree(found, expected, FLOAT64)
    if backend == "auto":
        with pytest.raises(ArgumentError, match=r"got values from 3 to 12"):
            compiled(*tensors, dt, torch.tensor([12, 3, 3, 7]), backend)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch.func uses it inside
def test_torch_func_transforms_work():
    x, w, u, _, _ = problem(2, 6, 3, 4)
    many = torch.stack([w, 0.5 * w, -w])

    def loss(w, x, backend):
        return rnn(x, w, u, dt=0.1, backend=backend)[0].square().sum()

    mapped = torch.func.vmap(lambda w: rnn(x, w, u, dt=0.1)[0])(many)
    assert_agree([mapped], [torch.stack([rnn(x, v, u, dt=0.1)[0] for v in many])], FLOAT64)
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None, None))(many, x, "auto")
    expected = torch.stack([torch.func.grad(loss)(v, x, "reference") for v in many])
    assert_agree([found], [expected], FLOAT64)
    jacobian = torch.func.jacrev(lambda x: rnn(x, w, u)[1])(x)
    assert_agree([jacobian], [torch.func.jacrev(lambda x: rnn_reference(x, w, u)[1])(x)], FLOAT64)
    with pytest.raises(BackendError, match="reverse mode"):
        torch.func.jvp(lambda x: rnn(x, w, u)[1], (x,), (x,))


@pytest.mark.parametrize("backend", FAST)
def test_a_second_derivative_is_refused_and_the_reference_has_it(backend):
    tensors = [t.requires_grad_() for t in problem(2, 4, 3, 5)]

    def second(backend):
        (gradient,) = torch.autograd.grad(
            rnn(*tensors, backend=backend)[0].square().sum(), tensors[0], create_graph=True
        )
        return torch.autograd.grad(gradient.sum(), tensors[1])[0]

    with pytest.raises(HoldfastError, match=r"double backward.*backend='reference'"):
        second(backend)
    assert torch.isfinite(second("reference")).all()


@pytest.mark.parametrize(("dt", "factor"), [(None, 1), (0.1, 2)])
def test_a_training_step_saves_inputs_and_states_only(dt, factor):
    x, w, u, b, _ = [t.requires_grad_() for t in problem(4, 30, 5, 16)]
    saved = {}

    def pack(tensor):
        saved[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        h, _ = rnn(x, w, u, b, dt=dt)
    # x and the weights, h, and for Euler steps the activations
    assert sum(saved.values()) == x.numel() + w.numel() + u.numel() + factor * h.numel()


@needs_native
def test_several_python_threads_get_their_own_results():
    problems = [problem(7, 50, 5, 40, seed=seed) for seed in range(4)]
    expected = [outputs_and_gradients(rnn, p) for p in problems]
    found = [None] * 4

    def work(i):
        for _ in range(10):
            found[i] = outputs_and_gradients(rnn, problems[i])

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for f, e in zip(found, expected, strict=True):
        assert_agree(f, e, FLOAT64)


def works():
    tensors = problem(6, 20, 5, 33)
    assert_agree(outputs_and_gradients(rnn, tensors), outputs_and_gradients(rnn_reference, tensors), FLOAT64)


def check_build():
    """Odd sizes of every activation against the reference, for a build that this process has loaded."""
    sizes = [(1, 1, 1, 1), (9, 3, 5, 7), (33, 17, 1, 20), (20, 64, 33, 9), (12, 130, 6, 5)]
    cases = itertools.product(enumerate(ACTIVATIONS), sizes)
    for i, ((seed, activation), (time, state, features, batch)) in enumerate(cases):
        p = problem(batch, time, features, state, diagonal=i % 2 == 1, seed=seed)
        dt, lengths = 0.1 if seed % 2 else None, torch.arange(batch) % (time + 1)
        options = {"activation": activation, "dt": dt, "lengths": lengths}
        exact = outputs_and_gradients(rnn_reference, p, **options)
        assert_agree(outputs_and_gradients(rnn, p, backend="native", **options), exact, FLOAT64)
        single = [v.float() for v in p]
        # float32: sums of at most 136 terms over 33 contracting steps
        assert_agree(outputs_and_gradients(rnn, single, backend="native", **options), exact, 2e-5)
    for activation in ("tanh", "sigmoid"):
        test_activations_are_accurate_to_the_last_digits(activation)


def test_choose_says_what_auto_takes_and_why():
    name, reason = choose("cpu")
    assert name == ("native" if AVAILABLE else "chunked")
    assert reason
    name, reason = choose("mps", function="rnn")  # no Triton there
    assert name == "chunked" and "Triton" in reason
    assert choose("cpu", "reference") == ("reference", "asked for by name")
    with pytest.raises(BackendError, match=r"needs tensors on the CPU, got cuda.*backend='chunked'"):
        choose("cuda", "native")


def test_meta_tensors_give_shapes():
    tensors = [t.to("meta") for t in problem(3, 4, 5, 6)]
    h, last = rnn(*tensors, dt=0.1)
    assert (h.shape, last.shape, h.device.type) == ((3, 4, 6), (3, 6), "meta")


GOOD = dict(zip(("x", "w", "u", "b", "h0"), problem(2, 3, 4, 5, dtype=torch.float32), strict=True))


@pytest.mark.usefixtures("user_mistakes")
@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"x": torch.zeros(2, 3)}, ShapeError, r"expected x of shape \(batch time features\), got \(2, 3\)"),
        ({"x": torch.zeros(2, 3, 4, dtype=torch.int64)}, DtypeError, r"expected x in one of float32.*got a int64"),
        ({"x": [1.0]}, DtypeError, r"expected x to be a torch.Tensor, got list"),
        ({"w": torch.zeros(5, 4)}, ShapeError, r"expected w of shape \(state, state\), or \(state,\).*got \(5, 4\)"),
        ({"w": torch.zeros(())}, ShapeError, r"expected w of shape .*got \(\)"),
        ({"w": GOOD["w"].double()}, DtypeError, r"expected w in one of float32, got a float64"),
        ({"w": None}, DtypeError, r"expected w to be a torch.Tensor, got NoneType"),
        ({"w": GOOD["w"].to_sparse()}, DtypeError, r"expected w to be dense.*to_dense"),
        ({"u": torch.zeros(5, 3)}, ShapeError, r"expected u of shape \(5, 4\).*got \(5, 3\)"),
        ({"b": torch.zeros(4)}, ShapeError, r"expected b of shape \(5,\).*got \(4,\)"),
        ({"h0": torch.zeros(5)}, ShapeError, r"expected h0 of shape \(2, 5\).*got \(5,\)"),
        ({"h0": GOOD["h0"].to("meta")}, ArgumentError, r"expected all tensors on one device.*h0 on meta"),
        ({"dt": torch.zeros(2)}, ShapeError, r"expected dt of shape \(2, 3\).*got \(2,\)"),
        ({"dt": float("inf")}, ArgumentError, r"expected a finite dt, got inf"),
        ({"dt": "0.1"}, DtypeError, r"expected dt to be None, a number or a \(batch, time\) tensor, got str"),
        ({"dt": True}, DtypeError, r"expected dt to be None, a number .*got bool"),
        ({"activation": "softsign"}, UnknownNameError, r"unknown activation of rnn 'softsign'.*Known:.*tanh"),
        ({"activation": None}, UnknownNameError, r"unknown activation of rnn None"),
        ({"lengths": torch.tensor([1, 4])}, ArgumentError, r"expected 0 <= lengths <= 3.*got values from 1 to 4"),
        ({"lengths": torch.tensor([-1, 3])}, ArgumentError, r"got values from -1 to 3"),
        ({"lengths": torch.tensor([1.0, 3.0])}, DtypeError, r"expected lengths in one of int64"),
        ({"lengths": torch.tensor([1, 2, 3])}, ShapeError, r"expected lengths of shape \(2,\)"),
        ({"reverse": 1}, ArgumentError, r"expected reverse to be True or False, got int 1"),
        ({"backend": "cuda"}, UnknownNameError, r"unknown backend of rnn 'cuda'.*Known:"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_with_what_was_expected(changes, kind, message):
    arguments = {**copy.copy(GOOD), **changes}
    with pytest.raises(kind, match=message):
        rnn(**arguments)
