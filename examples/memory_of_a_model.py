"""
How five models remember
========================

You learn: how to measure memory, and what exponential, undecided, power-law and non-decaying curves look like.
Run time: about 5 s of CPU time, one thread.

One call measures the memory of a model, a second one names its decay law.

An untrained LSTM and GRU forget exponentially, within tens of steps. S4D remembers so long that a thousand steps do not
show its law: the fit is "undecided", and the eigenvalues give the law for longer times. A power law, built as a
convolution, is distinguished from an exponential; an integrator never forgets.
("Inverse Approximation Theory", Def. 3.1; "State-space Models with Layer-wise Nonlinearity", Fig. 5 and 6.)
"""

# %%
# A model is a module or a function from (batch, time, features) to (batch, time, outputs).
import matplotlib.pyplot as plt
import torch
from torch import nn

import holdfast


def power_law(x):
    """y_t = sum_s (1 + s)^-1.5 x_(t-s), by FFT."""
    steps = x.shape[1]
    rho = holdfast.laws.PowerLaw(1.5)(torch.arange(steps, dtype=x.dtype)).view(1, -1, 1)
    size = 2 * steps
    return torch.fft.irfft(torch.fft.rfft(x, size, dim=1) * torch.fft.rfft(rho, size, dim=1), size, dim=1)[:, :steps]


torch.manual_seed(0)
models = {
    "LSTM": nn.LSTM(1, 32, batch_first=True),
    "GRU": nn.GRU(1, 32, batch_first=True),
    "S4D": holdfast.nn.S4D(1, 64),
    "power law": power_law,
    "integrator": lambda x: x.cumsum(1),
}

# %%
# The memory function over a thousand steps, in float64, and the law that it shows.
fits = {}
for name, model in models.items():
    precise = {"double": True} if isinstance(model, nn.Module) else {"run": holdfast.memory.Run(dtype=torch.float64)}
    fits[name] = holdfast.fit_decay(holdfast.memory_function(model, horizon=1000, **precise))
    print(f"{name:11s}{fits[name].summary()}")

# %%
# Steps until 1% is left; if the curve is too short to show that, there is an error.
for name, fit in fits.items():
    try:
        print(f"{name:11s}1% is left after {fit.horizon(0.01):.0f} steps")
    except holdfast.HoldfastError as error:
        print(f"{name:11s}{error}")

# %%
# On these axes a power of t is a straight line; an exponential bends down.
for name, fit in fits.items():
    plt.loglog(fit.time + 1, fit.envelope / fit.envelope[0], label=name)
plt.xlabel("1 + steps since the input")
plt.ylabel("memory, share of its largest")
plt.ylim(1e-8, 2)
plt.legend()

# %%
# Properties of the model as a function of its whole past: linear, continuous, causal, ...
properties = holdfast.check_properties(models["GRU"], input_size=1, horizon=200)
print("The GRU:", ", ".join(f"{name} {found['answer']}" for name, found in properties.to_dict().items()))
