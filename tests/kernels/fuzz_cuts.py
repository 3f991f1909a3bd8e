"""Random resets and bounds of packed sequences for the calls of `fuzz_calls`, and the pieces run apart by the reference."""

import itertools

import torch
from test_fuzz_scan import chance, values

# which arguments of a kernel are cut along time, and which one is its initial state
PLACES = {
    "scan": ((1, 0), 2),
    "lru": ((0,), 6),
    "rnn": ((0, 5), 4),
    "s4d": ((0,), 7),
    "selective": ((0, 1, 3, 4, 6), 8),
    "causal_conv": ((0,), 3),
}


def random_resets(rows, time, rng):
    """Mostly marks that fit, now and then something else."""
    share = rng.choice((0, 0.1, 0.5, 1))
    marks = torch.rand(*rows, time, generator=torch.Generator().manual_seed(rng.randrange(2**31))) < share
    if chance(rng, 0.75):
        return marks.transpose(0, -1).contiguous().transpose(0, -1) if chance(rng, 0.3) else marks
    odd = (marks.int(), marks[..., :-1], marks[None], marks.to("meta"), marks.tolist(), 1, torch.ones(()) > 0)
    return rng.choice(odd)


def random_bounds(time, rng):
    """Mostly bounds of sequences, empty ones among them, now and then something else."""
    inner = sorted(rng.randint(0, time) for _ in range(rng.choice((0, 1, 1, 3, 8))))
    bounds = torch.tensor([0, *inner, time], dtype=rng.choice((torch.int64, torch.int32)))
    if chance(rng, 0.75):
        return bounds
    odd = (bounds[:-1], bounds[1:], bounds.flip(0), bounds + 1, bounds - 1, bounds * 2**20, bounds[:0], bounds[None])
    return rng.choice((*odd, bounds.float(), bounds.to("meta"), bounds.tolist(), time, bounds > 0))


def with_cuts(name, arguments, options, rng):
    """The same call with resets or bounds of packed sequences, or with both."""
    cut, start = PLACES[name]
    rows, time = sizes(name, arguments[cut[0]])
    arguments, options = list(arguments), dict(options)
    if chance(rng, 0.6):
        options["resets"] = random_resets(rows, time, rng)
    if "resets" in options and chance(rng, 0.7):
        return arguments, options
    options["cu_seqlens"] = bounds = random_bounds(time, rng)
    if chance(rng, 0.8):
        options["lengths"] = None
    if chance(rng, 0.8) and rows:
        arguments = [x[:1] if i in cut and batched(x, rows) else x for i, x in enumerate(arguments)]
        if isinstance(options.get("resets"), torch.Tensor) and options["resets"].ndim:
            options["resets"] = options["resets"][:1]
    state = arguments[start]
    if state is not None and chance(rng, 0.9):
        count = max(len(bounds) - 1, 0) if isinstance(bounds, torch.Tensor) and bounds.ndim else 1
        arguments[start] = values((count, *state.shape[1:]), state.dtype, rng)
    return arguments, options


def sizes(name, x):
    """The batch's dimensions, of which scan may have any number, and the time steps."""
    return (tuple(x.shape[:-2]), x.shape[-2]) if name == "scan" else (tuple(x.shape[:1]), x.shape[1])


def batched(x, rows):
    """Whether a tensor has the batch as its first dimension; factors of a scan may be broadcast."""
    return isinstance(x, torch.Tensor) and x.ndim >= 2 and len(rows) == 1 and x.shape[0] == rows[0]


def apart(name, reference):
    """`reference` of cut rows: each piece by itself, from zeros where it does not open its sequence."""
    if reference is None or name not in PLACES:
        return reference
    cut, start = PLACES[name]

    def run(*arguments, lengths=None, resets=None, cu_seqlens=None, **options):
        if resets is None and cu_seqlens is None:
            return reference(*arguments, lengths=lengths, **options)
        arguments = flat_scan(*arguments) if name == "scan" else list(arguments)
        rows, time = arguments[cut[0]].shape[:2]
        marks = torch.zeros(rows, time, dtype=torch.bool) if resets is None else resets.reshape(rows, time)
        ends = [time] * rows if lengths is None else lengths.tolist()
        parts = [(i, 0, ends[i]) for i in range(rows)]
        if cu_seqlens is not None:
            parts = [(0, *pair) for pair in itertools.pairwise(cu_seqlens.tolist())]
        outputs, last = None, []
        for number, (row, begin, end) in enumerate(parts):
            state = None if arguments[start] is None else arguments[start][number : number + 1]
            for first, stop, opens in pieces(marks[row], begin, end, options.get("reverse", False)):
                given = [
                    x[row : row + 1, first:stop] if i in cut and isinstance(x, torch.Tensor) else x
                    for i, x in enumerate(arguments)
                ]
                given[start] = state if opens or state is None else torch.zeros_like(state)
                y, state = reference(*given, **options)
                outputs = y.new_zeros(rows, time, *y.shape[2:]) if outputs is None else outputs
                outputs[row, first:stop] = y[0]
            last.append(state)
        if outputs is None or any(state is None for state in last):  # a sequence without steps and without a state
            return () if outputs is None else (outputs,)
        return outputs, torch.cat(last)

    return run if name != "scan" else lambda *given, **options: shaped(run(*given, **options), given[1], options)


def pieces(marks, begin, end, reverse):
    """First step, end, and whether the piece continues from the initial state; in the order of the run."""
    cuts = [t + reverse for t in range(begin, end) if marks[t]]
    bounds = sorted({begin, end, *cuts})
    found = [(a, b, (b if reverse else a) not in cuts and (b == end if reverse else a == begin))
             for a, b in itertools.pairwise(bounds)]  # fmt: skip
    return found[::-1] if reverse else found


def flat_scan(a, b, h0):
    """Factors written out and all batch dimensions in one."""
    rows = (b.shape[:-2].numel(), *b.shape[-2:])
    return [
        a.broadcast_to(b.shape).reshape(rows),
        b.reshape(rows),
        None if h0 is None else h0.unsqueeze(0).flatten(0, -2),
    ]


def shaped(outputs, b, options):
    """The results of a scan with the batch's own dimensions."""
    own = [b.shape, None if options.get("cu_seqlens") is not None else b.shape[:-2] + b.shape[-1:]]
    return tuple(y if shape is None else y.reshape(shape) for y, shape in zip(outputs, own, strict=False))
