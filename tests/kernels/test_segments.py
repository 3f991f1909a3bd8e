"""Resets inside a row and packed sequences: every kernel against its pieces run apart, values and gradients."""

import collections
import itertools
import random

import pytest
import torch
from fuzz_calls import call
from fuzz_cuts import PLACES

from holdfast.errors import ArgumentError, DtypeError, ShapeError
from holdfast.kernels import causal_conv, lru, rnn, s4d, scan, selective
from holdfast.kernels._common.segments import Cuts, in_pieces

# the same kernel on the same numbers in other batches: float64 roundings of sums over at most 40 steps
EXACT = {"rtol": 1e-11, "atol": 1e-11}
BATCH, TIME, FEATURES = 3, 17, 4


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


RATES = -normal(FEATURES, 3, seed=11).abs()
READ = (normal(FEATURES, 3, seed=12), normal(FEATURES, 3, seed=13), normal(FEATURES, 3, seed=14))
MIX = (normal(6, FEATURES, seed=15), normal(5, 6, seed=16))


def run_scan(x, h0, how):
    return scan(0.9 * torch.ones(FEATURES, dtype=x.dtype), x, h0, **how)


def run_scan_per_step(x, h0, how):
    return scan(torch.sigmoid(x), x, h0, **how)


def run_lru(x, h0, how):
    lam = torch.full((3,), 0.8, dtype=x.dtype)
    return lru(x, lam, lam / 4, *MIX, None, h0, **how)


def run_s4d(x, h0, how):
    return s4d(x, torch.full((FEATURES,), 0.3, dtype=x.dtype), RATES, READ[0], READ[1], READ[2], None, h0, **how)


def run_rnn(x, h0, how):
    return rnn(x, normal(6, 6, seed=17) / 4, MIX[0], None, h0, **how)


def run_rnn_with_steps(x, h0, how):
    return rnn(x, normal(6, 6, seed=17) / 4, MIX[0], None, h0, dt=x[..., 0].abs(), **how)


def run_selective(x, h0, how):
    return selective(x, x.abs(), RATES, x[..., :3], x[..., 1:], z=x, h0=h0, **how)


def run_causal_conv(x, h0, how):
    return causal_conv(x, normal(FEATURES, 4, seed=18), None, h0, silu=True, **how)


KERNELS = {
    "scan": (run_scan, (FEATURES,)),
    "scan per step": (run_scan_per_step, (FEATURES,)),
    "lru": (run_lru, (6,)),
    "s4d": (run_s4d, (FEATURES, 3, 2)),
    "rnn": (run_rnn, (6,)),
    "rnn with steps": (run_rnn_with_steps, (6,)),
    "selective": (run_selective, (FEATURES, 3)),
    "causal_conv": (run_causal_conv, (FEATURES, 3)),
}


def apart(run, x, h0, first, reverse):
    """One sequence, x (time, features), cut before each of the steps `first`: outputs and the final state."""
    bounds = sorted({0, *first, len(x)})
    pieces = list(itertools.pairwise(bounds))
    outputs, state = {}, h0
    for start, end in reversed(pieces) if reverse else pieces:
        ahead = (end == len(x) and end not in first) if reverse else (start == 0 and start not in first)
        how = {"reverse": True} if reverse else {}
        y, state = run(x[None, start:end], h0[None] if ahead else torch.zeros_like(h0)[None], how)
        outputs[start] = y[0]
        state = state[0]
    return torch.cat([outputs[start] for start in bounds[:-1]]), state


