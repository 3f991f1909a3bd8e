"""What reaches C: tensors of the right shape, dtype, device and memory order, or an error; never a wrong read."""

import sys

import pytest
import torch
from torch.autograd import forward_ad

import children
from holdfast import nn
from holdfast.errors import ArgumentError, BackendError, DtypeError, HoldfastError
from holdfast.kernels import gate, lru, rnn, s4d, scan, selective
from holdfast.kernels._common import calls, library
from holdfast.kernels.gate import gate_reference
from holdfast.kernels.s4d import s4d_step

pytestmark = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
OPS = torch.ops.holdfast


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def transposed(x):
    """The same values, columns one after another in memory."""
    return x.t().contiguous().t()


S4D = (random(2, 9, 3), torch.ones(3).double(), -torch.ones(3, 4).double(), *(random(3, 4) for _ in range(3)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["w", "log_dt", "C", "D"])
@pytest.mark.parametrize("kind", ["real", "lin"])
def test_s4d_step_reads_weights_of_any_dtype_as_what_they_are(kind, name, dtype):
    layer = nn.S4D(4, 8, initialization=kind)
    if kind == "lin" and name in ("w", "log_dt"):
        pytest.skip("complex numbers have no bfloat16, and torch says so")
    weight = getattr(layer, name)
    rounded = weight.data.to(dtype)
    weight.data = rounded.float()
    x = random(3, 4, dtype=torch.float32)
    with torch.no_grad():
        state = layer.initial_state(3)
        expected = layer.step(x, state)
        weight.data = rounded
        layer.__dict__.pop("_kept", None)
        got = layer.step(x, state)
    # coefficients made in half precision may carry its rounding, 2^-8 of a factor below 1
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=0 if name in "CD" else 0.05, rtol=0 if name in "CD" else 0.05)


