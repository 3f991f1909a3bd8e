"""The fused S4D layer against its float64 reference: values, gradients, accuracy, and every way of calling it."""

import itertools
import threading

import pytest
import torch

from holdfast.errors import ArgumentError, BackendError, DtypeError, ShapeError, UnknownNameError
from holdfast.kernels._common import library
from holdfast.kernels.s4d import choose, s4d, s4d_reference
from holdfast.kernels.s4d._reference import discretize, phi

native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
# (backend, algorithm); what is there runs
WAYS = [
    pytest.param({"backend": "native", "algorithm": "scan"}, id="scan", marks=native),
    pytest.param({"backend": "native", "algorithm": "fft"}, id="fft", marks=native),
    pytest.param({"backend": "chunked"}, id="chunked"),
]
NATIVE_WAYS = WAYS[:2]
TIMES = (1, 2, 63, 64, 65, 300)
FEATURES = (1, 3, 16, 17, 130)
# float64 sums of 1000 terms in different orders, 1000 roundings of 1.1e-16, times the growth of ill-conditioned
# gradients of dt (measured: 2e-13)
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def problem(
    batch, time, features, modes, *, pairs=True, initial=True, skip=True, seed=0, dtype=torch.float64, slow=1.0
):
    """Arguments of s4d in their order, and gradients of both outputs. `slow` divides the decay rates."""
    g = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    dt = torch.exp(torch.rand(features, generator=g, dtype=torch.float64) * 3 - 4)
    lam_re = -torch.rand(features, modes, generator=g, dtype=torch.float64) / slow
    lam_im, c_im = (3 * random(features, modes), random(features, modes)) if pairs else (None, None)
    state = (batch, features, modes, 2) if pairs else (batch, features, modes)
    inputs = [
        random(batch, time, features), dt, lam_re, lam_im, random(features, modes), c_im,
        random(features) if skip else None, random(*state) if initial else None,
    ]  # fmt: skip
    gradients = [random(batch, time, features), random(*state)]
    return [None if x is None else x.to(dtype) for x in inputs], [x.to(dtype) for x in gradients]


def strided(x):
    """The same values with gaps between them and dimensions in reverse order in memory."""
    if x is None:
        return None
    room = x.new_empty([2 * n for n in reversed(x.shape)])
    view = room[tuple(slice(None, None, 2) for _ in x.shape)].permute(*reversed(range(x.ndim)))
    view.copy_(x)
    return view


def outputs_and_gradients(function, inputs, gradients, **options):
    inputs = [None if x is None else x.detach().requires_grad_() for x in inputs]
    outputs = [o for o in function(*inputs, **options) if o is not None]
    wanted = [x for x in inputs if x is not None]
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=False) if o.requires_grad]
    ends, seeds = zip(*pairs, strict=True)
    grads = torch.autograd.grad(ends, wanted, seeds, allow_unused=True, materialize_grads=True)
    return [*(o.detach() for o in outputs), *grads]


def assert_equal(got, expected, **tolerance):
    assert len(got) == len(expected)
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, **tolerance)


def relative_error(x, truth):
    return ((x.double() - truth).abs().max() / truth.abs().max()).item()


# every shape, with its choices: each choice meets short and long, narrow and wide
CHOICES = ("pairs", "reverse", "bilinear", "lengths", "initial", "strided")
SHAPES = list(itertools.product(TIMES, FEATURES))


