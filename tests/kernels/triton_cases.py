"""Runs Triton kernels in the interpreter against the float64 references; prints [case, worst relative error] as JSON lines.

`python triton_cases.py quick` runs the cases of `make test`, `all` the full grid, `all bfloat16` those with this word in
their name. A process of its own: kernels are made for the interpreter, or for a GPU, when their module is imported.
"""

import copy
import itertools
import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch

from holdfast import nn
from holdfast.kernels import causal_conv, gate, gru, lru, lstm, rnn
from holdfast.kernels._common import gpu
from holdfast.kernels.causal_conv import _triton as conv_launches
from holdfast.kernels.gate import _triton as gate_launches
from holdfast.kernels.gate._reference import gate_reference
from holdfast.kernels.lru import _triton as lru_launches
from holdfast.kernels.scan import _triton as scan
from holdfast.kernels.scan import scan_reference
from holdfast.kernels.selective import _triton as selective
from holdfast.kernels.selective._reference import selective_reference

ROWS = 2


def worst(pairs):
    """The largest error relative to the largest number of each reference; infinite where anything is not finite."""
    errors = [((x.to(y.dtype) - y).abs().max() / y.abs().max().clamp(min=1e-30)).item() for x, y in pairs if y.numel()]
    return max(e if e == e else float("inf") for e in errors)


def small_tiles(segments, rows=ROWS):
    """Shrinks blocks of time, so that few steps, which the interpreter can run, fill several of them."""
    scan._UNROLL, scan._MIN_SEGMENT_STEPS = {1: 2, 2: 2}, 4
    selective.KEEP, selective._MIN_SEGMENT_STEPS = 4, 4
    # 16 is the least that tl.dot takes
    lru_launches.SCAN_TILE.update(STEPS=16, CHANNELS=16)
    lru_launches.DIRECT_TILE.update(TOKENS=16, FEATURES=16, INNER=16)
    lru_launches._SCANS_PER_PROGRAM = lru_launches._MIN_SEGMENT_TILES = 1
    gpu.programs = lambda device: rows * segments


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype)


def planar(x):
    return None if x is None else torch.cat((x.real, x.imag), -1)


def cut(resets, a, h0, reverse):
    """Factors of zero where the state is reset: the same recurrence for states that are finite."""
    return a if resets is None else torch.where(resets.unsqueeze(-1), 0, a)