def value_and_gradients(outputs, inputs):
    grads = torch.autograd.grad(sum((y * normal(*y.shape, seed=5)).sum() for y in outputs), inputs)
    return [*(y.detach() for y in outputs), *grads]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_resets_equal_the_pieces_run_apart(name, reverse, poisoned, threads):
    threads(1)
    run, shape = KERNELS[name]
    if reverse and name == "causal_conv":
        pytest.skip("a causal convolution has one direction")
    marks = torch.zeros(BATCH, TIME, dtype=torch.bool)
    marks[0, [3, 4, 9]] = marks[1, [0, 5]] = marks[2, [7, 11]] = True  # the ends of rows 1 and 2 drop their h0
    marks[2, 15] = True  # after that row's end
    lengths = torch.tensor([TIME, TIME, 12])
    x, h0 = normal(BATCH, TIME, FEATURES).requires_grad_(), normal(BATCH, *shape, seed=1).requires_grad_()
    how = {"resets": marks, "lengths": lengths, **({"reverse": True} if reverse else {})}
    got = value_and_gradients(run(x, h0, how), (x, h0))
    rows = []
    for i in range(BATCH):
        first = [int(t) + reverse for t in marks[i].nonzero() if t < lengths[i]]
        y, last = apart(run, x[i, : lengths[i]], h0[i], first, reverse)
        rows.append((torch.nn.functional.pad(y, (0, 0, 0, TIME - len(y))), last))
    expected = value_and_gradients([torch.stack(parts) for parts in zip(*rows, strict=True)], (x, h0))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_packed_sequences_equal_the_sequences_run_apart(name, reverse, poisoned, threads):
    threads(1)
    run, shape = KERNELS[name]
    if reverse and name == "causal_conv":
        pytest.skip("a causal convolution has one direction")
    bounds = [0, 7, 7, 8, 37, 40]  # one of them is empty, one of a single step
    x, h0 = normal(1, 40, FEATURES).requires_grad_(), normal(5, *shape, seed=1).requires_grad_()
    how = {"cu_seqlens": torch.tensor(bounds, dtype=torch.int32), **({"reverse": True} if reverse else {})}
    got = value_and_gradients(run(x, h0, how), (x, h0))
    parts = [
        apart(run, x[0, bounds[i] : bounds[i + 1]], h0[i], (), reverse) if i != 1 else (x[0, :0, :0], h0[1])
        for i in range(5)
    ]
    outputs = torch.cat([y for y, _ in parts if y.numel()])[None]
    expected = value_and_gradients([outputs, torch.stack([last for _, last in parts])], (x, h0))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_a_mark_at_the_first_step_drops_the_initial_state():
    x, h0 = normal(2, 5, FEATURES), normal(2, FEATURES, seed=1)
    marks = torch.zeros(2, 5, dtype=torch.bool)
    marks[0, 0] = True
    h, last = run_scan(x, h0, {"resets": marks})
    torch.testing.assert_close(h[0], run_scan(x, None, {})[0][0], **EXACT)
    torch.testing.assert_close(h[1], run_scan(x, h0, {})[0][1], **EXACT)
    assert torch.equal(last, h[:, -1])


def test_packed_sequences_may_have_resets_of_their_own():
    x, marks = normal(1, 12, FEATURES), torch.zeros(1, 12, dtype=torch.bool)
    marks[0, 7] = True
    got = run_lru(x, None, {"cu_seqlens": torch.tensor([0, 5, 12]), "resets": marks})
    finer = run_lru(x, None, {"cu_seqlens": torch.tensor([0, 5, 7, 12])})
    torch.testing.assert_close(got[0], finer[0], **EXACT)
    torch.testing.assert_close(got[1], finer[1][[0, 2]], **EXACT)


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_of_a_hostile_piece_reaches_the_next(name, threads):
    threads(1)
    run, _ = KERNELS[name]
    x, marks = normal(1, 12, FEATURES), torch.zeros(1, 12, dtype=torch.bool)
    marks[0, 6] = True
    expected = run(x, None, {"resets": marks})[0][:, 6:]
    x[0, 2] = torch.inf
    if name == "selective":  # whose step sizes are read from x
        x[0, 2] = 1e300
    torch.testing.assert_close(run(x, None, {"resets": marks})[0][:, 6:], expected, **EXACT)


def test_batch_dimensions_of_a_scan_are_cut_each():
    a, b, h0 = torch.sigmoid(normal(3, 1, 4)), normal(2, 3, 6, 4), normal(2, 3, 4, seed=1)
    marks = torch.rand(2, 3, 6, generator=torch.Generator().manual_seed(2)) < 0.3
    h, last = scan(a, b, h0, resets=marks)
    for i in range(2):
        for j in range(3):
            own = scan(a[j], b[i, j, None], h0[i, j, None], resets=marks[i, j, None])
            torch.testing.assert_close(h[i, j], own[0][0], **EXACT)
            torch.testing.assert_close(last[i, j], own[1][0], **EXACT)


def test_empty_batches_and_sequences_have_their_shapes():
    nothing = torch.zeros(0, 5, dtype=torch.bool)
    assert [t.shape for t in run_lru(normal(0, 5, FEATURES), None, {"resets": nothing})] == [(0, 5, 5), (0, 6)]
    y, last = run_lru(normal(1, 0, FEATURES), normal(2, 6), {"cu_seqlens": torch.tensor([0, 0, 0])})
    assert y.shape == (1, 0, 5)
    assert torch.equal(last, normal(2, 6))
    y, last = run_lru(
        normal(2, 3, FEATURES), None, {"resets": torch.ones(2, 3).bool(), "lengths": torch.tensor([0, 0])}
    )
    assert not y.any()
    assert not last.any()