def choices(index):
    """Some of CHOICES for the shape of this number, so that 30 shapes meet 30 different sets of choices."""
    return {name for k, name in enumerate(CHOICES) if 5 * index // 2**k % 2}


@pytest.mark.parametrize(("time", "features"), SHAPES)
def test_values_and_gradients_agree_with_the_reference(time, features, poisoned):
    index = SHAPES.index((time, features))
    chosen = choices(index)
    pairs, initial, apart = ("pairs" in chosen), ("initial" in chosen), ("strided" in chosen)
    # 19 rows fill vectors of one feature unevenly
    batch, modes = (19 if features == 1 and time < 300 else 3), (1, 2, 3, 5, 7)[index % 5]
    inputs, gradients = problem(batch, time, features, modes, pairs=pairs, initial=initial, skip=not apart, seed=index)
    if apart:
        inputs, gradients = [strided(x) for x in inputs], [strided(x) for x in gradients]
    g = torch.Generator().manual_seed(index)
    options = {
        "discretization": "bilinear" if "bilinear" in chosen else "zoh", "reverse": "reverse" in chosen,
        "lengths": torch.randint(0, time + 1, (batch,), generator=g) if "lengths" in chosen else None,
    }  # fmt: skip
    expected = outputs_and_gradients(s4d_reference, inputs, gradients, **options)
    ways = [{"backend": "chunked"}]
    if library.status().available:
        ways += [{"algorithm": "scan"}, *([] if initial else [{"algorithm": "fft"}])]
    for way in ways:
        assert_equal(outputs_and_gradients(s4d, inputs, gradients, **options, **way), expected, **EXACT)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_gradients_of_the_output_alone_agree_with_the_reference(way, pairs, reverse, poisoned):
    inputs, (grad, _) = problem(3, 140, 17, 3, pairs=pairs, initial=False)
    expected = outputs_and_gradients(lambda *a: s4d_reference(*a, reverse=reverse)[:1], inputs, [grad])
    for state in (True, False):
        got = outputs_and_gradients(
            lambda *a, state=state: s4d(*a, reverse=reverse, return_state=state, **way)[:1], inputs, [grad]
        )
        assert_equal(got, expected, **EXACT)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("time", [0, 5])
@pytest.mark.parametrize("batch", [0, 2])
def test_empty_batches_and_sequences_keep_the_state(way, time, batch, poisoned):
    initial = way.get("algorithm") != "fft"
    inputs, gradients = problem(batch, time, 3, 2, initial=initial)
    y, last = s4d(*inputs, **way)
    assert y.shape == (batch, time, 3)
    if time == 0:
        torch.testing.assert_close(last, inputs[7] if initial else torch.zeros(batch, 3, 2, 2, dtype=torch.float64))
    for x in outputs_and_gradients(s4d, inputs, gradients, **way):
        assert x.isfinite().all()


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_no_steps_keep_their_state(way, poisoned):
    initial = way.get("algorithm") != "fft"
    for features in (2, 20):
        inputs, _ = problem(3, 9, features, 2, initial=initial)
        y, last = s4d(*inputs, lengths=torch.tensor([0, 9, 4]), **way)
        kept = inputs[7][0] if initial else torch.zeros(features, 2, 2, dtype=torch.float64)
        torch.testing.assert_close(last[0], kept)
        assert (y[0] == 0).all()
        assert (y[2, 4:] == 0).all()


@native
@pytest.mark.parametrize("algorithm", ["scan", "fft"])
@pytest.mark.parametrize("kind", ["S4D", "slow", "fast", "real"])
@pytest.mark.parametrize(("batch", "time", "features"), [(19, 65, 1), (5, 64, 3), (2, 300, 17), (2, 63, 130)])
def test_float32_errors_are_within_twice_those_of_the_float32_reference(batch, time, features, kind, algorithm):
    inputs, gradients = problem(batch, time, features, 4, pairs=kind != "real", initial=algorithm == "scan")
    inputs[2] *= {"S4D": 1, "slow": 1e-3, "fast": 50, "real": 1}[kind]
    inputs, gradients = ([None if x is None else x.float() for x in part] for part in (inputs, gradients))
    if algorithm == "fft":
        gradients[1] *= 0
    wide, wide_gradients = ([None if x is None else x.double() for x in part] for part in (inputs, gradients))
    exact = outputs_and_gradients(s4d_reference, wide, wide_gradients)
    plain = outputs_and_gradients(s4d_reference, inputs, gradients)
    state = algorithm == "scan"  # a gradient of the state would bring the scan in
    got = outputs_and_gradients(s4d, inputs, gradients, algorithm=algorithm, return_state=state)
    if not state:
        del exact[1], plain[1]
    for x, loop, truth in zip(got, plain, exact, strict=True):
        # the loop's error can be small by luck: the floor is 4 roundings of the largest element, which a transform
        # spreads over all, and for gradients of weights those of a sum of batch * time terms of both signs
        terms = 16 if x.numel() == inputs[0].numel() else max(16, batch * time)
        assert relative_error(x, truth) <= 2 * relative_error(loop, truth) + 6e-8 * terms**0.5


@native
@pytest.mark.parametrize("algorithm", ["scan", "fft"])
@pytest.mark.parametrize("drive", ["noise", "constant"])
def test_modes_near_the_unit_circle_do_not_drift_over_131072_steps(algorithm, drive):
    inputs, gradients = problem(1, 131072, 2, 2, initial=False, dtype=torch.float32)
    inputs[1][:] = torch.tensor([1e-3, 0.7])
    inputs[2][:] = torch.tensor([[-1e-3, -1e-2], [-1e-6, -1e-5]])  # |Abar| = 1 - 1e-6 .. 1 - 1e-5
    if drive == "constant":  # rounding errors of one sign: the float32 loop is off by 2e-3
        inputs[0][:] = 0.1
        inputs[3][:, 0] = 0
    wide = [None if x is None else x.double() for x in inputs]
    exact = outputs_and_gradients(s4d, wide, [gradients[0].double()], algorithm="scan", return_state=False)
    got = outputs_and_gradients(s4d, inputs, gradients[:1], algorithm=algorithm, return_state=False)
    names = ["y", "u", "dt", "lam_re", "lam_im", "c_re", "c_im", "d"]
    for name, x, truth in zip(names, got, exact, strict=True):
        # the goal is 2e-5: states are carried in double between tiles, where the rounding of 128 steps is left.
        # Transforms round the gradient of the impulse response relative to its largest entry; under a constant drive
        # that of c_im is a sum that cancels to 1e-5 of c_re's, and so does dt's (four seeds: 1e-6 to 3e-5)
        cancels = algorithm == "fft" and drive == "constant" and name in ("dt", "c_im")
        assert relative_error(x, truth) < (1e-4 if cancels else 2e-5), name
    _, last = s4d(*inputs, algorithm=algorithm)
    assert relative_error(last, s4d(*wide)[1]) < 2e-5


@pytest.mark.parametrize("way", [*WAYS, {"backend": "reference"}])
@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
@pytest.mark.parametrize("pairs", [True, False])
def test_gradients_pass_gradcheck(way, discretization, pairs):
    initial = way.get("algorithm") != "fft"
    inputs, _ = problem(2, 4, 2, 2, pairs=pairs, initial=initial)
    inputs[2][0, 0] = 0  # lam = 0 for real modes: the limit of (e^w - 1) / w
    inputs = [None if x is None else x.requires_grad_() for x in inputs]
    options = {"discretization": discretization, "reverse": pairs, "lengths": torch.tensor([4, 2])}
    assert torch.autograd.gradcheck(lambda *a: s4d(*a, **options, **way), inputs)


@pytest.mark.parametrize("way", WAYS)
def test_a_second_derivative_is_right(way):
    inputs, _ = problem(1, 3, 2, 1, initial=way.get("algorithm") != "fft")
    inputs = [None if x is None else x.requires_grad_() for x in inputs]
    assert torch.autograd.gradgradcheck(lambda *a: s4d(*a, **way), inputs)


@native
@pytest.mark.parametrize("algorithm", ["scan", "fft"])
def test_only_the_wanted_gradients_are_given(algorithm):
    inputs, _ = problem(2, 9, 3, 2, initial=algorithm == "scan")
    for i, x in enumerate(inputs):
        if x is None:
            continue
        leaves = [None if y is None else y.clone().requires_grad_(i == j) for j, y in enumerate(inputs)]
        s4d(*leaves, algorithm=algorithm)[0].sum().backward()
        assert [y is not None and y.grad is not None for y in leaves] == [i == j for j in range(len(leaves))]


def test_discretisation_has_its_limits_and_follows_its_formulas():
    w = torch.tensor([0, 1e-12, 1e-3, -1e-3, 0.049, 0.051, -3.0, -800.0], dtype=torch.float64)
    exact = torch.where(w == 0, 1, torch.expm1(w) / torch.where(w == 0, 1, w))
    torch.testing.assert_close(phi(w.unsqueeze(0))[0], exact, rtol=1e-15, atol=0)
    torch.testing.assert_close(phi(w.unsqueeze(0) * 1j)[0].imag[1:3], w[1:3] / 2, rtol=1e-6, atol=0)
    dt, lam = torch.tensor([0.1], dtype=torch.float64), torch.tensor([[-2 + 3j]], dtype=torch.complex128)
    a, b = discretize(dt.unsqueeze(-1), lam, "bilinear")
    torch.testing.assert_close(a * (1 - 0.05 * lam), 1 + 0.05 * lam)
    torch.testing.assert_close(b * (1 - 0.05 * lam), dt + 0 * lam)
    a, b = discretize(dt.unsqueeze(-1), lam, "zoh")
    torch.testing.assert_close(b * lam, a - 1)


@pytest.mark.parametrize("way", WAYS)
def test_the_response_to_a_step_is_the_closed_form(way):
    # one real mode: h_t = (e^(lam dt t) - 1) / lam exactly, the solution of h' = lam h + 1 at the samples
    time, lam, dt = 300, -0.7, 0.01
    one = torch.ones(1, 1, dtype=torch.float64)
    u = torch.ones(1, time, 1, dtype=torch.float64)
    y, _ = s4d(u, dt * one[0], lam * one, None, one, None, **way)
    t = dt * torch.arange(1, time + 1, dtype=torch.float64)
    torch.testing.assert_close(y[0, :, 0], torch.expm1(lam * t) / lam, rtol=1e-12, atol=1e-12)


@native
@pytest.mark.parametrize("frequency", [2 * torch.pi, 2 * torch.pi + 1e-9])
def test_a_mode_that_the_input_cannot_move_keeps_its_state(frequency):
    # dt lam = 2 pi i: Abar = 1 and Bbar = 0, by which the kernel would divide
    inputs, gradients = problem(2, 20, 1, 1)
    inputs[1][:], inputs[2][:], inputs[3][:] = 1, 0, frequency
    expected = outputs_and_gradients(s4d_reference, inputs, gradients)
    got = outputs_and_gradients(s4d, inputs, gradients, algorithm="scan")
    assert_equal(got, expected, rtol=1e-6, atol=1e-6)  # the reference itself subtracts nearly equal numbers


@pytest.mark.parametrize("way", WAYS)
def test_parts_of_a_sequence_continue_each_other(way):
    inputs, _ = problem(2, 300, 5, 3, initial=False)
    u, *weights = inputs[:7]
    y, last = s4d(u, *weights, **way)
    first, state = s4d(u[:, :130], *weights, **way)
    second, end = s4d(u[:, 130:], *weights, state, backend=way["backend"])
    torch.testing.assert_close(torch.cat((first, second), 1), y, **EXACT)
    torch.testing.assert_close(end, last, **EXACT)


@native
@pytest.mark.parametrize("shape", [(1, 1000, 5), (1, 700, 40), (5, 200, 33), (40, 50, 2), (2, 1000, 3)])
def test_one_and_two_threads_agree_and_runs_repeat_bit_for_bit(shape, threads):
    for algorithm, dtype in (("scan", torch.float64), ("fft", torch.float64), ("scan", torch.float32)):
        inputs, gradients = problem(*shape, 3, initial=algorithm == "scan", dtype=dtype)
        results = []
        for count in (1, 2, 1, 2):
            threads(count)
            results.append(outputs_and_gradients(s4d, inputs, gradients, algorithm=algorithm))
        assert_equal(results[0], results[2], rtol=0, atol=0)
        assert_equal(results[1], results[3], rtol=0, atol=0)
        # the order of sums, and where states cross tiles, differ with the number of threads
        tolerance = EXACT if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-3}
        assert_equal(results[0], results[1], **tolerance)


