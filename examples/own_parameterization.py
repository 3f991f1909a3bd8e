"""
A parameterization of your own, next to the known ones
======================================================

You learn: how to compare your own parameterization with the known ones.
Run time: about 4 s of CPU time, one thread.

A function from the free weight to the eigenvalue is enough: holdfast computes its inverse, derivative, gradient scale and
modulus. The table compares two properties: how large the gradients of slow modes are, and how far the weights may move
before a power law of 16 modes is lost. ("StableSSM", Def. 3.2, Thm 3.3 and 3.4.)
"""

import torch

import holdfast
from holdfast.parameterizations import Custom, get

RADII = [0.001, 0.01, 0.1]


def chosen():
    """Three known ones, and lam = -8 / (1 + |w|^3)."""
    known = {name: get(name) for name in ("direct", "exp", "best")}
    return {**known, "own": Custom(lambda w: -8 / (1 + w.abs() ** 3), low=-8.0, high=0.0)}


def scales(f):
    """G_f where modes remember for 10, 100 and 1,000 steps."""
    w = f.inverse(torch.tensor([-0.1, -0.01, -0.001], dtype=torch.float64))
    return f.gradient_scale(w).tolist()


def main():
    rho = holdfast.laws.PowerLaw(1.5)
    found = holdfast.fit_exponential_sum(rho, order=16, method="nonnegative", horizon=1e4)
    print(f"{'':8s}gradient scale at 10, 100, 1000 steps   modulus at 0.1   error at beta = {RADII}")
    for name, f in chosen().items():
        curve = holdfast.kernel_perturbation_error(found, rho, RADII, parameterization=f)
        gradients = "  ".join(f"{g:9.3g}" for g in scales(f))
        errors = "  ".join(f"{e:8.3g}" for e in curve.errors)
        print(f"{name:8s}{gradients}         {f.modulus(0.1):8.3g}         {errors}")
    layer = holdfast.nn.DiagonalSSM(1, 8, parameterization=chosen()["own"], eigenvalues=-torch.logspace(-3, -0.1, 8))
    print("a layer with the own one:", holdfast.certify(layer).summary())


if __name__ == "__main__":
    main()