def scan_case(kind, varying, reverse, extras, segments, time=13, channels=5, dtype=torch.float32):
    """Values and all gradients of the scan; `kind` is real, complex or planar, `extras` of h, l, r: h0, lengths, resets."""
    small_tiles(segments)
    number = torch.float32 if kind == "real" else torch.complex64
    a = torch.rand(ROWS if varying else 1, time if varying else 1, channels).to(number) * 0.95
    if kind != "real":
        a = a * torch.exp(6.3j * torch.rand(a.shape))
    b, g, last_g = (
        draw(ROWS, time, channels, dtype=number),
        draw(ROWS, time, channels, dtype=number),
        draw(ROWS, channels, dtype=number),
    )
    if dtype != torch.float32:
        b, g = b.to(dtype), g.to(dtype)
    h0 = draw(ROWS, channels, dtype=number) if "h" in extras else None
    lengths = torch.tensor([time, time * 2 // 3]) if "l" in extras else None
    resets = torch.rand(ROWS, time) < 0.2 if "r" in extras else None
    turn = planar if kind == "planar" else lambda x: x
    back = (lambda x: torch.complex(*x.chunk(2, -1))) if kind == "planar" else lambda x: x
    flags = (lengths, resets)
    h, last = torch.ops.holdfast.scan_triton_forward(turn(a), turn(b), turn(h0), *flags, reverse, kind == "planar")
    ours = torch.ops.holdfast.scan_triton_backward(
        turn(a), h, turn(h0), *flags, turn(g), turn(last_g), reverse, kind == "planar", True, True
    )
    wide = torch.float64 if kind == "real" else torch.complex128
    leaves = [x.to(wide).requires_grad_() for x in (a, b, h0) if x is not None]
    factors = cut(resets, leaves[0].expand(b.shape), h0, reverse)
    true, true_last = scan_reference(factors, leaves[1], *leaves[2:], reverse=reverse, lengths=lengths)
    theirs = torch.autograd.grad((true, true_last), leaves, (g.to(wide), last_g.to(wide)))
    grads = [back(ours[0]).sum_to_size(a.shape), back(ours[1]), back(ours[2])][: len(leaves)]
    return worst([(back(h), true), (back(last), true_last), *zip(grads, theirs, strict=True)])


def lru_case(kind, reverse, extras, segments, time=21, channels=5, features=3, dtype=torch.float32):
    """Outputs, final state and all gradients; `extras` of h, l, r, d: h0, lengths, resets, a direct path.

    Resets are checked against the pieces that they cut a row into, which the reference runs one after another.
    """
    small_tiles(segments, ROWS * -(-channels // 16))
    planar = channels * (2 if kind == "planar" else 1)
    outputs = features if "d" in extras else features + 1
    modulus, phase = 0.5 + 0.49 * torch.rand(channels), 6.3 * torch.rand(channels)
    lam = (modulus * torch.cos(phase), modulus * torch.sin(phase)) if kind == "planar" else (modulus, None)
    weights = [*lam, draw(planar, features), draw(outputs, planar), draw(features) if "d" in extras else None]
    u, g, last_g = draw(ROWS, time, features).to(dtype), draw(ROWS, time, outputs).to(dtype), draw(ROWS, planar)
    h0 = draw(ROWS, planar) if "h" in extras else None
    lengths = torch.tensor([time, time * 2 // 3]) if "l" in extras else None
    resets = torch.rand(ROWS, time) < 0.2 if "r" in extras else None
    results = []
    for wide in (False, True):
        given = [None if t is None else (t.double() if wide else t).requires_grad_() for t in (u, *weights, h0)]
        how = {"lengths": lengths, "reverse": reverse}
        if not wide:
            y, last = lru(*given, resets=resets, backend="triton", **how)
        else:
            y, last = lru(*given, resets=resets, backend="reference", **how)
        loss = (y * g.to(y.dtype)).sum().to(last.dtype) + (last * last_g.to(last.dtype)).sum()
        leaves = [t for t in given if t is not None]
        # a reset before the first step leaves h0 out of the reference's graph
        grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        results.append([y.detach(), last.detach(), *grads])
    return worst(list(zip(*results, strict=True)))


def selective_case(gated, groups, reverse, extras, segments, time=13, channels=6, states=3, dtype=torch.float32):
    """Values and all gradients of Mamba's scan; with `gated` all optional arguments and softplus, else none of them."""
    small_tiles(segments, ROWS * groups * 2)
    selective.layout = lambda backward, states, warp=32: (4, 2, 1)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    u, dt, z, g = (draw(ROWS, time, channels).to(dtype) for _ in range(4))
    dt = dt if gated else dt.abs()
    A, B, C = (
        -3 * torch.rand(channels, states).to(wide),
        *(draw(ROWS, time, groups, states).to(dtype) for _ in range(2)),
    )
    D, bias, z = (draw(channels).to(wide), draw(channels).to(wide), z) if gated else (None, None, None)
    h0, last_g = (draw(ROWS, channels, states).to(wide) if "h" in extras else None for _ in range(2))
    lengths = torch.tensor([time, time * 2 // 3]) if "l" in extras else None
    resets = torch.rand(ROWS, time) < 0.2 if "r" in extras else None
    inputs = (u, dt, A, B, C, D, z, bias, h0)
    flags = (lengths, resets, gated, reverse)
    y, last, kept = torch.ops.holdfast.selective_triton_forward(*inputs, *flags, True)
    ours = torch.ops.holdfast.selective_triton_backward(*inputs, *flags, kept, g, last_g)
    leaves = [None if x is None else x.double().requires_grad_() for x in inputs]
    true, true_last = selective_reference(
        *leaves[:6], z=leaves[6], dt_bias=leaves[7], dt_softplus=gated, h0=leaves[8], lengths=lengths, resets=resets,
        reverse=reverse,
    )  # fmt: skip
    outputs = (g.double(), torch.zeros_like(true_last) if last_g is None else last_g.double())
    wanted = [x for x in leaves if x is not None]
    theirs = torch.autograd.grad((true, true_last), wanted, outputs)
    grads = [x for x, leaf in zip(ours, leaves, strict=True) if leaf is not None]
    return worst([(y, true), (last, true_last), *zip(grads, theirs, strict=True)])


def conv_case(silu, extras, time=7, channels=5, taps=4):
    """The causal convolution: outputs, final state and all gradients; `extras` of s, b, l, r: state, bias, lengths, resets.

    With resets the reference runs the pieces that they cut a row into.
    """
    conv_launches._STEPS, conv_launches._CHANNELS = 4, 4
    x, weight, g = draw(ROWS, time, channels), draw(channels, taps), draw(ROWS, time, channels)
    bias = draw(channels) if "b" in extras else None
    state = draw(ROWS, channels, taps - 1) if "s" in extras else None
    lengths = torch.tensor([time, time * 2 // 3]) if "l" in extras else None
    resets = torch.rand(ROWS, time) < 0.3 if "r" in extras else None
    results = []
    for dtype, backend in ((torch.float32, "triton"), (torch.float64, "reference")):
        given = [None if t is None else t.to(dtype).requires_grad_() for t in (x, weight, bias, state)]
        y, last = causal_conv(*given, silu=silu, lengths=lengths, resets=resets, backend=backend)
        leaves = [t for t in given if t is not None]
        loss = (y * g.to(dtype)).sum() + last.square().sum()
        grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        results.append([y.detach(), last.detach(), *grads])
    return worst(list(zip(*results, strict=True)))


def rnn_case(activation, extras, time=5, states=3, rows=ROWS, reverse=False):
    """States, final state and all gradients; `extras` of h, l, e, d: h0, lengths, Euler steps of one size, or of many."""
    x, w, u, b = draw(rows, time, 2), draw(states, states), draw(states, 2), draw(states)
    w, g, last_g = 0.5 * w / states**0.5, draw(rows, time, states), draw(rows, states)
    h0 = draw(rows, states) if "h" in extras else None
    dt = 0.3 if "e" in extras else 0.1 + torch.rand(rows, time) if "d" in extras else None
    lengths = torch.arange(1, rows + 1) * time // rows if "l" in extras else None
    results = []
    for dtype, backend in ((torch.float32, "triton"), (torch.float64, "reference")):
        given = [t.to(dtype).requires_grad_() if isinstance(t, torch.Tensor) else t for t in (x, w, u, b, h0, dt)]
        how = {"dt": given[5], "activation": activation, "lengths": lengths, "reverse": reverse}
        h, last = rnn(*given[:5], **how, backend=backend)
        leaves = [t for t in given if isinstance(t, torch.Tensor)]
        loss = (h * g.to(dtype)).sum() + (last * last_g.to(dtype)).sum()
        results.append([h.detach(), last.detach(), *torch.autograd.grad(loss, leaves)])
    return worst(list(zip(*results, strict=True)))


def gated_case(kind, extras, time=4, states=3, rows=ROWS, reverse=False):
    """States, last ones and all gradients of LSTM and GRU; `extras` of h, l, b: first states, lengths, biases."""
    gates = 4 if kind is lstm else 3
    x, lengths = draw(rows, time, 2), torch.arange(1, rows + 1) * time // rows if "l" in extras else None
    weights = [draw(gates * states, 2), draw(gates * states, states) / states**0.5]
    weights += [draw(gates * states) for _ in range(2)] if "b" in extras else []
    starts = [draw(rows, states) for _ in range(gates - 2)] if "h" in extras else []
    results = []
    for dtype, backend in ((torch.float32, "triton"), (torch.float64, "reference")):
        given, own, first = (
            [t.to(dtype).requires_grad_() for t in some] for some in ([x], weights, starts[: gates - 2])
        )
        first = first if kind is lstm else first[:1]
        outputs = kind(*given, tuple(own), *first, lengths=lengths, reverse=reverse, backend=backend)
        loss = sum((y * (1 + torch.arange(y.numel()).view(y.shape) % 5)).sum() for y in outputs)
        results.append([*(y.detach() for y in outputs), *torch.autograd.grad(loss, [*given, *own, *first])])
    return worst(list(zip(*results, strict=True)))


def gate_case(tokens=5, width=3, dtype=torch.float32):
    """The gated residual and all gradients."""
    os.environ["HOLDFAST_TRITON"] = "interpret"
    gate_launches.TILE.update(TOKENS=16, FEATURES=16, INNER=16)
    given = [draw(1, tokens, width), draw(1, tokens, width), draw(2 * width, width) / width**0.5, draw(2 * width)]
    given, g = [t.to(dtype) for t in given], draw(1, tokens, width).to(dtype)
    results = []
    for kind, run in ((dtype, gate), (torch.float64, gate_reference)):
        leaves = [t.to(kind).requires_grad_() for t in given]
        out = run(*leaves)
        results.append([out.detach(), *torch.autograd.grad(out, leaves, g.to(kind))])
    return worst(list(zip(*results, strict=True)))


def layer_case(name, make, segments=2, time=9, **call):
    """A layer on the Triton kernels against its float64 twin on torch's own operators: output and all gradients."""
    small_tiles(segments)
    layer = make()
    twin = copy.deepcopy(layer).double()
    x, start = draw(ROWS, time, layer.features), None
    results = []
    for model, dtype, backend in ((layer, torch.float32, "interpret"), (twin, torch.float64, "off")):
        os.environ["HOLDFAST_TRITON"] = backend
        given = x.to(dtype).requires_grad_()
        torch.manual_seed(1)
        y, last = model(given, start, **call)
        last = last[-1] if isinstance(last, tuple) else last
        g = torch.ones(()) + torch.arange(y.numel()).view(y.shape) % 7
        loss = (y * g.to(dtype)).sum() + last.square().sum()
        leaves = [given, *model.parameters()]
        results.append(
            [y.detach(), *(t for t in torch.autograd.grad(loss, leaves, allow_unused=True) if t is not None)]
        )
    os.environ["HOLDFAST_TRITON"] = "interpret"  # for the cases after this one
    return worst(list(zip(*results, strict=True)))


def two_lengths(time=9):
    return {"lengths": torch.tensor([time, time // 2])}


def half_case(make, dtype, time=9, **call):
    """A layer on inputs in half precision, as it takes them on a GPU, against its float64 twin on the same numbers."""
    small_tiles(2)
    layer = make()
    twin = copy.deepcopy(layer).double()
    x, results = draw(ROWS, time, layer.features).to(dtype), []
    for model, given, backend in ((layer, x, "interpret"), (twin, x.double(), "off")):
        os.environ["HOLDFAST_TRITON"] = backend
        leaf = given.clone().requires_grad_()
        y, last = model(leaf, **call)
        assert backend == "off" or (y.dtype, last.dtype) == (dtype, torch.float32)
        results.append([y.detach(), last.detach(), torch.autograd.grad(y.double().square().sum(), leaf)[0]])
    os.environ["HOLDFAST_TRITON"] = "interpret"
    return worst(list(zip(*results, strict=True)))


QUICK = {
    "causal_conv with everything": lambda: conv_case(True, "sbl"),
    "layer LRU": lambda: layer_case("LRU", lambda: nn.LRU(3, 4), **two_lengths()),
    "layer S4D": lambda: layer_case("S4D", lambda: nn.S4D(2, 4), time=70),
    "layer SelectiveSSM": lambda: layer_case("SelectiveSSM", lambda: nn.SelectiveSSM(4, 3), time=6, **two_lengths(6)),
    "layer Mamba2": lambda: layer_case("Mamba2", lambda: nn.Mamba2(4, 4, head_size=4), time=70),
    "rnn with lengths and steps of many sizes": lambda: rnn_case("tanh", "hld", time=4),
    "gate": lambda: gate_case(tokens=17),
    "lstm with everything": lambda: gated_case(lstm, "hlb"),
    "gru with everything": lambda: gated_case(gru, "hlb"),
    "layer ContinuousGRU": lambda: layer_case(
        "ContinuousGRU", lambda: nn.ContinuousGRU(3, 4), time=5, **two_lengths(5)
    ),
    "bfloat16 in a layer, LRU": lambda: half_case(lambda: nn.LRU(3, 4), torch.bfloat16, time=5),
    "scan real varying, several segments, h0 and lengths": lambda: scan_case("real", True, False, "hl", 3, time=9),
    "scan complex varying in reverse, resets": lambda: scan_case("complex", True, True, "hr", 1, time=7),
    "lru planar, several segments, everything": lambda: lru_case("planar", False, "hlrd", 3, time=50),
    "scan planar constant in reverse, segments and resets": lambda: scan_case("planar", False, True, "hr", 3, time=9),
    "scan bfloat16": lambda: scan_case("real", False, False, "h", 1, time=5, dtype=torch.bfloat16),
    "scan of 1 step, 1 channel": lambda: scan_case("real", True, False, "h", 1, time=1, channels=1),
    "selective with everything, segments": lambda: selective_case(True, 1, False, "hl", 2, time=9),
    "selective plain in reverse, groups and resets": lambda: selective_case(False, 2, True, "r", 1, time=6),
}

ALL = {
    **QUICK,
    "causal_conv with resets": lambda: conv_case(True, "sbr"),
    "causal_conv with resets and lengths": lambda: conv_case(False, "sblr", time=13),
    "causal_conv plain": lambda: conv_case(False, ""),
    "causal_conv of 1 step": lambda: conv_case(True, "sb", time=1, channels=1),
    "causal_conv of 1 tap": lambda: conv_case(True, "b", taps=1),
    "causal_conv of 65 steps": lambda: conv_case(True, "b", time=65, channels=130, taps=2),
    "layer DiagonalSSM": lambda: layer_case("DiagonalSSM", lambda: nn.DiagonalSSM(3, 4)),
    "layer LRU in both directions": lambda: layer_case(
        "LRU", lambda: nn.LRU(3, 4, bidirectional=True), **two_lengths()
    ),
    "layer S4D with lengths": lambda: layer_case("S4D", lambda: nn.S4D(2, 4), time=70, **two_lengths(70)),
    "layer Mamba": lambda: layer_case("Mamba", lambda: nn.Mamba(4, 3)),
    "layer LinearRNN, diagonal": lambda: layer_case("LinearRNN", lambda: nn.LinearRNN(3, 4, structure="diagonal")),
}
for _kind, _varying, _reverse, _extras, _segments in itertools.product(
    ("real", "complex", "planar"), (True, False), (False, True), ("", "hl", "hr"), (1, 4)
):
    ALL[f"scan {_kind} varying={_varying} reverse={_reverse} {_extras} segments={_segments}"] = (
        lambda case=(_kind, _varying, _reverse, _extras, _segments): scan_case(*case)
    )
for _time, _channels in ((1, 1), (2, 130), (63, 1), (65, 5)):
    ALL[f"scan of {_time} steps, {_channels} channels"] = lambda size=(_time, _channels): scan_case(
        "complex", True, False, "hl", 4, *size
    )
    ALL[f"selective of {_time} steps, {_channels} channels"] = lambda size=(_time, _channels): selective_case(
        True, 1, False, "h", 2, *size
    )
for _kind, _reverse, _extras, _segments in (
    *itertools.product(("planar",), (False, True), ("", "hld", "hrd", "lr"), (1, 3)),
    *itertools.product(("real",), (False, True), ("hlrd",), (1, 3)),
):
    ALL[f"lru {_kind} reverse={_reverse} {_extras} segments={_segments}"] = (
        lambda case=(_kind, _reverse, _extras, _segments): lru_case(*case, time=40 if case[-1] > 1 else 21)
    )
for _time, _channels in ((1, 1), (2, 130), (63, 1), (65, 5), (65, 130)):
    ALL[f"lru of {_time} steps, {_channels} channels"] = lambda size=(_time, _channels): lru_case(
        "planar", False, "hld", 2, *size, features=17
    )
for _dtype in (torch.bfloat16, torch.float16):
    ALL[f"lru {_dtype}".replace("torch.", "")] = lambda dtype=_dtype: lru_case("planar", True, "hld", 2, dtype=dtype)
for _activation, _extras, _reverse in itertools.product(
    ("tanh", "relu", "hardtanh", "sigmoid", "linear"), ("", "hl", "hle", "hld"), (False, True)
):
    ALL[f"rnn {_activation} {_extras} reverse={_reverse}"] = lambda case=(_activation, _extras), reverse=_reverse: (
        rnn_case(*case, reverse=reverse)
    )
for _name, _make in {
    "DiagonalSSM": lambda: nn.DiagonalSSM(3, 4),
    "LRU": lambda: nn.LRU(3, 4, bidirectional=True),
    "SelectiveSSM": lambda: nn.SelectiveSSM(4, 3),
    "LinearRNN, diagonal": lambda: nn.LinearRNN(3, 4, structure="diagonal"),
    "MinGRU": lambda: nn.MinGRU(3, 4),
    "MinLSTM": lambda: nn.MinLSTM(3, 4),
    "RGLRU": lambda: nn.RGLRU(4, 4),
    "Mamba": lambda: nn.Mamba(4, 3, bidirectional=True),
    "Mamba2": lambda: nn.Mamba2(4, 4, head_size=4),
    "S4D": lambda: nn.S4D(2, 4, bidirectional=True),
}.items():
    ALL[f"layer {_name} with resets"] = lambda name=_name, make=_make: layer_case(
        name, make, time=7, resets=torch.rand(ROWS, 7) < 0.3, **two_lengths(7)
    )
for _steps, _rate in ((21, 0.1), (16, 0.5), (17, 0.1)):
    ALL[f"layer S4D of {_steps} steps with resets"] = lambda time=_steps, rate=_rate: layer_case(
        "S4D", lambda: nn.S4D(2, 4), time=time, resets=torch.rand(ROWS, time) < rate
    )
ALL["layer Mamba2 of 70 steps with resets"] = lambda: layer_case(
    "Mamba2", lambda: nn.Mamba2(4, 4, head_size=4), time=70, resets=torch.rand(ROWS, 70) < 0.05, **two_lengths(70)
)
for _kind, _extras, _reverse in itertools.product((lstm, gru), ("", "hb", "hlb"), (False, True)):
    ALL[f"{_kind.__name__} {_extras} reverse={_reverse}"] = lambda case=(_kind, _extras), reverse=_reverse: gated_case(
        *case, reverse=reverse
    )
ALL["layer ContinuousGRU with steps of many sizes"] = lambda: layer_case(
    "ContinuousGRU", lambda: nn.ContinuousGRU(3, 4, bidirectional=True), time=5, dt=0.1 + torch.rand(ROWS, 5)
)
for _tokens, _width in ((1, 1), (63, 17), (65, 130)):
    ALL[f"gate of {_tokens} tokens, {_width} features"] = lambda size=(_tokens, _width): gate_case(*size)
ALL["gate bfloat16"] = lambda: gate_case(9, 5, torch.bfloat16)
for _time, _states, _rows in ((1, 1, 1), (2, 64, 3), (63, 2, 17), (65, 17, 2)):
    for _kind in (lstm, gru):
        ALL[f"{_kind.__name__} of {_time} steps, {_states} states, {_rows} rows"] = (
            lambda kind=_kind, size=(_time, _states, _rows): gated_case(kind, "hlb", *size)
        )
for _time, _states, _rows in ((1, 1, 1), (2, 128, 3), (63, 2, 17), (65, 17, 2)):
    ALL[f"rnn of {_time} steps, {_states} states, {_rows} rows"] = lambda size=(_time, _states, _rows): rnn_case(
        "tanh", "hl", *size
    )
for _name, _make in {
    "DiagonalSSM": lambda: nn.DiagonalSSM(3, 4),
    "LRU": lambda: nn.LRU(3, 4, out_features=2),
    "SelectiveSSM": lambda: nn.SelectiveSSM(4, 3),
    "Mamba": lambda: nn.Mamba(4, 3),
    "Mamba2": lambda: nn.Mamba2(4, 4, head_size=4),
    "LinearRNN": lambda: nn.LinearRNN(3, 4),
    "LinearRNN, diagonal": lambda: nn.LinearRNN(3, 4, structure="diagonal"),
    "ContinuousRNN": lambda: nn.ContinuousRNN(3, 4),
    "ContinuousGRU": lambda: nn.ContinuousGRU(3, 4),
    "S4D": lambda: nn.S4D(2, 4),
}.items():
    ALL[f"bfloat16 in a layer, {_name} with lengths"] = lambda make=_make: half_case(
        make, torch.bfloat16, **two_lengths()
    )
for _dtype in (torch.bfloat16, torch.float16):
    ALL[f"scan {_dtype}".replace("torch.", "")] = lambda dtype=_dtype: scan_case(
        "real", True, False, "hl", 2, dtype=dtype
    )
    ALL[f"selective {_dtype}".replace("torch.", "")] = lambda dtype=_dtype: selective_case(
        True, 1, False, "", 2, dtype=dtype
    )
for _groups, _reverse, _extras, _segments in itertools.product((1, 2), (False, True), ("", "hl", "hr"), (1, 3)):
    ALL[f"selective groups={_groups} reverse={_reverse} {_extras} segments={_segments}"] = (
        lambda case=(_groups, _reverse, _extras, _segments): selective_case(True, *case)
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, case in (QUICK if sys.argv[1] == "quick" else ALL).items():
        if len(sys.argv) > 2 and sys.argv[2] not in name:
            continue
        torch.manual_seed(0)
        print(json.dumps([name, case()]), flush=True)  # noqa: T201 - read by test_triton.py