@native
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, while tracing
@pytest.mark.parametrize("algorithm", ["scan", "fft"])
def test_works_under_compile_without_graph_breaks(algorithm):
    inputs, gradients = problem(2, 20, 5, 3, initial=algorithm == "scan")
    lengths = torch.tensor([20, 7])
    compiled = torch.compile(s4d, fullgraph=True, backend="aot_eager")
    options = {"algorithm": algorithm, "lengths": lengths}
    expected = outputs_and_gradients(s4d, inputs, gradients, **options)
    assert_equal(outputs_and_gradients(compiled, inputs, gradients, **options), expected, rtol=0, atol=1e-12)


@native
def test_ops_pass_the_checks_of_torch_library():
    inputs, (grad, grad_last) = problem(2, 20, 5, 3)
    *weights, h0 = inputs
    ops, checks = torch.ops.holdfast, ("test_schema", "test_faketensor")
    for lengths in (None, torch.tensor([3, 20])):
        arguments = (*weights, lengths, h0, False, True)
        torch.library.opcheck(ops.s4d_scan_forward.default, (*arguments, True, True), test_utils=checks)
        _, _, modes, saved = ops.s4d_scan_forward(*arguments, True, True)
        call = (*arguments, modes, saved, grad, grad_last)
        torch.library.opcheck(ops.s4d_scan_backward.default, call, test_utils=checks)
        arguments = (*weights, lengths, False, False)
        torch.library.opcheck(ops.s4d_fft_forward.default, (*arguments, True, True), test_utils=checks)
        _, _, modes, saved = ops.s4d_fft_forward(*arguments, True, True)
        torch.library.opcheck(ops.s4d_fft_backward.default, (*arguments, modes, saved, grad), test_utils=checks)


