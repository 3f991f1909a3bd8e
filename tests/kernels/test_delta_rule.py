"""The gated delta rule in C++ against its loop over time."""

import pytest
import torch

from holdfast.errors import HoldfastError
from holdfast.kernels._common import library
from holdfast.nn._delta_rule import _in_cpp, delta_rule, delta_rule_reference

native = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
# time, heads, keys, values: around a tile of 16 steps, a vector of 4, 8 or 16 columns and panels of 4, 2 and 1 of them
SHAPES = [
    (0, 2, 4, 4), (1, 1, 2, 1), (2, 2, 3, 5), (15, 1, 8, 16), (16, 2, 9, 17), (17, 1, 33, 48), (63, 2, 5, 31),
    (65, 3, 16, 33), (40, 1, 64, 64), (33, 1, 128, 96), (20, 2, 17, 130),
]  # fmt: skip
EXACT = {"rtol": 1e-10, "atol": 1e-11}  # float64: other orders of the same sums


def problem(time, heads, keys, values, dtype=torch.float64, seed=0):
    """Arguments and gradients of outputs and last state; decays from 1 to e^-3."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    q, k, v = (normal(2, time, heads, width) for width in (keys, keys, values))
    g, beta = -normal(2, time, heads).abs(), torch.sigmoid(normal(2, time, heads))
    arguments = [q, k, v, g, beta, normal(2, heads, keys, values)]
    return arguments, [normal(2, time, heads, values), normal(2, heads, keys, values)]


def outputs_and_gradients(function, arguments, gradients, **options):
    leaves = [x.clone().requires_grad_() for x in arguments]
    outputs = function(*leaves, **options)
    ends = [
        (y, g) for y, g in zip(outputs, gradients, strict=True) if y.requires_grad
    ]  # without steps the loop's y is none
    grads = torch.autograd.grad(
        [y for y, _ in ends], leaves, [g for _, g in ends], allow_unused=True, materialize_grads=True
    )
    return [*outputs, *grads]


@native
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients_are_the_loop(shape, normalize, poisoned):
    arguments, gradients = problem(*shape)
    if not normalize:
        arguments[1] = torch.nn.functional.normalize(arguments[1], dim=-1)  # or states grow
    results = [
        outputs_and_gradients(function, arguments, gradients, scale=0.7, normalize=normalize)
        for function in (delta_rule, delta_rule_reference)
    ]
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, **EXACT)


@native
def test_float32_errors_are_within_twice_those_of_the_float32_loop():
    arguments, gradients = problem(500, 2, 64, 64, torch.float32)
    wide = [x.double() for x in arguments], [g.double() for g in gradients]
    exact = outputs_and_gradients(delta_rule_reference, *wide, normalize=True)
    plain = outputs_and_gradients(delta_rule_reference, arguments, gradients, normalize=True)
    got = outputs_and_gradients(delta_rule, arguments, gradients, normalize=True)
    for ours, loop, truth in zip(got, plain, exact, strict=True):
        # the floor is two roundings of the largest element: sums are taken in another order
        assert (ours - truth).abs().max() <= 2 * (loop - truth).abs().max() + 1.2e-7 * truth.abs().max()


@native
def test_results_do_not_depend_on_threads_and_layout():
    arguments, gradients = problem(70, 3, 20, 24, torch.float32)
    expected = outputs_and_gradients(delta_rule, arguments, gradients, normalize=True)
    turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in arguments]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        got = outputs_and_gradients(delta_rule, turned, gradients, normalize=True)
    finally:
        torch.set_num_threads(before)
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


@native
def test_the_kernel_is_taken_for_one_dtype_on_a_cpu_alone():
    arguments, _ = problem(3, 1, 4, 4)
    assert _in_cpp(*arguments)
    assert not _in_cpp(*arguments[:5], arguments[5].float())
    assert not _in_cpp(*(x.bfloat16() for x in arguments))
    assert not _in_cpp(*(x.to("meta") for x in arguments))


@native
def test_an_operator_without_keys_is_refused():
    arguments, _ = problem(3, 1, 4, 4)
    q, k, v, g, beta, state = arguments
    with pytest.raises(HoldfastError, match="at least one head, key and value"):
        torch.ops.holdfast.delta_rule_forward(q[..., :0], k[..., :0], v, g, beta, state[:, :, :0], 1.0, False, False)


def works():
    """A call with gradients; for processes and threads of other tests."""
    arguments, gradients = problem(100, 4, 32, 32, torch.float32)
    assert all(x.isfinite().all() for x in outputs_and_gradients(delta_rule, arguments, gradients, normalize=True))


def check_build():
    """Odd sizes against the loop, for a build that this process has loaded."""
    for i, shape in enumerate(SHAPES):
        arguments, gradients = problem(*shape, seed=i)
        want = outputs_and_gradients(delta_rule_reference, arguments, gradients, normalize=True)
        got = outputs_and_gradients(delta_rule, arguments, gradients, normalize=True)
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, **EXACT)
