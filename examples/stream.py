"""
A stream, one sample at a time
==============================

You learn: how to run any layer one step at a time, with the same results as in one pass.
Run time: about 5 s of CPU time, one thread.

A stack of recurrent layers reads a signal sample by sample, in pieces of any length, or at once. The outputs are the same,
and only one small state is kept between two samples, however long the stream is.
"""

import argparse

import torch

from holdfast.nn import SequenceModel


def in_pieces(model, x, size):
    """The outputs of a stream that arrives `size` samples at a time, and the last state."""
    outputs, state = [], None
    for piece in x.split(size, dim=1):
        if size == 1:
            y, state = model.step(piece[:, 0], state)
            outputs.append(y[:, None])
        else:
            y, state = model(piece, state)
            outputs.append(y)
    return torch.cat(outputs, 1), state


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2000)
    samples = parser.parse_args().samples
    torch.manual_seed(0)
    x = torch.sin(torch.arange(samples) / 20)[None, :, None] + 0.1 * torch.randn(1, samples, 1)
    print(f"{samples} samples; largest difference to one pass over all of them, and what is kept between two pieces")
    for layer in ("s4d", "lru", "selective"):
        model = SequenceModel(1, 16, depth=2, layer=layer, state_size=16).eval()
        with torch.no_grad():
            whole, _ = model(x)
            for size in (1, 64, 500):
                y, state = in_pieces(model, x, size)
                kept = sum(part.nbytes for part in state)
                print(f"{layer:10s} pieces of {size:3d}: {float((y - whole).abs().max()):.1e}, {kept} bytes")


if __name__ == "__main__":
    main()
