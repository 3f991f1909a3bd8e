"""
Eight architectures, one measurement
====================================

You learn: how long nine untrained models remember. Run time: about 9 s of CPU time, one thread.

RNN, GRU and LSTM forget within tens of steps. Mamba and RWKV depend mostly on the last few inputs, S4D and LRU remember
for hundreds, attention forgets like a power of t. A ninth is built for (1 + t)^-1.5. ("State-space Models ...", Table 1.)
"""

import argparse

import matplotlib.pyplot as plt
import torch
import transformers  # the extra `hf`
from torch import nn

import holdfast

RWKV = transformers.RwkvConfig(vocab_size=2, hidden_size=16, num_hidden_layers=2, context_length=4096)


class Transformer(nn.TransformerEncoderLayer):  # noqa: D101 - causal, without positions
    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return super().forward(x, src_mask=mask, is_causal=True)


def on_numbers(layer):
    return nn.Sequential(nn.Linear(1, 16), layer, nn.Linear(16, 1))


def models():
    """Eight untrained models, and one with a given memory."""
    torch.manual_seed(0)
    return {
        "RNN": nn.RNN(1, 32, batch_first=True),
        "GRU": nn.GRU(1, 32, batch_first=True),
        "LSTM": nn.LSTM(1, 32, batch_first=True),
        "S4D": holdfast.nn.S4D(1, 32),
        "LRU": holdfast.nn.LRU(1, 32, r_min=0.9, r_max=0.99),
        "Mamba": holdfast.nn.SequenceModel(1, 16, layer=lambda width: holdfast.nn.Mamba(width, 16), depth=1),
        "RWKV": on_numbers(holdfast.memory.huggingface.FromEmbeddings(transformers.RwkvModel(RWKV).eval())),
        "transformer": on_numbers(Transformer(16, 2, 32, dropout=0.0, batch_first=True)),
        "built": holdfast.fit_exponential_sum(holdfast.laws.PowerLaw(1.5), order=16).to_layer("best"),
    }


def draw(fits):
    """The largest memory from each time on, as a share of all, and as dashes the law that was found."""
    _, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, fit in fits.items():
        label = f"{name}: {fit.law}" + (", {} {:.2g}".format(*fit.constant) if fit.constant else "")
        (line,) = ax.loglog(fit.time + 1, fit.envelope / fit.envelope[0], label=label)
        if fit.law in ("exponential", "polynomial"):
            law = fit.figure().panels[0].layers[1]
            scale = fit.envelope[fit.time == law.x[-1]] / law.y[-1] / fit.envelope[0]  # through the last point judged
            ax.loglog(law.x + 1, law.y * scale, "--", color=line.get_color(), lw=3, alpha=0.4)
    ax.set(ylim=(1e-6, 2), xlabel="1 + steps since the input", ylabel="memory, share of its largest")
    ax.legend(frameon=False, fontsize=8, loc="lower left")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizon", type=int, default=400)
    parser.add_argument("--save", help="draw four of the curves into this file")
    choices = parser.parse_args()
    fits = {}
    for name, model in models().items():
        fit = fits[name] = holdfast.fit_decay(holdfast.memory_function(model, horizon=choices.horizon, double=True))
        left = f"{fit.envelope[-1] / fit.envelope[0]:8.1e} of the largest memory after {choices.horizon} steps"
        print(f"{name:12s} {fit.law:13s} {left}")
    draw({name: fits[name] for name in (("RNN", "LSTM", "S4D", "built") if choices.save else fits)})
    if choices.save:
        plt.savefig(choices.save, dpi=110)


if __name__ == "__main__":
    main()
