"""The linear scan against its float64 reference: values, gradients, accuracy, and every way of calling it."""

import itertools
import threading

import pytest
import torch

from holdfast.errors import ArgumentError, BackendError, DtypeError, ShapeError, UnknownNameError
from holdfast.kernels._common import library
from holdfast.kernels.scan import choose, scan, scan_reference

native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
BACKENDS = [pytest.param("native", marks=native), "chunked"]
TIMES = (0, 1, 2, 63, 64, 65, 300)
CHANNELS = (1, 3, 16, 17, 130)
WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
# float64 sums of at most 1000 terms whose factors stay below 1: 1000 roundings of 1.1e-16
EXACT = {"rtol": 1e-11, "atol": 1e-11}


@pytest.fixture(autouse=True)
def one_thread(threads):
    """One thread unless a test asks for more: the reference is a loop over small tensors."""
    threads(1)


def random(shape, dtype, generator):
    parts = torch.randn(*shape, 2, dtype=torch.float64, generator=generator)
    return (torch.view_as_complex(parts) if dtype.is_complex else parts[..., 0]).to(dtype)


def factors(shape, dtype, generator, least=0.0):
    """Numbers of modulus between `least` and 1."""
    a = random(shape, dtype, generator)
    size = least + (1 - least) * torch.rand(shape, dtype=torch.float64, generator=generator)
    return (a / a.abs().clamp_min(1e-3) * size).to(dtype)


def problem(rows, time, channels, dtype, *, varies, seed=0, strided=False, lengths=False, per_row=False):
    """Arguments a, b, h0, lengths and gradients of both outputs."""
    g = torch.Generator().manual_seed(seed)
    a = factors((rows if per_row else 1, time if varies else 1, channels), dtype, g)
    if strided:  # every second step of time, channels from a transposed array
        b = random((rows, 2 * time, channels), dtype, g)[:, ::2]
        h0 = random((channels, rows), dtype, g).T
        grad = random((channels, time, rows), dtype, g).permute(2, 1, 0)
    else:
        b, h0, grad = random((rows, time, channels), dtype, g), random((rows, channels), dtype, g), None
    grad = random((rows, time, channels), dtype, g) if grad is None else grad
    ends = torch.randint(0, time + 1, (rows,), generator=g) if lengths else None
    return (a, b, h0), ends, (grad, random((rows, channels), dtype, g))


def outputs_and_gradients(function, inputs, gradients, **options):
    inputs = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    outputs = function(*inputs, **options)
    connected = [pair for pair in zip(outputs, gradients, strict=True) if pair[0].requires_grad]
    ends, seeds = zip(*connected, strict=True)
    grads = torch.autograd.grad(ends, inputs, seeds, allow_unused=True, materialize_grads=True)
    return [*(o.detach() for o in outputs), *grads]


def widened(tensors):
    return [x.to(WIDE.get(x.dtype, x.dtype)) for x in tensors]


SHAPES = list(itertools.product(TIMES, CHANNELS))


@pytest.mark.parametrize(("time", "channels"), SHAPES)
def test_values_and_gradients_agree_with_the_reference(time, channels, poisoned):
    index = SHAPES.index((time, channels))
    # each shape meets a real and a complex case; the other choices go round as the bits of its number
    for dtype in (torch.float64, torch.complex128):
        choice = index * 2 + dtype.is_complex
        varies, reverse, strided, lengths, per_row = (bool(choice >> bit & 1) for bit in (0, 1, 2, 3, 2))
        inputs, ends, gradients = problem(
            3, time, channels, dtype, varies=varies, strided=strided, lengths=lengths, per_row=per_row, seed=index
        )
        options = {"reverse": reverse, "lengths": ends}
        expected = outputs_and_gradients(scan_reference, inputs, gradients, **options)
        for backend in ("native", "chunked") if library.status().available else ("chunked",):
            got = outputs_and_gradients(scan, inputs, gradients, backend=backend, **options)
            for x, y in zip(got, expected, strict=True):
                torch.testing.assert_close(x, y, **EXACT)


@native
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(("rows", "time", "channels"), [(19, 65, 1), (9, 64, 3), (3, 1000, 17), (2, 63, 130)])
def test_float32_errors_are_within_twice_those_of_the_float32_reference(rows, time, channels, dtype, varies):
    inputs, _, gradients = problem(rows, time, channels, dtype, varies=varies)
    exact = outputs_and_gradients(scan_reference, widened(inputs), widened(gradients))
    plain = outputs_and_gradients(scan_reference, inputs, gradients)
    for got, loop, truth in zip(outputs_and_gradients(scan, inputs, gradients), plain, exact, strict=True):
        scale = truth.abs().max()
        # the floor is one rounding of the largest element: a short loop may be exact by luck
        assert (got - truth).abs().max() <= 2 * (loop - truth).abs().max() + 6e-8 * scale


