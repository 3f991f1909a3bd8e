"""
How five models remember
========================

One call measures a model, one names the law by which its memory fades.

An untrained LSTM and GRU forget within tens of steps, at a rate that one exponential describes. S4D remembers so long
that a thousand steps do not show its law: the fit says "undecided", and its eigenvalues say what comes after. A power
law, built as a convolution, is told apart from all of them; an integrator never forgets.
("Inverse Approximation Theory", Def. 3.1; "State-space Models with Layer-wise Nonlinearity", Fig. 5 and 6.)
"""

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import holdfast


def power_law(x):
    """y_t = sum_s (1 + s)^-1.5 x_(t-s), by FFT."""
    steps = x.shape[1]
    rho = holdfast.laws.PowerLaw(1.5)(torch.arange(steps, dtype=x.dtype)).view(1, -1, 1)
    size = 2 * steps
    return torch.fft.irfft(torch.fft.rfft(x, size, dim=1) * torch.fft.rfft(rho, size, dim=1), size, dim=1)[:, :steps]


def models():
    torch.manual_seed(0)
    return {
        "LSTM, 32 units": nn.LSTM(1, 32, batch_first=True),
        "GRU, 32 units": nn.GRU(1, 32, batch_first=True),
        "S4D, 64 modes": holdfast.nn.S4D(1, 64),
        "power law": power_law,
        "integrator": lambda x: x.cumsum(1),
    }


def row(name, model):
    double = {"double": True} if isinstance(model, nn.Module) else {"dtype": torch.float64}
    curve = holdfast.memory_function(model, horizon=1000, **double)
    fit = holdfast.fit_decay(curve)
    constant = fit.rate if fit.law == "exponential" else fit.exponent
    try:
        horizon = f"{fit.horizon(0.01):.4g}"
    except holdfast.HoldfastError:
        horizon = "beyond 1000"
    ultimate = "" if fit.asymptotic is None else f"{fit.asymptotic.law}, {fit.asymptotic.rate:.3g}"
    return name, fit.law, "" if constant is None else f"{constant:.3g}", horizon, ultimate


def main():
    table = Table(title="Memory over 1000 steps, measured by a Heaviside input")
    for column in ("model", "law", "rate or exponent", "1% left after", "for t -> inf, by eigenvalues"):
        table.add_column(column)
    for name, model in models().items():
        table.add_row(*row(name, model))
    console = Console(width=120)
    console.print(table)
    properties = holdfast.check_properties(models()["GRU, 32 units"], input_size=1, horizon=200)
    console.print(
        "The GRU as a functional: " + ", ".join(f"{k} {v['answer']}" for k, v in properties.as_dict().items())
    )


if __name__ == "__main__":
    main()
