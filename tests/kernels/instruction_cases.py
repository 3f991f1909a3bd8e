"""A training step of every kernel at one small shape, for `count_instructions.py`."""

import torch

from holdfast.kernels import _linear, causal_conv, gate, gru, lru, lstm, rnn, s4d, scan, selective
from holdfast.kernels.gated._reference import Weights
from holdfast.kernels.gated._step import PackedCells
from holdfast.kernels.s4d import s4d_step
from holdfast.nn._delta_rule import delta_rule

BATCH, TIME, WIDTH, STATES = 4, 96, 16, 16


def normal(*shape):
    return torch.randn(*shape)


def trained(function, *arguments, **options):
    """A step of `function` with gradients to every argument."""
    leaves = [x.requires_grad_() for x in arguments]
    y = function(*leaves, **options)
    y = y[0] if isinstance(y, tuple) else y
    torch.autograd.grad(y, leaves, torch.ones_like(y))


def sequence():
    return normal(BATCH, TIME, WIDTH)


def linear(*_):
    trained(scan, torch.sigmoid(sequence()), sequence())


def linear_complex(*_):
    trained(scan, torch.polar(torch.sigmoid(sequence()), sequence()), torch.complex(sequence(), sequence()))


def by_modes(algorithm):
    def step(*_):
        shape = (WIDTH, STATES // 2)
        rates = [torch.full((WIDTH,), 0.01), -normal(*shape).abs(), normal(*shape)]
        trained(s4d, sequence(), *rates, normal(*shape), normal(*shape), normal(WIDTH), algorithm=algorithm)

    return step


def by_units(*_):
    lam = torch.full((STATES,), 0.9), torch.full((STATES,), 0.1)
    trained(lru, sequence(), *lam, normal(2 * STATES, WIDTH), normal(WIDTH, 2 * STATES), normal(WIDTH))


def plain_rnn(*_):
    trained(rnn, sequence(), 0.2 * normal(STATES, STATES), normal(STATES, WIDTH), normal(STATES))


def gated(function, gates):
    def step(*_):
        rows = gates * STATES
        weights = 0.2 * normal(rows, WIDTH), 0.2 * normal(rows, STATES), normal(rows), normal(rows)
        trained(lambda x, *weights: function(x, weights), sequence(), *weights)

    return step


def gated_product(*_):
    trained(gate, sequence(), sequence(), normal(2 * WIDTH, WIDTH), normal(2 * WIDTH))


def product(*_):
    """By hand: which of the two products runs depends on the CPU."""
    x, weight, bias = sequence(), normal(3 * WIDTH, WIDTH), normal(3 * WIDTH)
    _linear.gradients(x, weight, _linear.forward(x, weight, bias), tuple(weight.shape), (True, True, True))


def by_inputs(*_):
    steps, weights = (torch.sigmoid(sequence()), -normal(WIDTH, STATES).abs()), (BATCH, TIME, STATES)
    trained(selective, sequence(), *steps, normal(*weights), normal(*weights), normal(WIDTH))


def convolution(*_):
    trained(causal_conv, sequence(), normal(WIDTH, 4), normal(WIDTH), silu=True)


def corrected(*_):
    sequences, widths = (BATCH, TIME, 1), (WIDTH, WIDTH, STATES)
    gates = -torch.rand(sequences), torch.rand(sequences)
    values = [normal(*sequences, width) for width in widths]
    trained(delta_rule, *values, *gates, normal(BATCH, 1, WIDTH, STATES), normalize=True)


def streamed_modes(*_):
    weights = torch.complex(normal(WIDTH, STATES), normal(WIDTH, STATES))
    with torch.no_grad():
        s4d_step(
            normal(BATCH, WIDTH),
            normal(BATCH, WIDTH, STATES, 2),
            weights,
            weights,
            normal(WIDTH, STATES, 2),
            normal(WIDTH),
        )


def streamed_cells(call):
    """By hand: a stream's steps do not go through `call`."""
    layer = Weights(normal(4 * STATES, WIDTH), normal(4 * STATES, STATES), normal(4 * STATES), normal(4 * STATES))
    cells, h = PackedCells("lstm", [layer]), normal(1, BATCH, STATES)
    call(
        "gated_step", "gated_step", torch.float32, kind=0, features=WIDTH, state=STATES, layers=1, weights=cells._weights,
        batch=BATCH, x=normal(BATCH, WIDTH), h=h, c=h.clone(), y=h[0].clone(), h_next=h.clone(), c_next=h.clone(),
    )  # fmt: skip


CASES = {
    "scan": linear,
    "complex scan": linear_complex,
    "S4D by scan": by_modes("scan"),
    "S4D by FFT": by_modes("fft"),
    "LRU": by_units,
    "RNN": plain_rnn,
    "LSTM": gated(lstm, 4),
    "GRU": gated(gru, 3),
    "gate": gated_product,
    "linear": product,
    "selective scan": by_inputs,
    "causal convolution": convolution,
    "gated delta rule": corrected,
    "S4D step": streamed_modes,
    "LSTM step": streamed_cells,
}