@native
@pytest.mark.parametrize("kind", ["constant b", "real", "complex", "complex in time"])
def test_a_long_float32_scan_with_factors_near_1_does_not_drift(kind):
    time, g = 131072, torch.Generator().manual_seed(1)
    dtype = torch.complex64 if "complex" in kind else torch.float32
    a = factors((1, time if kind == "complex in time" else 1, 2), dtype, g, least=1 - 1e-5)
    a = a.abs() if kind == "constant b" else a  # rounding errors of one sign: a float32 loop is off by 1e-3
    b = torch.full((1, time, 2), 0.1) if kind == "constant b" else random((1, time, 2), dtype, g)
    exact, _ = scan(*widened((a, b)))
    h, last = scan(a, b)
    # float64 states leave the rounding of each output, 6e-8; the goal is 2e-5
    assert (h - exact).abs().max() / exact.abs().max() < 2e-7
    assert (last - exact[:, -1]).abs().max() / exact.abs().max() < 2e-7


def test_the_chunked_scan_stays_finite_where_a_closed_form_does_not():
    h, _ = scan(torch.full((4,), 0.9), torch.randn(2, 1024, 4), backend="chunked")
    assert h.isfinite().all()
    grows, _ = scan(torch.full((1,), 1e30), torch.zeros(1, 1024, 1), backend="chunked")
    assert (grows == 0).all()  # the products overflow, the states do not


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 1, 2), (2, 3, 2), (2, 3, 1), ()])
def test_gradients_pass_gradcheck_for_every_way_to_broadcast_a(backend, dtype, shape):
    g = torch.Generator().manual_seed(0)
    inputs = [factors(shape, dtype, g), random((2, 3, 2), dtype, g), random((2, 2), dtype, g)]
    inputs = [x.requires_grad_() for x in inputs]
    for reverse, lengths in ((False, None), (True, torch.tensor([3, 1]))):
        assert torch.autograd.gradcheck(
            lambda *x, r=reverse, n=lengths: scan(*x, reverse=r, lengths=n, backend=backend), inputs
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_second_backward_is_right(backend, dtype):
    g = torch.Generator().manual_seed(0)
    inputs = [factors((3, 2), dtype, g), random((2, 3, 2), dtype, g), random((2, 2), dtype, g)]
    lengths = torch.tensor([3, 1])
    assert torch.autograd.gradgradcheck(
        lambda *x: scan(*x, lengths=lengths, backend=backend), [x.requires_grad_() for x in inputs]
    )


SPLIT = [
    (1, 70001, 1),
    (5, 3000, 40),
    *(pytest.param(*s, marks=pytest.mark.slow) for s in ((2, 30011, 3), (1, 20000, 17))),
]


@native
@pytest.mark.parametrize(("dtype", "reverse"), [(torch.float64, False), (torch.complex128, True)])
@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(("rows", "time", "channels"), SPLIT)
def test_splitting_over_threads_changes_no_result(rows, time, channels, dtype, varies, reverse, threads):
    # a single row of few channels is split in time, with 2 threads or more in lanes, with 3 or more otherwise
    inputs, ends, gradients = problem(rows, time, channels, dtype, varies=varies, lengths=rows > 1)
    gradients = [x / 100 for x in gradients]
    options = {"reverse": reverse, "lengths": ends}
    expected = outputs_and_gradients(scan, inputs, gradients, backend="chunked", **options)
    for count in (1, 2, 5):
        threads(count)
        first = outputs_and_gradients(scan, inputs, gradients, **options)
        again = outputs_and_gradients(scan, inputs, gradients, **options)
        for got, same, want in zip(first, again, expected, strict=True):
            assert torch.equal(got, same)
            # a's gradient is a sum over all of time, up to 70001 roundings
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9 * float(want.abs().max()))


