"""The selective scan against its float64 reference: values, gradients, accuracy, resets, and every way of calling it."""

import itertools

import pytest
import torch

from holdfast.errors import ArgumentError, DtypeError, ShapeError, UnknownNameError
from holdfast.kernels._common import library
from holdfast.kernels.selective import selective, selective_heads, selective_reference

native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
BACKENDS = [pytest.param("native", marks=native), "chunked"]
HERE = ("native", "chunked") if library.status().available else ("chunked",)
# float64 sums over at most 130 steps, 17 states and 40 channels of numbers below 1e3
EXACT = {"rtol": 1e-10, "atol": 1e-10}
OPTIONAL = ("D", "z", "dt_bias", "h0")


@pytest.fixture(autouse=True)
def one_thread(threads):
    """One thread unless a test asks for more: the reference is a loop over small tensors."""
    threads(1)


def problem(batch, time, channels, state, dtype=torch.float64, *, groups=None, without=(), seed=0):
    """The arguments by name, and the gradients of both outputs."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=g).to(dtype)

    inner = (state,) if groups is None else (groups, state)
    arguments = {
        "u": normal(batch, time, channels), "dt": normal(batch, time, channels), "A": -normal(channels, state).abs(),
        "B": normal(batch, time, *inner), "C": normal(batch, time, *inner), "D": normal(channels),
        "z": normal(batch, time, channels), "dt_bias": normal(channels), "h0": normal(batch, channels, state),
    }  # fmt: skip
    for name in without:
        del arguments[name]
    return arguments, (normal(batch, time, channels), normal(batch, channels, state))


def outputs_and_gradients(function, arguments, gradients, *, dt_softplus=True, **options):
    arguments = {name: x.detach().requires_grad_() for name, x in arguments.items()}
    outputs = function(**arguments, dt_softplus=dt_softplus, **options)
    ends = [pair for pair in zip(outputs, gradients, strict=True) if pair[0].requires_grad]
    ys, seeds = zip(*ends, strict=True)
    grads = torch.autograd.grad(ys, list(arguments.values()), seeds, allow_unused=True, materialize_grads=True)
    return [*(y.detach() for y in outputs), *grads]


def widened(tensors):
    return {name: x.double() for name, x in tensors.items()}


# tiles of 64 steps, 4 states at a time, vectors of up to 16 channels: ends and remainders of each
SHAPES = [
    (0, 3, 2, None), (1, 1, 1, None), (2, 16, 4, None), (31, 17, 3, 1), (63, 8, 16, 2), (65, 18, 5, 3), (64, 3, 17, None),
    (66, 40, 8, 4), (130, 9, 6, None), (97, 33, 4, 1),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_agree_with_the_reference(shape, threads, poisoned):
    time, channels, state, groups = shape
    index = SHAPES.index(shape)
    for choice in range(4):
        reverse, padded, marked = bool(choice & 1), bool(choice & 2), (choice + index) % 3 > 0
        without = [name for i, name in enumerate(OPTIONAL) if (index + choice) >> i & 1]
        arguments, gradients = problem(3, time, channels, state, groups=groups, without=without, seed=index)
        softplus = choice < 3
        if not softplus:
            arguments["dt"] = arguments["dt"].abs() - arguments.get("dt_bias", torch.zeros(1)).clamp(max=0)
        lengths = torch.tensor([time, time // 2, 0]) if padded else None
        resets = torch.rand(3, time, generator=torch.Generator().manual_seed(choice)) < 0.1 if marked else None
        options = {"reverse": reverse, "lengths": lengths, "resets": resets, "dt_softplus": softplus}
        expected = outputs_and_gradients(selective_reference, arguments, gradients, **options)
        for backend in HERE:
            for count in (1, 2) if backend == "native" else (1,):
                threads(count)
                got = outputs_and_gradients(selective, arguments, gradients, backend=backend, **options)
                for x, y in zip(got, expected, strict=True):
                    torch.testing.assert_close(x, y, **EXACT)


@native
def test_threads_share_rows_and_channels_and_change_no_result(threads):
    for batch, channels, groups in ((1, 80, None), (2, 40, 2), (3, 48, 3)):
        arguments, gradients = problem(batch, 200, channels, 16, groups=groups)
        expected = outputs_and_gradients(selective, arguments, gradients, backend="chunked")
        for count in (2, 3):
            threads(count)
            got = outputs_and_gradients(selective, arguments, gradients)
            again = outputs_and_gradients(selective, arguments, gradients)
            for x, y, z in zip(got, expected, again, strict=True):
                assert torch.equal(x, z)
                # gradients of weights are sums over 600 steps of numbers up to 1e3
                torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9 * float(y.abs().max()))


@native
@pytest.mark.parametrize(("time", "channels", "state"), [(65, 17, 3), (200, 8, 16)])
def test_float32_errors_are_within_twice_those_of_the_float32_reference(time, channels, state):
    arguments, gradients = problem(2, time, channels, state, torch.float32)
    exact = outputs_and_gradients(selective_reference, widened(arguments), [g.double() for g in gradients])
    plain = outputs_and_gradients(selective_reference, arguments, gradients)
    for got, loop, truth in zip(outputs_and_gradients(selective, arguments, gradients), plain, exact, strict=True):
        # the floor is two roundings of the largest element: sums are taken in another order than the loop's
        assert (got - truth).abs().max() <= 2 * (loop - truth).abs().max() + 1.2e-7 * truth.abs().max()


def decays(exponents, dtype):
    """e^x as one step of the kernel gives it: a state of 1, no input."""
    channels = exponents.numel()
    zero, one = torch.zeros(1, 1, channels, dtype=dtype), torch.ones(1, 1, 1, dtype=dtype)
    state = torch.ones(1, channels, 1, dtype=dtype)
    return selective(zero, zero + 1, exponents.unsqueeze(1), one, one, h0=state, backend="native")[1].flatten()


@native
@pytest.mark.parametrize(("dtype", "lowest", "highest"), [(torch.float32, -86, 88), (torch.float64, -700, 709)])
def test_the_exponential_is_right_to_the_rounding_of_its_exponent(dtype, lowest, highest):
    x = torch.cat((torch.linspace(lowest, highest, 5001), torch.logspace(-9, 0, 200) * -1)).to(dtype)
    exact = torch.exp(x.double()) if dtype == torch.float32 else torch.exp(x)
    off = (decays(x, dtype).double() - exact).abs() / exact
    unit = torch.finfo(dtype).eps / 2
    # x log2(e) is rounded twice, which moves the result by 2 |x| roundings; three more for polynomial and product
    assert (off <= unit * (4 + 3 * x.double().abs())).all()
    ends = decays(torch.tensor([-1e30, float("-inf"), -1e3, 1e4, float("nan")], dtype=dtype), dtype)
    assert ends[:3].eq(0).all()
    assert ends[3] == float("inf")
    assert ends[4].isnan()


@native
def test_a_long_float32_run_of_slow_decays_does_not_drift():
    g = torch.Generator().manual_seed(0)
    time = 131072
    u, B, C = (torch.randn(1, time, n, generator=g) for n in (8, 4, 4))
    dt = torch.full_like(u, 1e-4)  # the same at every step: a rounded factor would be wrong the same way 10,000 times
    A = -(torch.rand(8, 4, generator=g) + 0.5)
    y, last = selective(u, dt, A, B, C)
    exact, exact_last = selective(*(x.double() for x in (u, dt, A, B, C)))
    # 1e4 remembered steps, each with two roundings of 6e-8 at random: 1e2 times that; a rounded factor gives 3e-4
    assert (last - exact_last).abs().max() / exact_last.abs().max() < 2e-5
    assert (y - exact).abs().max() / exact.abs().max() < 2e-5


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("reverse", [False, True])
def test_resets_are_the_same_as_running_the_pieces_apart(backend, reverse):
    arguments, gradients = problem(1, 80, 5, 3, without=("h0",))
    ends = (0, 13, 47, 80)
    resets = torch.zeros(1, 80, dtype=torch.bool)
    # the first step of each piece in the order of the run
    resets[0, [end - 1 for end in ends[1:]] if reverse else list(ends[:-1])] = True
    options = {"backend": backend, "reverse": reverse}
    y, _, *grads = outputs_and_gradients(
        selective, arguments, (gradients[0], 0 * gradients[1]), resets=resets, **options
    )
    sums = [torch.zeros_like(x) for x in grads]
    for begin, end in itertools.pairwise(ends):
        piece = {name: x[:, begin:end] if x.ndim == 3 else x for name, x in arguments.items()}
        seeds = gradients[0][:, begin:end], 0 * gradients[1]
        apart, _, *own = outputs_and_gradients(selective, piece, seeds, **options)
        torch.testing.assert_close(y[:, begin:end], apart, **EXACT)
        for total, part in zip(sums, own, strict=True):
            (total[:, begin:end] if part.ndim == 3 else total).add_(part)
    for got, expected in zip(grads, sums, strict=True):
        torch.testing.assert_close(got, expected, **EXACT)


@native
def test_nothing_passes_a_reset_not_even_infinity():
    arguments, gradients = problem(1, 40, 5, 3)
    arguments["h0"].fill_(float("inf"))
    resets = torch.zeros(1, 40, dtype=torch.bool)
    resets[0, 7] = True
    y, last, *_ = outputs_and_gradients(selective, arguments, gradients, resets=resets, backend="native")
    assert not y[:, :7].isfinite().all()
    assert y[:, 7:].isfinite().all()
    assert last.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_pass_gradcheck_once_and_twice(backend):
    arguments, _ = problem(2, 3, 2, 2)
    names, tensors = list(arguments), [x.requires_grad_() for x in arguments.values()]
    options = {"lengths": torch.tensor([3, 2]), "resets": torch.tensor([[False, False, True]] * 2)}

    def function(*given):
        return selective(**dict(zip(names, given, strict=True)), dt_softplus=True, backend=backend, **options)

    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True)


@native
def test_parts_of_a_projection_are_read_where_they_lie():
    arguments, gradients = problem(2, 70, 16, 4)
    wide = torch.cat([arguments[name] for name in ("u", "z", "B", "C")], -1)
    parts = dict(zip(("u", "z", "B", "C"), wide.split((16, 16, 4, 4), -1), strict=True))
    turned = {
        "dt": arguments["dt"].transpose(0, 1).contiguous().transpose(0, 1),
        "A": arguments["A"].t().contiguous().t(),
    }
    expected = outputs_and_gradients(selective, arguments, gradients)
    for x, y in zip(
        outputs_and_gradients(selective, {**arguments, **turned, **parts}, gradients), expected, strict=True
    ):
        assert torch.equal(x, y)


@native
def test_a_training_step_saves_its_arguments_and_one_state_in_64():
    arguments, _ = problem(2, 100, 6, 4)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        selective(**{name: x.requires_grad_() for name, x in arguments.items()}, dt_softplus=True)
    known = {x.data_ptr() for x in arguments.values()}
    assert [tuple(x.shape) for x in saved if x.data_ptr() not in known] == [(2, 2, 4, 6)]


def test_the_torch_version_keeps_a_state_a_block_and_no_discretised_sequence():
    arguments, _ = problem(1, 640, 4, 8)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        selective(**{name: x.requires_grad_() for name, x in arguments.items()}, dt_softplus=True, backend="chunked")
    assert max(saved) <= 640 * 4  # a sequence of inputs; discretized it would be 8 times that


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_compute_in_float32(backend, dtype):
    arguments, _ = problem(2, 40, 5, 4, torch.float32)
    arguments["u"] = arguments["u"].to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, last = selective(**arguments, dt_softplus=True, backend=backend)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)
    exact, exact_last = selective_reference(**widened(arguments), dt_softplus=True)
    torch.testing.assert_close(last.double(), exact_last, rtol=1e-5, atol=1e-5)  # float32 over 40 steps
    torch.testing.assert_close(y, exact.to(dtype), rtol=2e-2, atol=2e-2)  # one rounding to 8 bits


@pytest.mark.parametrize("backend", BACKENDS)
def test_vmap_and_grad_of_torch_func(backend):
    arguments, _ = problem(2, 5, 3, 2)
    several = torch.stack((arguments.pop("A"), arguments["h0"][0].abs() * -1))

    def loss(A):
        return selective(A=A, **arguments, dt_softplus=True, backend=backend)[0].square().sum()

    torch.testing.assert_close(torch.func.vmap(loss)(several)[1], loss(several[1]))
    alone = torch.func.grad(loss)(several[1])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(several)[1], alone)
    again = several[1].clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(loss(again), again)[0], alone)


@native
@pytest.mark.parametrize("pick", [0, 1])
@pytest.mark.parametrize("wanted", [("u",), ("B",), ("dt", "z"), ("A", "h0"), ("D",)])
def test_any_subset_of_inputs_may_require_gradients(pick, wanted):
    arguments, gradients = problem(2, 7, 3, 4)
    inputs = [arguments[name].requires_grad_() for name in wanted]
    got, want = (f(**arguments, dt_softplus=True)[pick] for f in (selective, selective_reference))
    if not want.requires_grad:  # the final state knows nothing of D
        return
    options = {"allow_unused": True, "materialize_grads": True}
    for x, y in zip(*(torch.autograd.grad(f, inputs, gradients[pick], **options) for f in (got, want)), strict=True):
        torch.testing.assert_close(x, y, **EXACT)


def works():
    """A call with gradients; for processes and threads of other tests."""
    arguments, gradients = problem(4, 300, 40, 8, torch.float32)
    assert all(x.isfinite().all() for x in outputs_and_gradients(selective, arguments, gradients, backend="native"))


def check_build():
    """Odd sizes against the reference, for a build that this process has loaded."""
    for i, (time, channels, state, groups) in enumerate(SHAPES[1:6]):
        arguments, gradients = problem(3, time, channels, state, groups=groups, seed=i)
        lengths = torch.tensor([time, time // 2, 0]) if i % 2 else None
        options = {"reverse": i > 2, "lengths": lengths, "resets": torch.arange(3 * time).view(3, time) % 11 == 3}
        want = outputs_and_gradients(selective_reference, arguments, gradients, **options)
        got = outputs_and_gradients(selective, arguments, gradients, backend="native", **options)
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, **EXACT)


GOOD = problem(2, 5, 6, 3)[0] | {"dt": torch.ones(2, 5, 6).double(), "dt_bias": torch.ones(6).double()}
MISTAKES = [
    ({"u": torch.rand(5, 6)}, ShapeError, r"u of shape \(batch time channels\), got \(5, 6\)"),
    ({"u": torch.zeros(2, 5, 6, dtype=torch.int64)}, DtypeError, "u in one of float32"),
    ({"dt": torch.rand(2, 5, 1)}, ShapeError, r"dt of shape \(2, 5, 6\) \(u's\), got \(2, 5, 1\)"),
    ({"dt": -2 * torch.ones(2, 5, 6)}, ArgumentError, r"dt \+ dt_bias >= 0, got a smallest of -1.0; pass dt_softplus"),
    ({"A": torch.rand(5, 3)}, ShapeError, r"A of shape \(6, 3\)"),
    ({"A": torch.rand(6, 0)}, ShapeError, "at least one state"),
    ({"B": torch.rand(2, 5, 4)}, ShapeError, r"B of shape \(2, 5, 3\)"),
    ({"B": torch.rand(2, 5, 4, 3)}, ShapeError, "groups that divide 6 channels, got 4"),
    ({"B": torch.rand(2, 3)}, ShapeError, r"or \(batch, time, groups, state\)"),
    ({"C": torch.rand(2, 5, 1, 3)}, ShapeError, r"C of shape \(2, 5, 3\) \(B's\)"),
    ({"C": None}, DtypeError, "C to be a torch.Tensor, got NoneType"),
    ({"D": torch.rand(3)}, ShapeError, r"D of shape \(6,\)"),
    ({"z": torch.rand(2, 5)}, ShapeError, r"z of shape \(2, 5, 6\)"),
    ({"h0": torch.rand(2, 3, 6)}, ShapeError, r"h0 of shape \(2, 6, 3\)"),
    ({"h0": "zero"}, DtypeError, "h0 to be a torch.Tensor, got str 'zero'"),
    ({"A": torch.rand(6, 3, device="meta")}, ArgumentError, "one device.*A on meta"),
    ({"lengths": torch.tensor([1, 9])}, ArgumentError, "0 <= lengths <= 5"),
    ({"resets": torch.zeros(2, 4, dtype=torch.bool)}, ShapeError, r"resets of shape \(2, 5\)"),
    ({"resets": torch.zeros(2, 5)}, DtypeError, "resets in one of bool"),
    ({"reverse": 1}, ArgumentError, "reverse to be True or False"),
    ({"backend": "cuda"}, UnknownNameError, "unknown backend of selective 'cuda'"),
]


@pytest.mark.parametrize(("changes", "error", "text"), MISTAKES)
def test_mistakes_are_answered_with_what_was_expected(changes, error, text, user_mistakes):
    with pytest.raises(error, match=text):
        selective(**{**GOOD, **changes})


@pytest.mark.parametrize(("time", "groups"), [(0, 1), (1, 2), (64, 1), (150, 2)])
def test_heads_with_one_rate_each_are_the_scan_of_their_channels(time, groups):
    heads, width, state = 4, 3, 5
    g = torch.Generator().manual_seed(time)
    shapes = [(2, time, heads, width), (2, time, heads), (heads,), (2, time, groups, state), (2, time, groups, state)]
    u, dt, A, B, C, D, bias, h0 = (
        torch.randn(s, dtype=torch.float64, generator=g).requires_grad_()
        for s in (*shapes, (heads,), (heads,), (2, heads, width, state))
    )
    lengths = torch.tensor([time, time // 2])

    def written_out():
        channels = [x.repeat_interleave(width, -1) for x in (dt, D, bias)]
        rates = -A.exp().repeat_interleave(width).unsqueeze(-1).expand(-1, state)
        y, last = selective_reference(
            u.flatten(2), channels[0], rates, B, C, channels[1], dt_bias=channels[2], dt_softplus=True,
            h0=h0.flatten(1, 2), lengths=lengths,
        )  # fmt: skip
        return y.view(u.shape), last.view(h0.shape)

    inputs = (u, dt, A, B, C, D, bias, h0)
    got = selective_heads(u, dt, -A.exp(), B, C, D, dt_bias=bias, dt_softplus=True, h0=h0, lengths=lengths)
    results = []
    for outputs in (got, written_out()):
        total = sum((y * torch.sin(torch.arange(y.numel()).view(y.shape))).sum() for y in outputs)
        grads = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
        results.append([*(y.detach() for y in outputs), *grads])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, **EXACT)


def test_heads_refuse_shapes_that_do_not_fit_and_clip_step_sizes():
    u, dt, B = torch.ones(1, 3, 4, 2), torch.ones(1, 3, 4), torch.ones(1, 3, 1, 5)
    with pytest.raises(ShapeError, match="groups that divide 4 heads"):
        selective_heads(u, dt, -torch.ones(4), torch.ones(1, 3, 3, 5), B)
    with pytest.raises(ShapeError, match="expected A of shape"):
        selective_heads(u, dt, -torch.ones(5), B, B)
    y, _ = selective_heads(u, 100 * dt, -torch.ones(4), B, B, dt_limit=(0.0, 1.0))
    torch.testing.assert_close(y, selective_heads(u, dt, -torch.ones(4), B, B)[0])
