"""
Images rebuilt from the last state
==================================

You learn: when the last state of a linear recurrence determines a whole image, and when it does not.
Run time: about 20 s of CPU time, one thread.

The question is how much of the past the state of a linear recurrence keeps.

The recurrence x_k = Lam x_{k-1} + u_k reads each image as 784 pixels; then all pixels are computed from its last state.
Eigenvalues spread over the unit disk recover only the last rows; eigenvalues near the circle recover the whole image, the
784 roots of unity exactly. ("On the Universality of Linear Recurrences", Fig. 2-5.)
"""

import argparse

import torch
from sklearn.datasets import load_digits

from holdfast import data
from holdfast_papers import reconstruct

SIDE = 28
LENGTH = SIDE * SIDE
SHADES = " .:-=+*#%@"


def digits(count):
    """Test images of MNIST where they are at hand, else scikit-learn's digits, enlarged; rows of numbers in [0, 1]."""
    try:
        found = data.mnist("test", download=False)
        return found.sequences(torch.float64)[:count], found.source
    except data.MissingDataError:
        small = torch.tensor(load_digits().images[:count] / 16)[:, None]
        return torch.nn.functional.interpolate(small, SIDE).reshape(-1, LENGTH), "scikit-learn's digits (no MNIST here)"


def shown(*images):
    """Images as characters, side by side, every second row."""
    rows = [[image.reshape(SIDE, SIDE)[row].clamp(0, 1) for image in images] for row in range(0, SIDE, 2)]
    return "\n".join(" | ".join("".join(SHADES[int(9 * v)] for v in line) for line in row) for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000)
    images, source = digits(parser.parse_args().images)
    print(f"{len(images)} images of {source}, {LENGTH} pixels each; all pixels from the last state")
    choices = {
        "ring 0..1": reconstruct.ring_eigenvalues(LENGTH, 0.0),
        "ring 0.9..1": reconstruct.ring_eigenvalues(LENGTH, 0.9),
        "ring 0.99..1": reconstruct.ring_eigenvalues(LENGTH, 0.99),
        "512 of them": reconstruct.ring_eigenvalues(512, 0.99),
        "roots of unity": reconstruct.roots_of_unity(LENGTH),
    }
    print(f"{'eigenvalues':16s}{'form':8s}{'error':>10s}{'first 100':>11s}{'last 100':>10s}{'rank':>10s}{'cond.':>8s}")
    rebuilt = {}
    for name, lam in choices.items():
        states = reconstruct.encode(images, lam)
        for form in ("complex", "real"):
            found = reconstruct.inputs(states, lam, LENGTH, form=form)
            by_time = found.error_by_time(images)
            errors = f"{found.error(images):10.1e}{by_time[:100].mean():11.1e}{by_time[-100:].mean():10.1e}"
            print(f"{name:16s}{form:8s}{errors}{f'{found.rank}/{found.unknowns}':>10s}{found.condition:8.0e}")
            rebuilt[name, form] = found.values[0].clone()
    print("\nan image, and what is left of it with ring 0..1 (complex form):")
    print(shown(images[0], rebuilt["ring 0..1", "complex"]))
    print("\nwith ring 0.9..1, and with roots of unity:")
    print(shown(rebuilt["ring 0.9..1", "complex"], rebuilt["roots of unity", "complex"]))


if __name__ == "__main__":
    main()
