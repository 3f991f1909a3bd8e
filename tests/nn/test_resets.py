"""Resets and packed sequences in layers and stacks: equal to running the pieces apart, values and gradients."""

import itertools

import pytest
import torch
from layer_cases import BATCH, CONTINUOUS, FEATURES, LAYERS, STEPS, build, sequence

from holdfast import nn
from holdfast.errors import ArgumentError, DtypeError, ShapeError

# float64 roundings of the same layer on the same numbers in other batches
EXACT = {"rtol": 1e-10, "atol": 1e-10}
BOUNDS = (0, 4, 4, 5, 9)
CU = torch.tensor(BOUNDS)
LENGTHS = torch.tensor([9, 6, 9])
FIRST = {0: (3, 4), 1: (2,), 2: (0, 8)}  # marked steps of each row


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


def marked():
    marks = torch.zeros(BATCH, STEPS, dtype=torch.bool)
    for row, steps in FIRST.items():
        marks[row, list(steps)] = True
    marks[1, 6:] = True  # past its length: not read
    return marks


def random(*shape, seed=3):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_gradients(layer, outputs, *inputs):
    total = sum((y * random(*y.shape, seed=i)).sum() for i, y in enumerate(outputs))
    weights = [w for w in layer.parameters() if w.requires_grad]
    grads = torch.autograd.grad(total, (*inputs, *weights), allow_unused=True, materialize_grads=True)
    return [*(y.detach() for y in outputs), *grads]


def close(got, expected):
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def rows_apart(layer, x, state, dt=None):
    """Each row cut at its marks by hand; the first piece continues from the row's state."""
    rows, lasts = [], []
    for i in range(BATCH):
        bounds = [0, *(t for t in FIRST[i] if t), int(LENGTHS[i])]
        outputs, last = [], None
        for start, end in itertools.pairwise(bounds):
            own = state[i : i + 1] if start == 0 and 0 not in FIRST[i] else None
            step = None if dt is None else dt[i : i + 1, start:end]
            y, last = layer(x[i : i + 1, start:end], own, dt=step)
            outputs.append(y)
        rows.append(torch.nn.functional.pad(torch.cat(outputs, 1), (0, 0, 0, STEPS - bounds[-1])))
        lasts.append(last)
    return torch.cat(rows), torch.cat(lasts)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_with_resets_equals_its_pieces_run_apart(name):
    layer = build(name)
    x, state = sequence().requires_grad_(), random(BATCH, *layer.state_shape).requires_grad_()
    dt = random(BATCH, STEPS).abs() if name in CONTINUOUS else None
    got = layer(x, state, lengths=LENGTHS, resets=marked(), dt=dt)
    close(with_gradients(layer, got, x, state), with_gradients(layer, rows_apart(layer, x, state, dt), x, state))
    y, none = layer(x, state, lengths=LENGTHS, resets=marked(), dt=dt, return_state=False)
    assert none is None
    torch.testing.assert_close(y, got[0], **EXACT)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", ["LRU", "S4D lin", "Mamba", "LinearRNN", "ContinuousGRU"])
def test_packed_sequences_in_a_layer_equal_the_sequences_run_apart(name, bidirectional):
    layer = build(name, bidirectional=bidirectional)
    x = random(1, BOUNDS[-1], FEATURES).requires_grad_()
    ways = (2,) if bidirectional else ()
    state = random(*ways, len(BOUNDS) - 1, *layer.state_shape).requires_grad_()
    pieces = enumerate(itertools.pairwise(BOUNDS))
    runs = [layer(x[:, start:end], state.narrow(len(ways), i, 1)) for i, (start, end) in pieces]
    expected = torch.cat([y for y, _ in runs], 1), torch.cat([last for _, last in runs], len(ways))
    got = layer(x, state, cu_seqlens=CU)
    close(with_gradients(layer, got, x, state), with_gradients(layer, expected, x, state))


@pytest.mark.parametrize("name", ["LRU", "S4D lin", "Mamba", "ContinuousGRU"])
def test_a_bidirectional_layer_reads_each_piece_from_its_end(name):
    layer = build(name, bidirectional=True)
    x, marks = sequence()[:1], torch.zeros(1, STEPS, dtype=torch.bool)
    marks[0, [3, 7]] = True
    y, last = layer(x, resets=marks)
    pieces = [layer(x[:, a:b]) for a, b in ((0, 3), (3, 7), (7, 9))]
    torch.testing.assert_close(y, torch.cat([piece for piece, _ in pieces], 1), **EXACT)
    torch.testing.assert_close(last[0], pieces[2][1][0], **EXACT)
    torch.testing.assert_close(last[1], pieces[0][1][1], **EXACT)


