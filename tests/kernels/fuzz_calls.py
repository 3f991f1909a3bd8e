"""Calls of every kernel with random arguments, most of them wrong; run by itself, inside a process with sanitizers.

`python fuzz_calls.py CALLS SEED` prints, for each kernel, calls, refused calls, and results compared with a float64 reference.
"""

import collections
import copy
import json
import random
import sys

import torch
from fuzz_cuts import PLACES, apart, random_resets, with_cuts
from test_fuzz_scan import NO_MEMORY, chance, lru_case, random_lengths, scan_case, some_spoiled, values

from holdfast.errors import HoldfastError
from holdfast.kernels import _linear, causal_conv, gate, gru, lstm, rnn, s4d, selective
from holdfast.kernels.causal_conv import causal_conv_reference
from holdfast.kernels.gate import gate_reference
from holdfast.kernels.gated import gru_reference, lstm_reference
from holdfast.kernels.gated._reference import Weights
from holdfast.kernels.rnn import rnn_reference
from holdfast.kernels.s4d import s4d_reference, s4d_step
from holdfast.kernels.selective import selective_reference
from holdfast.nn import _delta_rule  # noqa: F401  (defines its operators)
from holdfast.nn._torch_streams import StreamedCells

SIZES = (0, 1, 2, 3, 5, 8, 9, 17, 33)
TIMES = (0, 1, 2, 3, 7, 16, 33, 63, 65, 130)
FLOATS = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
ERROR = {torch.float64: 1e-7, torch.float32: 2e-3, torch.bfloat16: 0.1, torch.float16: 2e-2}


def maybe(value, rng, share=0.5):
    return value if chance(rng, share) else None


def one_of(sizes, count, rng):
    return [rng.choice(sizes) for _ in range(count)]


def mixed(arguments, rng):
    """Now and then one tensor in a dtype of its own."""
    if chance(rng, 0.2):
        place = rng.randrange(len(arguments))
        if isinstance(arguments[place], torch.Tensor):
            arguments[place] = arguments[place].to(rng.choice(FLOATS))
    return arguments


def s4d_arguments(rng, dtype):
    (batch, features), time, modes = one_of(SIZES, 2, rng), rng.choice(TIMES), rng.choice((0, 1, 1, 2, 3, 5))
    pairs = chance(rng, 0.6)
    shape, pair = (features, modes), (2,) if pairs else ()
    rates = [values((features,), dtype, rng).abs() / 8, -values(shape, dtype, rng).abs()]
    weights = [values(shape, dtype, rng) if pairs or i == 1 else None for i in range(3)]
    h0 = maybe(values((batch, *shape, *pair), dtype, rng), rng, 0.4)
    skip = maybe(values((features,), dtype, rng), rng)
    lengths = random_lengths(batch, time, rng)
    return [values((batch, time, features), dtype, rng), *rates, *weights, skip, h0], lengths


def s4d_case(rng):
    arguments, lengths = s4d_arguments(rng, rng.choice(FLOATS))
    way = rng.choice(({"algorithm": "scan"}, {"algorithm": "fft"}, {}, {"return_state": False}))
    if way.get("algorithm") == "fft" and chance(rng, 0.9):
        arguments[-1] = None

    def run(*tensors, **options):
        return s4d(*tensors, **options, **way)

    return run, s4d_reference, mixed(arguments, rng), {"lengths": lengths, "reverse": chance(rng, 0.5)}


def step_case(rng):
    batch, features, modes = one_of(SIZES, 3, rng)
    real = rng.choice((torch.float32, torch.float64))
    pairs = chance(rng, 0.5)
    factor = {torch.float32: torch.complex64, torch.float64: torch.complex128}[real] if pairs else real
    shape, pair = (features, modes), (2,) if pairs else ()
    tensors = [values((batch, features), real, rng), values((batch, *shape, *pair), real, rng)]
    tensors += [values(shape, factor, rng), values(shape, factor, rng)]
    tensors += [values((*shape, *pair), real, rng), values((features,), real, rng)]

    def plain(*given, **_):
        with torch.enable_grad():
            return s4d_step(*given)

    return s4d_step, plain, mixed(tensors, rng), {}