def test_pieces_of_like_length_share_a_batch_and_a_long_one_does_not_pad_them():
    shapes = []

    def run(x, state, lengths):
        shapes.append(tuple(x.shape[:2]))
        return x, state

    bounds = torch.tensor([0, 1000, *range(1010, 2010, 10)])
    in_pieces("f", run, {"x": normal(1, 2000, 1)}, None, Cuts(None, None, bounds, False))
    assert shapes == [(1, 1000), (100, 10)]


BAD = {
    "resets in another shape": ({"resets": torch.zeros(1, 5, dtype=torch.bool)}, ShapeError, "resets of shape"),
    "resets as numbers": ({"resets": torch.zeros(1, 6)}, DtypeError, "resets in one of bool"),
    "resets as a list": ({"resets": [[True] * 6]}, DtypeError, "resets to be a torch.Tensor"),
    "bounds that fall": ({"cu_seqlens": torch.tensor([0, 4, 3, 6])}, ArgumentError, "without decreasing"),
    "bounds that end early": ({"cu_seqlens": torch.tensor([0, 5])}, ArgumentError, "from 0 to 6"),
    "bounds that start late": ({"cu_seqlens": torch.tensor([1, 6])}, ArgumentError, "from 0 to 6"),
    "bounds as real numbers": ({"cu_seqlens": torch.tensor([0.0, 6.0])}, DtypeError, "cu_seqlens in one of int64"),
    "bounds in a matrix": ({"cu_seqlens": torch.tensor([[0, 6]])}, ShapeError, "cu_seqlens of shape"),
    "no bounds": ({"cu_seqlens": torch.tensor([], dtype=torch.int64)}, ShapeError, "cu_seqlens of shape"),
    "bounds and lengths": (
        {"cu_seqlens": torch.tensor([0, 6]), "lengths": torch.tensor([6])}, ArgumentError, "leave lengths out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_marks_and_bounds_are_refused_by_every_kernel(case):
    how, error, words = BAD[case]
    for run, _ in KERNELS.values():
        with pytest.raises(error, match=words):
            run(normal(1, 6, FEATURES), None, how)


def test_packed_sequences_in_a_batch_and_states_of_another_number_are_refused():
    bounds = {"cu_seqlens": torch.tensor([0, 2, 6])}
    for run, shape in KERNELS.values():
        with pytest.raises(ShapeError, match="batch of 1 with cu_seqlens"):
            run(normal(2, 6, FEATURES), None, bounds)
        with pytest.raises(ShapeError, match=r"initial states of shape \(2, \.\.\.\)"):
            run(normal(1, 6, FEATURES), normal(3, *shape), bounds)


@pytest.mark.parametrize("name", PLACES)
def test_random_cuts_give_a_right_result_or_an_error_of_ours(name):
    rng, counts, calls = random.Random(1), collections.Counter(), 60
    for _ in range(calls):
        call(name, rng, counts, cuts=1)
    # enough of both: results that were compared with pieces run apart, and mistakes that were refused
    assert counts["compared"] > 0.1 * calls, counts
    assert counts["refused"] > 0.2 * calls, counts


@pytest.mark.slow
def test_resets_run_beside_a_compiled_graph():
    """How many pieces there are is read from the data, so no graph holds them; other marks recompile nothing."""
    x = normal(BATCH, TIME, FEATURES)
    marks = torch.zeros(BATCH, TIME, dtype=torch.bool)
    graphs, seen = [], []

    def count(graph, _):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x, resets: 2 * run_scan(x, None, {"resets": resets})[0], backend=count)
    for step in (3, 5, 9):
        marks[:, step] = True
        torch.testing.assert_close(compiled(x, marks), 2 * run_scan(x, None, {"resets": marks})[0], rtol=0, atol=0)
        seen.append(len(graphs))
    assert seen[0] == seen[-1]


def test_a_scan_of_no_steps_takes_resets():
    b = torch.randn(0, 3)
    for a in (torch.rand(3), torch.rand(0, 3)):
        h, last = scan(a, b, torch.ones(3), resets=torch.zeros(0, dtype=torch.bool))
        assert h.shape == (0, 3)
        torch.testing.assert_close(last, torch.ones(3))