@native
@pytest.mark.parametrize("algorithm", ["scan", "fft"])
def test_vmap_maps_inputs_and_weights(algorithm):
    inputs, _ = problem(2, 12, 3, 2, initial=False)
    u, dt, *rest = inputs[:7]
    many = torch.stack((u, 2 * u))
    got, last = torch.func.vmap(lambda x: s4d(x, dt, *rest, algorithm=algorithm))(many)
    torch.testing.assert_close(got[1], s4d(2 * u, dt, *rest)[0], **EXACT)
    torch.testing.assert_close(last[1], s4d(2 * u, dt, *rest)[1], **EXACT)
    slopes = torch.func.vmap(torch.func.grad(lambda t: s4d(u, t, *rest, algorithm=algorithm)[0].sum()))(
        torch.stack((dt, 2 * dt))
    )
    single = torch.func.grad(lambda t: s4d(u, t, *rest)[0].sum())(2 * dt)
    torch.testing.assert_close(slopes[1], single, **EXACT)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_have_a_float32_state(way, dtype):
    inputs, _ = problem(2, 40, 4, 2, initial=False, dtype=torch.float32)
    half = [inputs[0].to(dtype).requires_grad_(), *inputs[1:]]
    y, last = s4d(*half, **way)
    assert y.dtype == dtype
    assert last.dtype == torch.float32
    y.sum().backward()
    assert half[0].grad.dtype == dtype
    exact = s4d(half[0].detach().float(), *inputs[1:])
    torch.testing.assert_close(y, exact[0].to(dtype))
    torch.testing.assert_close(last, exact[1])
    mixed = [None if x is None else x.to(dtype) for x in inputs]
    assert s4d(*mixed, **way)[0].dtype == dtype