def gate_case(rng):
    width, tokens = rng.choice((0, 1, 8, 16, 32, 48)), rng.choice((0, 1, 15, 16, 40))
    dtype = rng.choice(FLOATS)
    shapes = ((2, tokens, width), (2, tokens, width), (2 * width, width), (2 * width,))
    arguments = [values(shape, dtype, rng) for shape in shapes]
    return gate, gate_reference, mixed(arguments, rng), {}


def rnn_case(rng):
    (batch, features, state), time = one_of(SIZES, 3, rng), rng.choice(TIMES)
    dtype = rng.choice(FLOATS)
    w = values((state,) if chance(rng, 0.3) else (state, state), dtype, rng) / 4
    tensors = [values((batch, time, features), dtype, rng), w, values((state, features), dtype, rng)]
    tensors += [maybe(values((state,), dtype, rng), rng), maybe(values((batch, state), dtype, rng), rng)]
    tensors.append(rng.choice((None, 0.1, values((batch, time), dtype, rng).abs())))
    options = {"activation": rng.choice(("tanh", "hardtanh", "relu", "sigmoid", "linear"))}
    options |= {"lengths": random_lengths(batch, time, rng), "reverse": chance(rng, 0.5)}

    def named(function):
        return lambda x, w, u, b, h0, dt, **options: function(x, w, u, b, h0, dt=dt, **options)

    return named(rnn), named(rnn_reference), mixed(tensors, rng), options


def linear_case(rng):
    inputs, outputs, rows = rng.choice((0, 8, 16, 32, 48)), rng.choice(SIZES), rng.choice((0, 1, 7, 20, 400))
    dtype = rng.choice(FLOATS[1:3])  # half precision is torch's, whose products may not run here
    arguments = [values((rows, inputs), dtype, rng), values((outputs, inputs), dtype, rng) / 4]
    arguments.append(maybe(values((outputs,), dtype, rng), rng))

    def run(*given):
        plain = all(x.layout is torch.strided and not x.is_nested for x in given if x is not None)
        if not plain or any(x.dtype not in (torch.float32, torch.float64) for x in given if x is not None):
            raise HoldfastError("torch's own")  # which it computes, or refuses
        return _linear.linear(*given)

    return run, torch.nn.functional.linear, arguments, {}


def gated_arguments(rng, dtype, gru):
    """x, w_ih, w_hh, the biases together as the operator has them, h0, c0; and lengths."""
    (batch, features, state), time = one_of(SIZES, 3, rng), rng.choice(TIMES)
    gates = (3 if gru else 4) * state
    tensors = [values((batch, time, features), dtype, rng), values((gates, features), dtype, rng) / 4]
    tensors += [values((gates, state), dtype, rng) / 4, values((4, state), dtype, rng)]
    tensors += [maybe(values((batch, state), dtype, rng), rng) for _ in range(1 if gru else 2)]
    return tensors + [None] * gru, random_lengths(batch, time, rng)


def gated_case(rng):
    """`lstm` or `gru`, with biases or without."""
    gru_cell, dtype = chance(rng, 0.5), rng.choice(FLOATS)
    (x, w_ih, w_hh, _, h0, c0), lengths = gated_arguments(rng, dtype, gru_cell)
    biases = [values((w_ih.shape[0],), dtype, rng) for _ in range(2)] if chance(rng, 0.7) else []
    starts = [h0] if gru_cell else [h0, c0]

    def named(function, weights):
        def run(x, *rest, **options):
            return function(x, weights(*rest[: 2 + len(biases)]), *rest[2 + len(biases) :], **options)

        return run

    options = {"lengths": lengths, "reverse": chance(rng, 0.5)}
    ours, plain = (gru, gru_reference) if gru_cell else (lstm, lstm_reference)
    arguments = mixed([x, w_ih, w_hh, *biases, *starts], rng)
    return named(ours, lambda *given: given), named(plain, Weights), arguments, options


