"""The short causal convolution against torch's conv1d and its float64 reference: values, gradients, states, padding."""

import pytest
import torch
from torch.nn import functional

from holdfast.errors import ArgumentError, DtypeError, ShapeError, UnknownNameError
from holdfast.kernels._common import library
from holdfast.kernels.causal_conv import causal_conv, causal_conv_reference

native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
BACKENDS = [pytest.param("native", marks=native), "chunked"]
# float64 sums of at most 300 steps of numbers of size 1
EXACT = {"rtol": 1e-11, "atol": 1e-11}


def problem(batch, time, channels, taps, dtype=torch.float64, *, bias=True, state=True, seed=0):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=g).to(dtype)

    arguments = [normal(batch, time, channels), normal(channels, taps)]
    arguments += [normal(channels) if bias else None, normal(batch, channels, taps - 1) if state else None]
    return arguments, (normal(batch, time, channels), normal(batch, channels, taps - 1))


def outputs_and_gradients(function, arguments, gradients, **options):
    arguments = [None if x is None else x.detach().requires_grad_() for x in arguments]
    outputs = function(*arguments, **options)
    inputs = [x for x in arguments if x is not None]
    grads = torch.autograd.grad(outputs, inputs, gradients, allow_unused=True, materialize_grads=True)
    return [*(y.detach() for y in outputs), *grads]


SHAPES = [(0, 3, 4), (1, 1, 1), (2, 5, 4), (2, 5, 3), (3, 17, 2), (33, 20, 3), (65, 130, 4), (300, 20, 4), (300, 9, 7)]


@native
@pytest.mark.parametrize(("time", "channels", "taps"), SHAPES)
@pytest.mark.parametrize("silu", [False, True])
def test_values_and_gradients_agree_with_the_reference(time, channels, taps, silu, threads, poisoned):
    for choice in range(4):
        padded, rest = bool(choice & 1), bool(choice & 2)
        arguments, gradients = problem(3, time, channels, taps, bias=rest, state=rest or padded, seed=choice)
        if padded:
            arguments[0] = torch.cat((arguments[0], arguments[0]), -1)[..., :channels]  # columns of a wider tensor
        options = {"silu": silu, "lengths": torch.tensor([time, time // 2, 0]) if padded else None}
        expected = outputs_and_gradients(causal_conv_reference, arguments, gradients, **options)
        for count in (1, 2):
            threads(count)
            got = outputs_and_gradients(causal_conv, arguments, gradients, backend="native", **options)
            for x, y in zip(got, expected, strict=True):
                torch.testing.assert_close(x, y, **EXACT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_the_depthwise_conv1d_of_torch_padded_on_the_left(backend):
    (x, weight, bias, _), _ = problem(2, 30, 6, 4, state=False)
    y, last = causal_conv(x, weight, bias, silu=True, backend=backend)
    whole = functional.conv1d(x.transpose(1, 2), weight.unsqueeze(1), bias, padding=3, groups=6)[..., :30]
    torch.testing.assert_close(y, functional.silu(whole).transpose(1, 2), **EXACT)
    torch.testing.assert_close(last, x[:, -3:].transpose(1, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sequence_in_pieces_is_the_whole_sequence(backend):
    (x, weight, bias, state), _ = problem(2, 12, 5, 4)
    whole, end = causal_conv(x, weight, bias, state, silu=True, backend=backend)
    pieces = []
    for piece in x.split((1, 2, 5, 4), 1):  # shorter than the taps, too
        y, state = causal_conv(piece, weight, bias, state, silu=True, backend=backend)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, **EXACT)
    torch.testing.assert_close(state, end)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_pass_gradcheck_once_and_twice(backend):
    arguments, _ = problem(2, 3, 2, 3)
    tensors = [x.requires_grad_() for x in arguments]
    options = {"silu": True, "lengths": torch.tensor([3, 1]), "backend": backend}
    assert torch.autograd.gradcheck(lambda *t: causal_conv(*t, **options), tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *t: causal_conv(*t, **options), tensors, fast_mode=True)


@native
def test_float32_errors_are_within_twice_those_of_the_float32_reference():
    arguments, gradients = problem(2, 500, 9, 4, torch.float32)
    wide = [x.double() for x in arguments], [g.double() for g in gradients]
    exact = outputs_and_gradients(causal_conv_reference, *wide, silu=True)
    plain = outputs_and_gradients(causal_conv_reference, arguments, gradients, silu=True)
    got = outputs_and_gradients(causal_conv, arguments, gradients, silu=True, backend="native")
    for ours, loop, truth in zip(got, plain, exact, strict=True):
        # the floor is two roundings of the largest element: sums are taken in another order
        assert (ours - truth).abs().max() <= 2 * (loop - truth).abs().max() + 1.2e-7 * truth.abs().max()


def test_half_precision_computes_in_float32_and_vmap_maps():
    (x, weight, bias, state), _ = problem(2, 20, 5, 4, torch.float32)
    y, last = causal_conv(x.bfloat16(), weight, bias, state)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    mapped = torch.func.vmap(lambda w: causal_conv(x, w, bias, state)[0])(torch.stack((weight, 2 * weight)))
    torch.testing.assert_close(mapped[1], causal_conv(x, 2 * weight, bias, state)[0])


def works():
    """A call with gradients; for processes and threads of other tests."""
    arguments, gradients = problem(4, 300, 40, 4, torch.float32)
    assert all(x.isfinite().all() for x in outputs_and_gradients(causal_conv, arguments, gradients, backend="native"))


def check_build():
    """Odd sizes against the reference, for a build that this process has loaded."""
    for i, (time, channels, taps) in enumerate(SHAPES):
        arguments, gradients = problem(3, time, channels, taps, seed=i)
        want = outputs_and_gradients(causal_conv_reference, arguments, gradients, silu=True)
        got = outputs_and_gradients(causal_conv, arguments, gradients, silu=True, backend="native")
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, **EXACT)


MISTAKES = [
    ({0: torch.rand(5, 3)}, {}, ShapeError, r"x of shape \(batch time channels\), got \(5, 3\)"),
    ({0: torch.zeros(2, 5, 3, dtype=torch.int64)}, {}, DtypeError, "x in one of float32"),
    ({1: torch.rand(4, 3)}, {}, ShapeError, r"weight of shape \(3, 3\)"),
    ({1: torch.rand(3, 0)}, {}, ShapeError, "with taps >= 1"),
    ({1: None}, {}, DtypeError, "weight to be a torch.Tensor, got NoneType"),
    ({2: torch.rand(1)}, {}, ShapeError, r"bias of shape \(3,\)"),
    ({3: torch.rand(2, 3, 4)}, {}, ShapeError, r"state of shape \(2, 3, 3\) \(batch, channels, taps less one\)"),
    ({1: torch.rand(3, 4, device="meta")}, {}, ArgumentError, "one device.*weight on meta"),
    ({}, {"lengths": torch.tensor([1, 9])}, ArgumentError, "0 <= lengths <= 5"),
    ({}, {"silu": "yes"}, ArgumentError, "silu to be True or False"),
    ({}, {"backend": "cuda"}, UnknownNameError, "unknown backend of causal_conv 'cuda'"),
]


@pytest.mark.parametrize(("changes", "options", "error", "text"), MISTAKES)
def test_mistakes_are_answered_with_what_was_expected(changes, options, error, text, user_mistakes):
    arguments = [changes.get(i, x) for i, x in enumerate(problem(2, 5, 3, 4)[0])]
    with pytest.raises(error, match=text):
        causal_conv(*arguments, **options)