def test_a_language_model_in_half_precision_steps_as_it_runs():
    torch.manual_seed(0)
    model = nn.LanguageModel(50, 32, depth=2, state_size=16).half()
    tokens = torch.randint(50, (2, 6))
    with torch.no_grad():
        whole, _ = model(tokens)
        state, outputs = None, []
        for t in range(6):
            y, state = model.step(tokens[:, t], state)
            outputs.append(y)
    # float16 has 11 bits: 2^-10 of logits of size 1, some roundings deep
    torch.testing.assert_close(torch.stack(outputs, 1), whole, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("missing", [1, 2, 4])
def test_s4d_without_a_tensor_that_it_needs_is_refused(missing):
    given = list(S4D)
    given[missing] = None
    with pytest.raises(DtypeError, match=r"expected (dt|lam_re|c_re) to be a torch.Tensor, got NoneType"):
        s4d(*given)


def test_a_step_across_devices_is_refused():
    layer = nn.S4D(4, 8)
    x = random(2, 4, dtype=torch.float32)
    with torch.no_grad():
        with pytest.raises(ArgumentError):
            layer.step(x, layer.initial_state(2, device="meta"))
        with pytest.raises(ArgumentError):
            nn.S4D(4, 8).to("meta").step(x)


def test_a_step_of_wrong_shapes_is_refused():
    u, state, factor, c, d = random(2, 3), random(2, 3, 4), random(3, 4), random(3, 4), random(3)
    with torch.no_grad():
        assert s4d_step(u, state, factor, factor, c, d)[0].shape == (2, 3)
        for wrong in ({"state": state[:1]}, {"gain": factor[:, :1]}, {"c": c[:2]}, {"d": d[:1]}):
            arguments = {"u": u, "state": state, "factor": factor, "gain": factor, "c": c, "d": d, **wrong}
            with pytest.raises(HoldfastError):
                s4d_step(**arguments)


x, w, bias = random(4, 8, 16), random(32, 16), random(32)
H = random(4, 8, 3)
SAVED = OPS.s4d_fft_forward(*S4D, None, None, False, False, False, True)[2:]
BY_SCAN = OPS.s4d_scan_forward(*S4D, None, None, None, False, False, True, True)[2:]
LRU = (random(2, 5, 3), random(4), random(4), random(8, 3), random(6, 8))
RNN = (random(2, 5, 3), random(4, 4), random(4, 3), None, None, None, None)
SETTINGS = ("tanh", None, False, "native")
SELECTIVE = (random(2, 5, 4), random(2, 5, 4).abs(), -random(4, 3).abs(), *(random(2, 5, 2, 3) for _ in range(2)))
SELECTIVE_BC = random(2, 5, 4), random(2, 5, 4)
SELECTIVE_MORE = (random(4), random(2, 5, 4), random(4), random(2, 4, 3), None, None, True, False)
DELTA = (*(random(2, 5, 3, n) for n in (4, 4, 6)), -random(2, 5, 3).abs(), random(2, 5, 3), random(2, 3, 4, 6))
# an op, its arguments, and which of them are tensors whose neighbours rely on their shape
RAW = {
    "scan_forward": (random(1, 1, 3), H, random(4, 3), None, False),
    "scan_backward": (random(1, 1, 3), H, random(4, 3), None, H, random(4, 3), False, True, True),
    "lru_forward": (*LRU, None, random(2, 8), None, False),
    "lru_backward": (*LRU, None, random(2, 8), None, False, random(2, 5, 8), random(2, 5, 6), random(2, 8), [True] * 6),
    "s4d_scan_forward": (*S4D, random(3), None, random(2, 3, 4, 2), False, False, True, True),
    "s4d_scan_backward": (*S4D, random(3), None, None, False, False, *BY_SCAN, random(2, 9, 3), random(2, 3, 4, 2)),
    "s4d_fft_forward": (*S4D, random(3), None, False, False, True, True),
    "s4d_fft_backward": (*S4D, random(3), None, False, False, *SAVED, random(2, 9, 3)),
    "selective_forward": (*SELECTIVE, *SELECTIVE_MORE, True),
    "selective_backward": (*SELECTIVE, *SELECTIVE_MORE, random(2, 1, 3, 4), random(2, 5, 4), random(2, 4, 3)),
    "causal_conv_forward": (random(2, 5, 4), random(4, 3), random(4), random(2, 4, 2), None, True),
    "causal_conv_backward": (
        random(2, 5, 4),
        random(4, 3),
        random(4),
        random(2, 4, 2),
        None,
        True,
        random(2, 5, 4),
        random(2, 4, 2),
    ),
    "delta_rule_forward": (*DELTA, 0.5, True, True),
    "delta_rule_backward": (*DELTA, 0.5, True, random(2, 3, 1, 128), random(2, 5, 3, 6), random(2, 3, 4, 6)),
    "gate_forward": (x, x, w, bias, True),
    "gate_backward": (x, w, bias, random(4, 8, 32), x),
    "rnn_forward": (*RNN, *SETTINGS, False),
    "rnn_backward": (
        *RNN[:3],
        None,
        None,
        None,
        random(2, 5, 4),
        random(0),
        random(2, 5, 4),
        None,
        *SETTINGS,
        [True] * 6,
    ),
}
FREE = [("lru_forward", 4), ("s4d_fft_forward", 0), ("rnn_forward", 0)]  # their first dimension is any
TENSORS = [(name, i) for name, arguments in RAW.items() for i, t in enumerate(arguments) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize(("name", "place"), TENSORS)
def test_an_operator_called_directly_refuses_what_does_not_fit(name, place):
    arguments = list(RAW[name])
    getattr(OPS, name)(*arguments)
    given = arguments[place]
    wrong = [given.float(), given.to(torch.bfloat16), given.unsqueeze(0), given.reshape(-1)[:1]]
    if given.numel():
        wrong += [given[..., :-1], *([] if (name, place) in FREE else [given[:0]])]
    if name.startswith("scan") and place == 0:
        wrong = wrong[:2]  # one factor broadcasts
    for value in wrong:
        if value.shape == given.shape and value.dtype == given.dtype:
            continue
        with pytest.raises(HoldfastError):
            getattr(OPS, name)(*arguments[:place], value, *arguments[place + 1 :])


def test_a_gradient_of_a_transposed_weight_is_right():
    y, x, weight, bias = random(3, 20, 16), random(3, 20, 16), random(32, 16), random(32)
    seed = random(3, 20, 16, seed=1)
    grads = []
    for function, w in ((gate_reference, weight), (gate, transposed(weight))):
        tensors = [t.detach().requires_grad_() for t in (y, x, w, bias)]
        grads.append(torch.autograd.grad(function(*tensors), tensors, seed))
    for got, expected in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("needed", [(1,), (0,), (2,), (3,), (1, 3), (0, 2)])
def test_gate_differentiates_twice_by_any_of_its_inputs(needed):
    tensors = [random(2, 20, 16), random(2, 20, 16), random(32, 16), random(32)]
    seed = random(2, 20, 16, seed=1).requires_grad_()
    results = []
    for function in (gate, gate_reference):
        own = [t.detach().requires_grad_(i in needed) for i, t in enumerate(tensors)]
        first = torch.autograd.grad(function(*own), [own[i] for i in needed], seed, create_graph=True)
        second = torch.autograd.grad([g.square().sum() for g in first], [seed], retain_graph=True)
        results.append([*first, *second])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


def negated(t):
    """-t, noted as a bit on the tensor and not done in memory."""
    return torch._neg_view(t)


def test_negation_that_is_only_noted_is_done_before_c_reads():
    tensors = random(2, 20, 16), random(2, 20, 16), random(32, 16), random(32)
    step = random(2, 3), random(2, 3, 4), random(3, 4), random(3, 4), random(3, 4), random(3)
    with torch.no_grad():
        torch.testing.assert_close(gate(*map(negated, tensors)), gate_reference(*(-t for t in tensors)))
        for got, expected in zip(s4d_step(*map(negated, step)), s4d_step(*(-t for t in step)), strict=True):
            torch.testing.assert_close(got, expected)


KERNELS = {
    "scan": lambda x, **way: scan(torch.full((3,), 0.9, dtype=x.dtype), x, **way)[0],
    "lru": lambda x, **way: lru(x, *LRU[1:], **way)[0],
    "s4d": lambda x, **way: s4d(x, *S4D[1:], **way)[0],
    "rnn": lambda x, **way: rnn(x, *RNN[1:3], **way)[0],
    "selective": lambda x, **way: selective(x, torch.ones_like(x), -random(3, 4).abs(), *SELECTIVE_BC, **way)[0],
}


# torch makes its own forward-mode formulas by a compiler that it warns about
forward_mode = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")


@forward_mode
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_forward_mode_is_refused_or_right(name, grad):
    x, tangent = random(2, 5, 3), random(2, 5, 3, seed=1)
    function = KERNELS[name]
    with torch.set_grad_enabled(grad):
        with pytest.raises(BackendError, match="backend='reference'"):
            torch.func.jvp(function, (x,), (tangent,))
        with forward_ad.dual_level(), pytest.raises(BackendError, match="backend='reference'"):
            function(forward_ad.make_dual(x, tangent))
        _, got = torch.func.jvp(lambda x: function(x, backend="reference"), (x,), (tangent,))
    near = (function(x + 1e-6 * tangent) - function(x - 1e-6 * tangent)) / 2e-6
    torch.testing.assert_close(got, near, atol=1e-8, rtol=1e-7)  # central differences: 1e-12 / 1e-6 and rounding


@forward_mode
@pytest.mark.parametrize("grad", [True, False])
def test_gate_and_step_are_right_in_forward_mode(grad):
    tensors = random(2, 20, 16), random(2, 20, 16), random(32, 16), random(32)
    step = random(2, 3), random(2, 3, 4), random(3, 4), random(3, 4), random(3, 4), random(3)
    for function, arguments in ((gate, tensors), (lambda *t: s4d_step(*t)[0], step)):
        with torch.set_grad_enabled(grad):
            tangents = tuple(torch.ones_like(t) for t in arguments)
            _, got = torch.func.jvp(function, arguments, tangents)
            with forward_ad.dual_level():
                duals = [forward_ad.make_dual(t, s) for t, s in zip(arguments, tangents, strict=True)]
                torch.testing.assert_close(forward_ad.unpack_dual(function(*duals)).tangent, got)
        near = (function(*(t + 1e-6 for t in arguments)) - function(*(t - 1e-6 for t in arguments))) / 2e-6
        torch.testing.assert_close(got, near, atol=1e-6, rtol=1e-6)


OUT_OF_MEMORY = """
import resource, sys, torch
from holdfast.errors import HoldfastError
from holdfast.kernels import lru, rnn, s4d, scan
torch.set_num_threads(1)
x = torch.zeros(9_000_000, 1, 1)
one = torch.ones(1)
calls = {
    "rnn": lambda: rnn(x, torch.ones(1, 1), torch.ones(1, 1)),
    "scan": lambda: scan(one, x),
    "lru": lambda: lru(x, one, None, torch.ones(1, 1), torch.ones(1, 1)),
    "s4d scan": lambda: s4d(x, one, -one[None], one[None], one[None], one[None], algorithm="scan"),
    "s4d fft": lambda: s4d(x, one, -one[None], one[None], one[None], one[None], algorithm="fft"),
}
small = torch.zeros(2, 3, 1)
for name in calls:  # libraries and thread pools are in place before memory is scarce
    full, x = x, small
    calls[name]()
    x = full
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for megabytes in (30, 100, 200, 300):
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for name, call in calls.items():
        try:
            call()
        except MemoryError as error:
            assert isinstance(error, HoldfastError), error
            print(name, "refused")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS and /proc")
def test_no_memory_is_an_error_and_never_the_end_of_the_process():
    run = children.run(OUT_OF_MEMORY)
    assert run.returncode == 0, run.stderr
    assert {line.split()[0] for line in run.stdout.splitlines()} == {"rnn", "scan", "lru", "s4d"}, run.stdout


PARTS = (lambda x: x.mT, lambda x: x.mT[:, :, 3:], lambda x: x.conj().mT, lambda x: x.conj().imag.mT)


@pytest.mark.parametrize("part", PARTS)
def test_large_transposed_matrices_are_copied_as_they_are_meant(part):
    # at least _MIN_BLOCKED_SIZE on both sides: each row of the batch by itself
    value = part(torch.randn(2, 300, 260, generator=torch.Generator().manual_seed(0), dtype=torch.complex64))
    copy = calls.dense(value)
    assert copy.is_contiguous() and not copy.is_conj() and not copy.is_neg()
    assert torch.equal(copy, value)