def cells_case(rng):
    """One step of a stream of one to three layers, through what `stepper()` calls."""
    batch, features, state = (max(1, n) for n in one_of(SIZES, 3, rng))
    module = rng.choice((torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN))(features, state, rng.choice((1, 2, 3)))
    dtype = rng.choice((torch.float32, torch.float64))
    cells = StreamedCells(module.to(dtype)).requires_grad_(False)
    shape = (module.num_layers, rng.choice((0, batch)), state)
    starts = [values(shape, dtype, rng) for _ in range(2 if isinstance(module, torch.nn.LSTM) else 1)]
    plain = copy.deepcopy(cells).double()

    def step(cells):
        def run(x, *states):
            y, after = cells.step(x, states if len(states) == 2 else states[0])
            return y, *(after if isinstance(after, tuple) else (after,))

        return run

    def slow(*given):
        with torch.enable_grad():
            return step(plain)(*given)

    return step(cells), slow, mixed([values((shape[1], features), dtype, rng), *starts], rng), {}


def selective_arguments(rng, dtype):
    (batch, state), time = one_of(SIZES, 2, rng), rng.choice(TIMES)
    groups = rng.choice((1, 1, 2, 3))
    channels = rng.choice((0, 1, 3, 5, 17)) * groups
    steps, weights = (batch, time, channels), (batch, time, groups, state)
    tensors = [values(steps, dtype, rng), values(steps, dtype, rng).abs(), -values((channels, state), dtype, rng).abs()]
    tensors += [values(weights, dtype, rng), values(weights, dtype, rng), maybe(values((channels,), dtype, rng), rng)]
    tensors += [maybe(values(shape, dtype, rng), rng) for shape in (steps, (channels,), (batch, channels, state))]
    return tensors, random_lengths(batch, time, rng)


def selective_case(rng):
    arguments, lengths = selective_arguments(rng, rng.choice(FLOATS))
    if arguments[3].shape[2] == 1 and chance(rng, 0.5):
        arguments[3:5] = [x.squeeze(2) for x in arguments[3:5]]
    softplus = chance(rng, 0.8)

    def named(function):
        def run(u, dt, A, B, C, D, z, dt_bias, h0, **options):
            return function(u, dt, A, B, C, D, z=z, dt_bias=dt_bias, h0=h0, dt_softplus=softplus, **options)

        return run

    options = {"lengths": lengths, "reverse": chance(rng, 0.5)}
    return named(selective), named(selective_reference), mixed(arguments, rng), options


def conv_arguments(rng, dtype):
    (batch, channels), time, taps = one_of(SIZES, 2, rng), rng.choice(TIMES), rng.choice((0, 1, 2, 4, 4))
    tensors = [values((batch, time, channels), dtype, rng), values((channels, taps), dtype, rng)]
    tensors += [maybe(values(shape, dtype, rng), rng) for shape in ((channels,), (batch, channels, max(taps - 1, 0)))]
    return tensors, random_lengths(batch, time, rng)


def conv_case(rng):
    arguments, lengths = conv_arguments(rng, rng.choice(FLOATS))
    return causal_conv, causal_conv_reference, mixed(arguments, rng), {"lengths": lengths, "silu": chance(rng, 0.5)}


def raw_conv(rng, dtype, flags):
    """An operator of the causal convolution."""
    inputs, lengths = conv_arguments(rng, dtype)
    if flags[0]:
        return torch.ops.holdfast.causal_conv_forward, None, [*inputs, lengths, flags[1]], {}
    x, weight = inputs[:2]
    last = values((x.shape[0], x.shape[2], max(weight.shape[1] - 1, 0)), dtype, rng)
    given = [*inputs, lengths, flags[1], maybe(x.clone(), rng), maybe(last, rng)]
    return torch.ops.holdfast.causal_conv_backward, None, given, {}