@pytest.mark.parametrize("name", ["LRU", "S4D lin", "Mamba", "ContinuousRNN"])
def test_a_stream_with_resets_equals_forward(name):
    layer, x, marks = build(name), sequence(), marked()
    state, outputs = None, []
    for t in range(STEPS):
        y, state = layer.step(x[:, t], state, resets=marks[:, t])
        outputs.append(y)
    y, last = layer(x, resets=marks)
    torch.testing.assert_close(torch.stack(outputs, 1), y, **EXACT)
    torch.testing.assert_close(state, last, **EXACT)


def stack(kind, **options):
    torch.manual_seed(0)
    if kind == "language":
        model = nn.LanguageModel(7, 4, depth=2, state_size=4, **options).double()
        return model, torch.randint(7, (BATCH, STEPS), generator=torch.Generator().manual_seed(1))
    model = nn.SequenceModel(FEATURES, 4, depth=2, state_size=4, block=kind, layer="lru", **options).double()
    return model, sequence()


@pytest.mark.parametrize("kind", ["gated", "naive", "language"])
def test_a_stack_with_resets_equals_its_pieces_and_its_stream(kind):
    model, x = stack(kind)
    marks = torch.zeros(BATCH, STEPS, dtype=torch.bool)
    marks[:, 4] = marks[1, 6] = True
    y, states = model(x, resets=marks)
    after = [model(x[:, 4:])[0], model(x[1:2, 6:])]
    after[0][1, 2:] = after[1][0]
    torch.testing.assert_close(y, torch.cat([model(x[:, :4])[0], after[0]], 1), **EXACT)
    streamed, outputs = None, []
    for t in range(STEPS):
        z, streamed = model.step(x[:, t], streamed, resets=marks[:, t])
        outputs.append(z)
    torch.testing.assert_close(torch.stack(outputs, 1), y, **EXACT)
    torch.testing.assert_close(streamed, states, **EXACT)


@pytest.mark.parametrize("kind", ["gated", "language"])
def test_packed_sequences_in_a_stack_equal_the_sequences_run_apart(kind):
    model, x = stack(kind)
    runs = [model(x[:1, a:b]) for a, b in ((0, 4), (4, 5), (5, 9))]
    bounds = torch.tensor([0, 4, 5, 9])
    y, states = model(x[:1], cu_seqlens=bounds)
    torch.testing.assert_close(y, torch.cat([z for z, _ in runs], 1), **EXACT)
    again, _ = model(x[:1], states, cu_seqlens=bounds)
    for i, (a, b) in enumerate(((0, 4), (4, 5), (5, 9))):
        torch.testing.assert_close(again[:, a:b], model(x[:1, a:b], runs[i][1])[0], **EXACT)


@pytest.mark.parametrize("pool", ["mean", "last"])
def test_a_classifier_scores_each_packed_sequence(pool):
    torch.manual_seed(0)
    model = nn.SequenceClassifier(FEATURES, 2, 4, depth=1, state_size=4, pool=pool).double()
    x = sequence()[:1]
    scores = model(x, cu_seqlens=torch.tensor([0, 4, 9]))
    torch.testing.assert_close(scores, torch.cat([model(x[:, :4]), model(x[:, 4:])]), **EXACT)
    with pytest.raises(ArgumentError, match="at least one time step per sequence"):
        model(x, cu_seqlens=CU)


def test_bad_marks_and_states_are_refused_by_layers():
    layer, x = build("LRU", bidirectional=True), sequence()
    with pytest.raises(ShapeError, match="resets of shape"):
        layer(x, resets=torch.zeros(BATCH, STEPS + 1, dtype=torch.bool))
    with pytest.raises(DtypeError, match="resets in one of bool"):
        layer(x, resets=torch.zeros(BATCH, STEPS))
    with pytest.raises(ArgumentError, match="leave lengths out"):
        layer(x[:1], cu_seqlens=CU, lengths=torch.tensor([9]))
    with pytest.raises(ShapeError, match=r"state of shape \(2, 4, "):
        layer(x[:1], layer.initial_state(1), cu_seqlens=CU)
    with pytest.raises(ShapeError, match="resets of shape"):
        build("LRU").step(x[:, 0], resets=torch.zeros(BATCH + 1, dtype=torch.bool))