@native
def test_runs_under_autocast():
    inputs, _ = problem(2, 20, 4, 2, dtype=torch.float32)
    expected = s4d(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_equal(s4d(*inputs), expected, rtol=0, atol=0)


@native
@pytest.mark.parametrize("algorithm", ["scan", "fft"])
def test_several_python_threads_get_their_own_results(algorithm):
    cases = [problem(2, 200, 17, 3, initial=False, seed=seed) for seed in range(4)]
    expected = [outputs_and_gradients(s4d, *case, algorithm=algorithm) for case in cases]
    found = [None] * len(cases)

    def work(i):
        for _ in range(5):
            found[i] = outputs_and_gradients(s4d, *cases[i], algorithm=algorithm)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for got, truth in zip(found, expected, strict=True):
        assert_equal(got, truth, **EXACT)


def works():
    inputs, gradients = problem(2, 200, 17, 3, initial=False)
    scan, fft = (outputs_and_gradients(s4d, inputs, gradients, algorithm=a) for a in ("scan", "fft"))
    assert_equal(scan, fft, **EXACT)


def check_build():
    """Odd sizes of both algorithms against the reference, for a build that this process has loaded."""
    cases = [((19, 70, 1, 3), True, True), ((3, 300, 17, 3), True, False), ((2, 65, 130, 2), False, True)]
    for (shape, pairs, initial), some in itertools.product(cases, (False, True)):
        lengths = torch.arange(shape[0]) % (shape[1] + 1) if some else None
        inputs, gradients = problem(*shape, pairs=pairs, initial=initial)
        expected = outputs_and_gradients(s4d_reference, inputs, gradients, lengths=lengths)
        for algorithm in ("scan",) if initial else ("scan", "fft"):
            options = {"lengths": lengths, "algorithm": algorithm}
            assert_equal(outputs_and_gradients(s4d, inputs, gradients, **options), expected, **EXACT)
            if not initial:
                single = [None if x is None else x.float() for x in inputs], [g.float() for g in gradients]
                for x, truth in zip(outputs_and_gradients(s4d, *single, **options), expected, strict=True):
                    assert relative_error(x, truth) < 1e-4


def test_auto_tells_what_it_chose_and_why():
    assert choose(2, 10, 3, 4, backend="chunked") == ("chunked", "", "asked for by name")
    if not library.status().available:
        assert choose(2, 10, 3, 4).backend == "chunked"
        return
    assert choose(64, 784, 64, 32, return_state=False)[:2] == ("native", "fft")
    assert choose(1, 131072, 64, 8)[:2] == ("native", "scan")
    name, algorithm, reason = choose(64, 784, 64, 32, initial_state=True)
    assert (name, algorithm) == ("native", "scan")
    assert "initial state" in reason
    assert choose(2, 10, 3, 4, device="mps").backend == "chunked"


def replaced(inputs, **changes):
    names = ["u", "dt", "lam_re", "lam_im", "c_re", "c_im", "d", "h0"]
    return [changes.get(name, x) for name, x in zip(names, inputs, strict=True)]


MISTAKES = [
    ({"u": torch.zeros(2, 3)}, ShapeError, r"expected u of shape \(batch time features\), got \(2, 3\)"),
    ({"u": [1.0]}, DtypeError, "expected u to be a torch.Tensor, got list"),
    ({"u": torch.zeros(2, 6, 3, dtype=torch.int64)}, DtypeError, "expected u in one of float32.*got a int64 tensor"),
    ({"dt": torch.zeros(4)}, ShapeError, r"expected dt of shape \(3,\) \(u's features\), got \(4,\)"),
    ({"dt": torch.zeros(3, dtype=torch.float64)}, DtypeError, "expected dt in torch.float32.*got a float64"),
    ({"lam_re": torch.zeros(3)}, ShapeError, r"expected lam_re of shape \(features modes\), got \(3,\)"),
    ({"lam_im": None}, ArgumentError, "got c_im without lam_im; give both"),
    ({"c_im": None}, ArgumentError, "got lam_im without c_im; give both"),
    ({"c_re": torch.zeros(3, 5)}, ShapeError, r"expected c_re of shape \(3, 2\) \(lam_re's\), got \(3, 5\)"),
    ({"d": torch.zeros(2)}, ShapeError, r"expected d of shape \(3,\)"),
    ({"h0": torch.zeros(2, 3, 2)}, ShapeError, r"expected h0 of shape \(2, 3, 2, 2\) .*real and imaginary part"),
    ({"h0": torch.zeros(2, 3, 2, 2, device="meta")}, ArgumentError, "expected all tensors on one device"),
]


@pytest.mark.parametrize(("changes", "error", "text"), MISTAKES)
def test_wrong_tensors_are_refused_with_what_was_expected(changes, error, text, user_mistakes):
    inputs, _ = problem(2, 6, 3, 2, dtype=torch.float32)
    with pytest.raises(error, match=text):
        s4d(*replaced(inputs, **changes))


def test_wrong_choices_are_refused_with_what_was_expected(user_mistakes, monkeypatch):
    inputs, _ = problem(2, 6, 3, 2, dtype=torch.float32)
    with pytest.raises(ShapeError, match="at least one mode"):
        s4d(*replaced(inputs, **dict.fromkeys(("lam_re", "lam_im", "c_re", "c_im"), torch.zeros(3, 0))))
    with pytest.raises(UnknownNameError, match="unknown discretization 'euler'"):
        s4d(*inputs, discretization="euler")
    with pytest.raises(UnknownNameError, match="unknown backend of s4d 'cuda'"):
        s4d(*inputs, backend="cuda")
    with pytest.raises(UnknownNameError, match=r"unknown algorithm of s4d 'dft'\. Did you mean 'fft'"):
        s4d(*inputs, algorithm="dft")
    with pytest.raises(ArgumentError, match="algorithm='scan' is for the native backend"):
        s4d(*inputs, algorithm="scan", backend="chunked")
    with pytest.raises(ArgumentError, match="expected 0 <= lengths <= 6"):
        s4d(*inputs, lengths=torch.tensor([7, 1]))
    with pytest.raises(DtypeError, match="lengths"):
        s4d(*inputs, lengths=torch.tensor([6.0, 1.0]))
    if library.status().available:
        with pytest.raises(ArgumentError, match="algorithm='fft' takes no h0"):
            s4d(*inputs, algorithm="fft")
    missing = library.NativeStatus(False, None, None, "switched off for a test")
    monkeypatch.setattr(library, "status", lambda: missing)
    with pytest.raises(BackendError, match="switched off for a test"):
        s4d(*inputs, backend="native")
    assert s4d(*inputs)[0].shape == (2, 6, 3)