def raw_selective(rng, dtype, flags):
    """An operator of the selective scan."""
    inputs, lengths = selective_arguments(rng, dtype)
    given = [*inputs, lengths, maybe(random_resets(inputs[0].shape[:1], inputs[0].shape[1], rng), rng), *flags[:2]]
    saved = values((inputs[0].shape[0], -(-inputs[0].shape[1] // 64), *inputs[2].shape[::-1]), dtype, rng)
    if flags[2]:
        return torch.ops.holdfast.selective_forward, None, [*given, flags[3]], {}
    last = maybe(values((inputs[0].shape[0], *inputs[2].shape), dtype, rng), rng)
    return torch.ops.holdfast.selective_backward, None, [*given, saved, maybe(inputs[0].clone(), rng), last], {}


def raw_gated(rng, dtype, flags):
    """An operator of the LSTM and the GRU."""
    tensors, lengths = gated_arguments(rng, dtype, flags[0])
    settings, ops = flags[:2], torch.ops.holdfast
    if flags[2]:
        return ops.gated_forward, None, [*tensors, lengths, *settings, flags[3]], {}
    (batch, time, _), state = tensors[0].shape, tensors[2].shape[1]
    saved = [values((batch, time, state), dtype, rng), values((batch, time, 4, state), dtype, rng)]
    saved.append(saved[0].clone() if not flags[0] else saved[0].new_empty(0))
    gradients = [maybe(saved[0].clone(), rng), *(maybe(values((batch, state), dtype, rng), rng) for _ in range(2))]
    wanted = [chance(rng, 0.7) for _ in range(6)]
    return ops.gated_backward, None, [*tensors, lengths, *saved, *gradients, *settings, wanted], {}


def raw_delta(rng, dtype, flags):
    """An operator of the gated delta rule."""
    (batch, heads, keys, width), time = one_of(SIZES, 4, rng), rng.choice(TIMES)
    shapes = [(batch, time, heads, n) for n in (keys, keys, width)] + 2 * [(batch, time, heads)]
    *tensors, g, beta = (values(shape, dtype, rng) for shape in shapes)
    state = values((batch, heads, keys, width), dtype, rng)
    given = [*tensors, -g.abs(), beta, state, 0.5, flags[0]]
    if flags[1]:
        return torch.ops.holdfast.delta_rule_forward, None, [*given, flags[2]], {}
    padded = -(-keys // 8) * 8 * (-(-width // 16) * 16)
    saved = values((batch, heads, -(-time // 16), padded), dtype, rng)
    return torch.ops.holdfast.delta_rule_backward, None, [*given, saved, tensors[2].clone(), state.clone()], {}


def raw_case(rng):
    """An operator without the public function before it, with arguments that fit before they are spoiled."""
    dtype, ops = rng.choice(FLOATS[1:3]), torch.ops.holdfast
    flags = [chance(rng, 0.5) for _ in range(4)]
    kind = rng.randrange(10)
    if kind >= 6:
        return (raw_selective, raw_conv, raw_gated, raw_delta)[kind - 6](rng, dtype, flags)
    if kind == 0:
        (rows, channels), time = one_of(SIZES, 2, rng), rng.choice(TIMES)
        h, row = values((rows, time, channels), dtype, rng), values((rows, channels), dtype, rng)
        a = values((rng.choice((1, rows)), rng.choice((1, time)), channels), dtype, rng)
        lengths = random_lengths(rows, time, rng)
        if flags[0]:
            return ops.scan_forward, None, [a, h, maybe(row, rng), lengths, flags[1]], {}
        gradients = [maybe(h.clone(), rng), maybe(row.clone(), rng)]
        return ops.scan_backward, None, [a, h, maybe(row, rng), lengths, *gradients, *flags[1:]], {}
    if kind == 1:
        *_, arguments, options = lru_case(rng)
        arguments = [None if x is None else x.to(dtype) for x in arguments]
        given = [*arguments, options["lengths"], flags[0]]
        if flags[1]:
            return ops.lru_forward, None, given, {}
        u, b, c = arguments[0], arguments[3], arguments[4]
        shapes = ((*u.shape[:2], b.shape[0]), (*u.shape[:2], c.shape[0]), (u.shape[0], b.shape[0]))
        wanted = [chance(rng, 0.7) for _ in range(6)]
        return ops.lru_backward, None, [*given, *(values(s, dtype, rng) for s in shapes), wanted], {}
    if kind == 2:
        width, tokens = rng.choice((0, 8, 16, 32)), rng.choice((0, 1, 20))
        y, w, bias = (values(s, dtype, rng) for s in ((tokens, width), (2 * width, width), (2 * width,)))
        if flags[0]:
            return ops.gate_forward, None, [y, y.clone(), w, bias, flags[1]], {}
        return ops.gate_backward, None, [y, w, bias, values((tokens, 2 * width), dtype, rng), y.clone()], {}
    if kind == 3:
        *_, tensors, options = rnn_case(rng)
        tensors = [None if x is None else x.to(dtype) for x in tensors[:5]]
        settings = (options["activation"], 0.1 if flags[0] else None, flags[1], rng.choice(("native", "auto")))
        if flags[2]:
            return ops.rnn_forward, None, [*tensors, None, options["lengths"], *settings, flags[3]], {}
        x, w, u, _, h0 = tensors
        states = values((*x.shape[:2], u.shape[0]), dtype, rng)
        y = states.clone() if flags[0] else states.new_empty(0)
        last = maybe(values((x.shape[0], u.shape[0]), dtype, rng), rng)
        given = [x, w, u, h0, None, options["lengths"], states, y, maybe(states.clone(), rng), last]
        return ops.rnn_backward, None, [*given, *settings, [chance(rng, 0.7) for _ in range(6)]], {}
    (*inputs, h0), lengths = s4d_arguments(rng, dtype)
    name, initial = ("fft", []) if kind == 4 else ("scan", [h0])
    forward, backward = getattr(ops, f"s4d_{name}_forward"), getattr(ops, f"s4d_{name}_backward")
    if flags[0]:
        return forward, None, [*inputs, lengths, *initial, *flags], {}
    try:
        y, last, modes, saved = forward(*inputs, lengths, *initial, *flags[:2], True, True)
    except (HoldfastError, RuntimeError):  # the operator's schema, before a check of ours
        return forward, None, [*inputs, lengths, *initial, *flags], {}
    seeds = [torch.ones_like(y)] if name == "fft" else [maybe(torch.ones_like(y), rng), maybe(last, rng)]
    return backward, None, [*inputs, lengths, *initial, *flags[:2], modes, saved, *seeds], {}


KERNELS = {
    "scan": scan_case, "lru": lru_case, "rnn": rnn_case, "s4d": s4d_case, "s4d_step": step_case, "gate": gate_case,
    "linear": linear_case, "selective": selective_case, "causal_conv": conv_case, "gated": gated_case, "gated_step": cells_case,
    "operators": raw_case,
}  # fmt: skip


def spoiled_tensors(arguments, rng):
    """`some_spoiled` for tensors, the rest as it is; in a case in ten a part of one tensor, or nothing in its place."""
    places = [
        i for i, x in enumerate(arguments) if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
    ]
    changed = list(arguments)
    for place, value in zip(places, some_spoiled([arguments[i] for i in places], rng), strict=True):
        changed[place] = value
    if places and chance(rng, 0.1):
        x = arguments[rng.choice(places)]
        if x.ndim:
            changed[rng.choice(places)] = rng.choice((None, x[..., :-1], x[:1], x.unsqueeze(0), x.to(torch.bfloat16)))
    return changed


def tensors_of(result):
    parts = result if isinstance(result, tuple) else (result,)
    return [x for x in parts if isinstance(x, torch.Tensor)]


def backward(outputs):
    ends = [y for y in outputs if y.requires_grad and y.numel()]
    if ends:
        torch.autograd.backward(ends, [torch.ones_like(y) for y in ends])


def widened(x):
    return x.detach().to(torch.promote_types(x.dtype, torch.float64)).clone(memory_format=torch.contiguous_format)


def compare(name, outputs, arguments, options, reference):
    """True where all was finite and close to the reference in float64."""
    wide = [widened(x) if isinstance(x, torch.Tensor) else x for x in arguments]
    truth = tensors_of(reference(*wide, **options))
    given = [
        x
        for x in (*arguments, *options.values())
        if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
    ]
    if not all(bool(torch.isfinite(x).all()) for x in given):
        return False
    error = max(ERROR[x.real.dtype] for x in given)
    for got, true in zip(outputs, truth, strict=False):
        got = got.detach().to(true.dtype)
        if not bool(torch.isfinite(true).all()) or true.numel() == 0 or float(true.abs().max()) > 1e3:
            return False
        off = float((got - true).abs().max()) / max(1.0, float(true.abs().max()))
        assert off <= error, f"{name}: off by {off}, shapes {[tuple(x.shape) for x in given]}, {options=}"
    return True


def expected(error, name, arguments):
    """Our own errors; torch's for what only torch sees: no memory, an operator's schema, shapes without data (meta)."""
    if isinstance(error, HoldfastError) or any(words in str(error) for words in NO_MEMORY):
        return True
    if name == "operators" and any(isinstance(x, torch.Tensor) and x.device.type == "meta" for x in arguments):
        return True
    if name == "linear":  # private: None is not among what it is asked for
        return isinstance(error, TypeError | RuntimeError | AttributeError)
    return name in ("operators", "s4d_step") and isinstance(error, TypeError | RuntimeError)


def call(name, rng, counts, cuts=0.4):
    """One call, in a share `cuts` of the cases with resets or packed sequences; counts the outcomes."""
    function, reference, arguments, options = KERNELS[name](rng)
    if name in PLACES and chance(rng, cuts):
        arguments, options = with_cuts(name, arguments, options, rng)
    arguments = spoiled_tensors(arguments, rng)
    counts["calls"] += 1
    try:
        with torch.set_grad_enabled(chance(rng, 0.5)):
            outputs = tensors_of(function(*arguments, **options))
            backward(outputs)
    except Exception as error:
        if not expected(error, name, arguments):
            raise
        counts["refused"] += 1
        return
    given = [x for x in (*outputs, *arguments) if isinstance(x, torch.Tensor)]
    if (
        reference is None
        or not any(y.numel() for y in outputs)
        or any(x.device.type == "meta" or max(x.shape, default=0) > 10**4 for x in given)
    ):
        return
    counts["compared"] += compare(name, outputs, arguments, options, apart(name, reference))


def main(calls, seed):
    """Runs the calls in turn over the kernels and prints the counts as JSON."""
    rng, counts = random.Random(seed), {name: collections.Counter() for name in KERNELS}
    torch.set_num_threads(2)
    _linear.pays, _linear._MIN_PRODUCTS, _linear._MIN_TOKENS, _linear._MIN_OUTPUTS = (lambda: True), 0, 0, 1
    others = [name for name in KERNELS if name != "linear"]
    for i in range(calls):
        name = others[i % len(others)]
        call(name, rng, counts[name])
    draws = random.Random(seed)  # of its own: the calls of the others stay what they were
    for _ in range(calls // len(others)):
        call("linear", draws, counts["linear"])
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