@native
def test_a_large_result_that_passes_the_caches_by_is_the_same(threads):
    threads(2)
    b = torch.randn(3, 700, 4096)  # 34 MB: streaming stores and large pages
    a = torch.rand(700, 4096)
    h, last = scan(a, b)
    state = torch.zeros(3, 4096, dtype=torch.float64)
    for t in range(700):
        state = a[t] * state + b[:, t]
        assert (h[:, t] - state).abs().max() < 1e-5
    assert torch.equal(last, h[:, -1])


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("batch", [(), (0,), (2,), (2, 0, 3), (2, 1, 3)])
def test_any_batch_dimensions_and_empty_ones(backend, batch):
    for time in (0, 1, 4):
        b, h0 = torch.randn(*batch, time, 3, requires_grad=True), torch.randn(*batch, 3)
        h, last = scan(torch.rand(3), b, h0, backend=backend)
        assert h.shape == b.shape
        assert last.shape == h0.shape
        if time == 0:
            assert torch.equal(last, h0)
        (h.sum() + last.sum()).backward()
        assert b.grad.shape == b.shape


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("subset", [s for n in (1, 2) for s in itertools.combinations(range(3), n)])
def test_any_subset_of_inputs_may_require_gradients(backend, subset):
    inputs, _, (grad_h, grad_last) = problem(2, 9, 3, torch.float64, varies=True)
    for i in subset:
        inputs[i].requires_grad_()
    wanted = [inputs[i] for i in subset]
    for pick, seed in ((0, grad_h), (1, grad_last)):  # one output only: the other has no gradient
        got = torch.autograd.grad(
            scan(*inputs, backend=backend)[pick], wanted, seed, materialize_grads=True, allow_unused=True
        )
        want = torch.autograd.grad(scan_reference(*inputs)[pick], wanted, seed)
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, **EXACT)


def test_a_training_step_saves_the_states_and_its_arguments_only():
    a, b, h0 = torch.rand(50, 3).requires_grad_(), torch.randn(2, 50, 3).requires_grad_(), torch.randn(2, 3)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.data_ptr()) or x, lambda x: x):
        h, _ = scan(a, b, h0)
    assert sorted(saved) == sorted(x.data_ptr() for x in (a, h, h0))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_state_in_float32(backend, dtype):
    a, b = torch.rand(2, 40, 5).to(dtype), torch.randn(2, 40, 5).to(dtype)
    with torch.autocast("cpu"):
        h, last = scan(a, b.requires_grad_(), backend=backend)
    assert (h.dtype, last.dtype) == (dtype, torch.float32)
    exact, exact_last = scan_reference(a.double(), b.double())
    torch.testing.assert_close(last.double(), exact_last, rtol=1e-5, atol=1e-5)  # float32 over 40 steps
    torch.testing.assert_close(h, exact.to(dtype), rtol=1e-2, atol=1e-3)  # one rounding to 8 bits
    again, _ = scan(a, b, last, backend=backend)  # the state goes back in unchanged
    again.sum().backward()
    assert b.grad.dtype == dtype


def test_a_real_factor_may_drive_a_complex_state_and_the_other_way_round():
    a, b = torch.rand(3, dtype=torch.float64), torch.randn(2, 7, 3, dtype=torch.complex128)
    for inputs in ((a, b), (a.to(b.dtype) * 1j, b.real)):
        inputs = [x.detach().clone().requires_grad_() for x in inputs]
        h, last = scan(*inputs)
        want, want_last = scan_reference(*inputs)
        torch.testing.assert_close((h, last), (want, want_last), **EXACT)
        seed = torch.randn_like(h)
        for x, y in zip(torch.autograd.grad(h, inputs, seed), torch.autograd.grad(want, inputs, seed), strict=True):
            torch.testing.assert_close(x, y, **EXACT)


@native
def test_conjugated_views_are_read_as_what_they_mean():
    a, b = torch.rand(3, dtype=torch.complex64).conj(), torch.randn(1, 9, 3, dtype=torch.complex64).conj()
    torch.testing.assert_close(scan(a, b), scan(a.resolve_conj(), b.resolve_conj()))


# torch's own tracer makes an instance of autograd.Function, which torch deprecates
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        pytest.param("native", torch.float32, marks=native),
        pytest.param("native", torch.complex64, marks=native),
        ("chunked", torch.complex64),
    ],
)
def test_compiles_into_one_graph(backend, dtype):
    inputs, ends, gradients = problem(2, 9, 3, dtype, varies=True, lengths=True)
    compiled = torch.compile(scan, fullgraph=True, backend="aot_eager")
    options = {"reverse": True, "lengths": ends, "backend": backend}
    for got, want in zip(
        outputs_and_gradients(compiled, inputs, gradients, **options),
        outputs_and_gradients(scan, inputs, gradients, **options),
        strict=True,
    ):
        torch.testing.assert_close(got, want)
    torch.compiler.reset()


@pytest.mark.parametrize("backend", BACKENDS)
def test_vmap_is_one_more_batch_dimension(backend):
    a, b, h0 = torch.rand(4, 7, 3), torch.randn(2, 7, 3, 4), torch.randn(2, 3)
    mapped = torch.func.vmap(lambda a, b: scan(a, b, h0, backend=backend), in_dims=(0, 3))(a, b)
    for i in range(4):
        for got, want in zip(mapped, scan(a[i], b[..., i], h0, backend=backend), strict=True):
            torch.testing.assert_close(got[i], want)
    each = torch.func.vmap(torch.func.grad(lambda a, b: scan(a, b, h0, backend=backend)[0].sum()), (0, 3))(a, b)
    alone = torch.func.grad(lambda a: scan(a, b[..., 1], h0, backend=backend)[0].sum())(a[1])
    torch.testing.assert_close(each[1], alone)


