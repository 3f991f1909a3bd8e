"""The linear recurrent unit against its float64 reference: values, gradients, accuracy, and every way of calling it."""

import itertools
import threading

import pytest
import torch

from holdfast.errors import ArgumentError, DtypeError, ShapeError, UnknownNameError
from holdfast.kernels._common import library
from holdfast.kernels.lru import lru, lru_reference
from holdfast.kernels.lru._native import Sizes

native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
BACKENDS = [pytest.param("native", marks=native), "chunked"]
# float64 sums of at most 1000 steps and 260 states: 1000 roundings of 1.1e-16 of numbers below 1e3
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(autouse=True)
def one_thread(threads):
    """One thread unless a test asks for more: the reference is a loop over small tensors."""
    threads(1)


def problem(batch, time, states, dtype=torch.float64, *, inputs=3, planar=True, skip=True, seed=0, least=0.0):
    """The arguments u, lam_re, lam_im, b, c, d, h0 and the gradients of both outputs."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=g).to(dtype)

    size = least + (1 - least) * torch.rand(states, dtype=torch.float64, generator=g)
    angle = 3 * torch.rand(states, dtype=torch.float64, generator=g)
    width, outputs = (2 if planar else 1) * states, inputs if skip else inputs + 2
    arguments = (
        normal(batch, time, inputs),
        (size * angle.cos()).to(dtype),
        (size * angle.sin()).to(dtype) if planar else None,
        normal(width, inputs) / inputs**0.5,
        normal(outputs, width) / max(states, 1) ** 0.5,
        normal(outputs) if skip else None,
        normal(batch, width),
    )
    return arguments, (normal(batch, time, outputs), normal(batch, width))


def outputs_and_gradients(function, arguments, gradients, **options):
    arguments = [None if x is None else x.detach().requires_grad_() for x in arguments]
    outputs = function(*arguments, **options)
    inputs = [x for x in arguments if x is not None]
    connected = [pair for pair in zip(outputs, gradients, strict=True) if pair[0].requires_grad]
    ends, seeds = zip(*connected, strict=True)
    grads = torch.autograd.grad(ends, inputs, seeds, allow_unused=True, materialize_grads=True)
    return [*(o.detach() for o in outputs), *grads]


def widened(tensors):
    return [None if x is None else x.double() for x in tensors]


SHAPES = list(itertools.product((0, 1, 2, 63, 64, 65, 300), (1, 3, 16, 17, 130)))


@pytest.mark.parametrize(("time", "states"), SHAPES)
def test_values_and_gradients_agree_with_the_reference(time, states, poisoned):
    index = SHAPES.index((time, states))
    for planar in (True, False):
        choice = 2 * index + planar
        skip, reverse, with_lengths, strided = (bool(choice >> bit & 1) for bit in (0, 1, 2, 3))
        arguments, gradients = problem(3, time, states, planar=planar, skip=skip, seed=index)
        if strided:  # time before batch in memory, as a sequence-first model gives it
            arguments = (arguments[0].transpose(0, 1).contiguous().transpose(0, 1), *arguments[1:])
            gradients = (gradients[0].permute(2, 0, 1).contiguous().permute(1, 2, 0), gradients[1])
        lengths = torch.tensor([time, time // 2, 0]) if with_lengths else None
        options = {"reverse": reverse, "lengths": lengths}
        expected = outputs_and_gradients(lru_reference, arguments, gradients, **options)
        for backend in ("native", "chunked") if library.status().available else ("chunked",):
            got = outputs_and_gradients(lru, arguments, gradients, backend=backend, **options)
            for x, y in zip(got, expected, strict=True):
                torch.testing.assert_close(x, y, **EXACT)


# tiles of 96 steps, products in blocks of 12 (or 6) rows and 32 columns: ends of each, and from three tiles on rows cut
# between threads, into three and four segments
TILED = list(itertools.product((1, 11, 96, 97, 200, 300, 700), ((16, 8), (48, 16), (32, 40))))


@native
@pytest.mark.parametrize(("time", "sizes"), TILED)
def test_the_layer_by_tiles_agrees_with_the_reference(time, sizes, threads, poisoned):
    inputs, states = sizes
    for choice in range(8):
        planar, reverse, padded = (bool(choice >> bit & 1) for bit in range(3))
        states_here = states if planar else 2 * states
        batch = (1, 3, 4)[(choice + TILED.index((time, sizes))) % 3]
        arguments, gradients = problem(batch, time, states_here, inputs=inputs, planar=planar, seed=choice)
        assert Sizes(1, 1, inputs, 2 * states, inputs).fit_tiles()
        lengths = torch.tensor([time, time // 2, 0, 1])[:batch] if padded else None
        options = {"reverse": reverse, "lengths": lengths}
        expected = outputs_and_gradients(lru_reference, arguments, gradients, **options)
        for count in (1, 3):
            threads(count)
            got = outputs_and_gradients(lru, arguments, gradients, backend="native", **options)
            again = outputs_and_gradients(lru, arguments, gradients, backend="native", **options)
            for x, y, z in zip(got, expected, again, strict=True):
                torch.testing.assert_close(x, y, **EXACT)
                assert torch.equal(x, z)  # bit-equal run to run


@native
@pytest.mark.parametrize(
    ("batch", "time", "states", "inputs"), [(9, 65, 3, 5), (3, 1000, 17, 5), (2, 64, 130, 5), (1, 1000, 16, 32)]
)
def test_float32_errors_are_within_twice_those_of_the_float32_reference(batch, time, states, inputs):
    arguments, gradients = problem(batch, time, states, torch.float32, inputs=inputs)
    exact = outputs_and_gradients(lru_reference, widened(arguments), widened(gradients))
    plain = outputs_and_gradients(lru_reference, arguments, gradients)
    for got, loop, truth in zip(outputs_and_gradients(lru, arguments, gradients), plain, exact, strict=True):
        # the floor is two roundings of the largest element: matrix products sum in another order than the loop
        assert (got - truth).abs().max() <= 2 * (loop - truth).abs().max() + 1.2e-7 * truth.abs().max()


@native
@pytest.mark.parametrize("inputs", [3, 16])
def test_a_long_float32_run_with_eigenvalues_near_1_does_not_drift(inputs):
    arguments, _ = problem(1, 131072, 8, torch.float32, inputs=inputs, least=1 - 1e-5, skip=inputs == 16)
    y, last = lru(*arguments)
    exact, exact_last = lru(*widened(arguments))
    # the states round once, but their float32 inputs u @ b were rounded too, 131072 errors of 3e-8 at random
    assert (last - exact_last).abs().max() / exact_last.abs().max() < 1e-6
    assert (y - exact).abs().max() / exact.abs().max() < 1e-6


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("planar", [True, False])
def test_gradients_pass_gradcheck(backend, planar):
    arguments, _ = problem(2, 3, 2, planar=planar, inputs=2)
    tensors = [x.requires_grad_() for x in arguments if x is not None]

    def function(u, lam_re, *rest, **options):
        lam_im, *rest = rest if planar else (None, *rest)
        return lru(u, lam_re, lam_im, *rest, backend=backend, **options)

    assert torch.autograd.gradcheck(function, tensors)
    lengths = torch.tensor([3, 1])
    assert torch.autograd.gradcheck(lambda *x: function(*x, reverse=True, lengths=lengths), tensors)
    if backend != "reference":
        assert torch.autograd.gradgradcheck(lambda *x: function(*x, lengths=lengths), tensors)


@native
@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize(("batch", "time", "states"), [(1, 40000, 2), (1, 8000, 16), (3, 3000, 20)])
def test_splitting_over_threads_changes_no_result(batch, time, states, planar, threads):
    arguments, gradients = problem(batch, time, states, planar=planar)
    expected = outputs_and_gradients(lru, arguments, gradients, backend="chunked")
    for count in (1, 2, 5):
        threads(count)
        first = outputs_and_gradients(lru, arguments, gradients)
        again = outputs_and_gradients(lru, arguments, gradients)
        for got, same, want in zip(first, again, expected, strict=True):
            assert torch.equal(got, same)
            # gradients of weights are sums over all of time, up to 40000 roundings
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9 * float(want.abs().max()))


@native
@pytest.mark.parametrize("pick", [0, 1])
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (4,), (5,), (6,), (0, 4), (1, 6)])
def test_any_subset_of_inputs_may_require_gradients(pick, wanted):
    arguments, gradients = problem(2, 7, 3)
    for i in wanted:
        arguments[i].requires_grad_()
    inputs = [arguments[i] for i in wanted]
    got, want = lru(*arguments)[pick], lru_reference(*arguments)[pick]
    if not want.requires_grad:  # the final state knows nothing of c and d
        assert all(i in (4, 5) for i in wanted)
        return
    options = {"allow_unused": True, "materialize_grads": True}
    for x, y in zip(
        torch.autograd.grad(got, inputs, gradients[pick], **options),
        torch.autograd.grad(want, inputs, gradients[pick], **options),
        strict=True,
    ):
        torch.testing.assert_close(x, y, **EXACT)


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_empty_batches_and_sequences(backend):
    for batch, time in ((0, 5), (3, 0), (0, 0)):
        arguments, gradients = problem(batch, time, 2)
        y, last, *grads = outputs_and_gradients(lru, arguments, gradients, backend=backend)
        assert y.shape == (batch, time, 3)
        if time == 0:
            assert torch.equal(last, arguments[6])
        assert all((grads[i] == 0).all() for i in (3, 4))


def test_a_training_step_saves_the_states_and_its_arguments_only():
    arguments, _ = problem(2, 50, 3)
    for x in arguments:
        x.requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        lru(*arguments)
    known = {x.data_ptr() for x in arguments}
    assert [tuple(x.shape) for x in saved if x.data_ptr() not in known] == [(2, 50, 6)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_compute_in_float32(backend, dtype):
    (u, *weights), _ = problem(2, 40, 5, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, last = lru(u.to(dtype).requires_grad_(), *weights, backend=backend)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)
    exact, exact_last = lru_reference(*widened((u.to(dtype), *weights)))
    torch.testing.assert_close(last.double(), exact_last, rtol=1e-5, atol=1e-5)  # float32 over 40 steps
    torch.testing.assert_close(y, exact.to(dtype), rtol=2e-2, atol=1e-2)  # one rounding to 8 bits


# torch's own tracer makes an instance of autograd.Function, which torch deprecates
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiles_into_one_graph(backend):
    arguments, gradients = problem(2, 9, 3)
    compiled = torch.compile(lru, fullgraph=True, backend="aot_eager")
    for got, want in zip(
        outputs_and_gradients(compiled, arguments, gradients, backend=backend),
        outputs_and_gradients(lru, arguments, gradients, backend=backend),
        strict=True,
    ):
        torch.testing.assert_close(got, want)
    torch.compiler.reset()


@pytest.mark.parametrize("backend", BACKENDS)
def test_vmap_over_inputs_and_over_weights(backend):
    (u, *weights), _ = problem(6, 5, 3)
    mapped = torch.func.vmap(lambda u: lru(u, *weights[:5], backend=backend)[0])(u.unflatten(0, (2, 3)))
    torch.testing.assert_close(mapped.flatten(0, 1), lru(u, *weights[:5], backend=backend)[0])
    several = torch.stack((weights[0], weights[0] / 2))
    mapped = torch.func.vmap(lambda lam: lru(u, lam, *weights[1:], backend=backend)[1])(several)
    torch.testing.assert_close(mapped[1], lru(u, several[1], *weights[1:], backend=backend)[1])
    grads = torch.func.vmap(torch.func.grad(lambda lam: lru(u, lam, *weights[1:], backend=backend)[0].sum()))(several)
    alone = torch.func.grad(lambda lam: lru(u, lam, *weights[1:], backend=backend)[0].sum())(several[1])
    torch.testing.assert_close(grads[1], alone)


def works():
    arguments, gradients = problem(4, 300, 40, torch.float32)
    first = outputs_and_gradients(lru, arguments, gradients, backend="native")
    assert all(x.isfinite().all() for x in first)


@native
def test_several_python_threads_may_run_at_once(threads):
    threads(2)
    failures = []

    def work():
        try:
            works()
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(timeout=60)
    assert not failures


def check_build():
    """Odd sizes against the reference, for a build that this process has loaded."""
    sizes = [(0, 3), (1, 1), (2, 16), (63, 3), (65, 17), (64, 130), (65, 1)]
    shapes = [*((time, states, 3) for time, states in sizes), (99, 16, 32), (200, 48, 16)]
    for i, (time, states, inputs) in enumerate(shapes):
        for planar in (True, False):
            arguments, gradients = problem(5, time, states, planar=planar, inputs=inputs, seed=i)
            lengths = torch.tensor([0, 1, 2, 3, 4]).clamp(max=time) if i > 3 else None
            options = {"reverse": i % 2 == 1, "lengths": lengths}
            want = outputs_and_gradients(lru_reference, arguments, gradients, **options)
            got = outputs_and_gradients(lru, arguments, gradients, backend="native", **options)
            for x, y in zip(got, want, strict=True):
                torch.testing.assert_close(x, y, **EXACT)


GOOD = problem(2, 5, 3)[0]
MISTAKES = [
    ({0: torch.rand(5, 3)}, {}, ShapeError, r"u of shape \(batch time inputs\), got \(5, 3\)"),
    ({0: torch.zeros(2, 5, 3, dtype=torch.int64)}, {}, DtypeError, "u in one of float32"),
    ({1: torch.rand(3, 1)}, {}, ShapeError, r"lam_re of shape \(states\)"),
    ({2: torch.rand(4)}, {}, ShapeError, r"lam_im of shape \(3,\) \(lam_re's\), got \(4,\)"),
    ({2: None}, {}, ShapeError, r"b of shape \(3, 3\) \(N = 3 states, real without lam_im, by u's features\), got"),
    ({3: torch.rand(3, 3)}, {}, ShapeError, "2N numbers for N = 3 complex states, real parts first"),
    ({4: torch.rand(3, 3)}, {}, ShapeError, r"c of shape \(outputs, 6\)"),
    ({4: torch.rand(4, 6), 5: torch.rand(4)}, {}, ShapeError, "outputs must equal inputs, got 4.*3 inputs"),
    ({5: torch.rand(2)}, {}, ShapeError, r"d of shape \(3,\)"),
    ({6: torch.rand(2, 3)}, {}, ShapeError, r"h0 of shape \(2, 6\)"),
    ({6: "zero"}, {}, DtypeError, "h0 to be a torch.Tensor, got str 'zero'"),
    ({3: torch.rand(6, 3, device="meta")}, {}, ArgumentError, "one device.*b on meta"),
    ({}, {"lengths": torch.tensor([1, 9])}, ArgumentError, "0 <= lengths <= 5"),
    ({}, {"backend": "cuda"}, UnknownNameError, "unknown backend of lru 'cuda'"),
]


@pytest.mark.parametrize(("changes", "options", "error", "text"), MISTAKES)
def test_mistakes_are_answered_with_what_was_expected(changes, options, error, text, user_mistakes):
    arguments = [changes.get(i, x) for i, x in enumerate(GOOD)]
    with pytest.raises(error, match=text):
        lru(*arguments, **options)