def works():
    a, b = torch.rand(3000), torch.randn(4, 50, 3000)
    h, last = scan(a, b, backend="native")
    torch.set_num_threads(1)  # torch's own operations hang in the child of a process that has used its threads
    assert torch.equal(h[:, -1], last)
    torch.testing.assert_close(last, scan(a, b, backend="chunked")[1], rtol=1e-5, atol=1e-5)


@native
def test_several_python_threads_may_scan_at_once(threads):
    threads(2)
    failures = []

    def work():
        try:
            works()
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(6)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(timeout=60)
    assert not failures


def check_build():
    """Odd sizes of every dtype against the reference, for a build that this process has loaded."""
    dtypes = (torch.float64, torch.complex128, torch.float32)
    for i, (time, channels) in enumerate(itertools.product((0, 1, 2, 63, 65), CHANNELS)):
        dtype = dtypes[i % 3]  # five channels: each number of them meets each dtype
        inputs, ends, grads = problem(5, time, channels, dtype, varies=i % 2 == 0, lengths=i % 4 < 2, seed=i)
        options = {"reverse": i % 4 == 1, "lengths": ends}
        want = outputs_and_gradients(scan_reference, widened(inputs), widened(grads), **options)
        got = outputs_and_gradients(scan, inputs, grads, backend="native", **options)
        # float32: a rounding of each of 325 summands of a gradient
        tolerance = 1e-11 if dtype != torch.float32 else 2e-5
        for x, y in zip(got, want, strict=True):
            assert not y.numel() or (x - y).abs().max() <= tolerance * (1 + y.abs().max()), (time, channels, dtype)


B = torch.zeros(2, 5, 3)
MISTAKES = [
    ((torch.rand(4), B), {}, ShapeError, r"broadcasts to b's \(2, 5, 3\), got \(4,\)"),
    ((torch.rand(3), torch.rand(3)), {}, ShapeError, r"\(\*batch, time, channels\), got \(3,\)"),
    ((torch.rand(3), B, torch.rand(2, 4)), {}, ShapeError, r"h0 of shape \(2, 3\)"),
    ((torch.ones(3, dtype=torch.int64), B), {}, DtypeError, "a in one of float32.*got a int64 tensor"),
    ((torch.rand(3), [1.0]), {}, DtypeError, "b to be a torch.Tensor, got list"),
    ((torch.rand(3), B.to_sparse()), {}, DtypeError, "to_dense"),
    ((torch.rand(3), B, torch.zeros(2, 3, dtype=torch.float64)), {}, DtypeError, "h0 in torch.float32 or below"),
    ((torch.rand(3, device="meta"), B), {}, ArgumentError, "one device, got a on meta, b on cpu"),
    ((torch.rand(3), B), {"lengths": torch.tensor([5, 6])}, ArgumentError, "0 <= lengths <= 5.*from 5 to 6"),
    ((torch.rand(3), B), {"lengths": torch.tensor([-1, 5])}, ArgumentError, "from -1 to 5"),
    ((torch.rand(3), B), {"lengths": torch.tensor([5])}, ShapeError, r"lengths of shape \(2,\)"),
    ((torch.rand(3), B), {"lengths": torch.tensor([5.0, 1.0])}, DtypeError, "lengths in one of int64"),
    ((torch.rand(3), B), {"backend": "nativ"}, UnknownNameError, "Did you mean 'native'"),
    (
        (torch.full((3,), torch.nan), B),
        {"check_finite": True},
        ArgumentError,
        "got 3 of 3 in a that are NaN or infinite",
    ),
    ((torch.rand(1), torch.zeros(1).expand(2**30, 2**30, 1)), {}, ShapeError, "larger than the address space"),
]


@pytest.mark.parametrize(("arguments", "options", "error", "text"), MISTAKES)
def test_mistakes_are_answered_with_what_was_expected(arguments, options, error, text, user_mistakes):
    with pytest.raises(error, match=text):
        scan(*arguments, **options)


@native
def test_auto_says_what_it_chose_and_why():
    assert choose("cpu") == ("native", "fastest on a CPU")
    assert choose("mps")[0] == "chunked"
    with pytest.raises(BackendError, match=r"needs tensors on the CPU, got cuda; move them with .cpu\(\)"):
        choose("cuda", "native")
