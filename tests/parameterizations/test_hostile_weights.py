"""The promise of the matrix forms in floating point: wherever the free weights go, the matrix is stable as it is stored."""

import numpy as np
import pytest
import torch

from holdfast import parameterizations
from holdfast.parameterizations import spectral_margin

N = 16
FORMS = {
    "schur": (dict(form="complete", time="discrete"), 0.9),
    "hurwitz": (dict(form="complete", time="continuous"), -0.5),
    "contraction": (dict(form="contraction", time="discrete"), 0.9),
    "euler": (dict(form="contraction", time="continuous", dt=0.1), -0.5),
    "normal discrete": (dict(form="normal", time="discrete", parameterization="exp"), 0.9),
    "normal continuous": (dict(form="normal", time="continuous", parameterization="best"), -0.5),
}
forms = pytest.mark.parametrize("name", FORMS)


def build(name, dtype):
    """The form and free weights of a rotation in the stable region."""
    choices, size = FORMS[name]
    f = parameterizations.get_matrix(**choices)
    A = torch.randn(N, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    skew = 0.3 * (A - A.mT)
    W = size * torch.linalg.matrix_exp(skew) if size > 0 else size * torch.eye(N) + skew
    return f, f.right_inverse(W.to(dtype))


def elsewhere(free, scale, seed):
    """Free weights of the given size in every direction; a tenth of them 0, so that some rows nearly vanish."""
    generator = torch.Generator().manual_seed(seed)
    moved = []
    for weight in free:
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        noise *= torch.rand(weight.shape, generator=generator, dtype=torch.float64) > 0.1
        moved.append((noise * scale).clamp(-3e38, 3e38).to(weight.dtype))
    return moved


def margin(name, f, W):
    """Distance to the boundary of what is promised: of the spectrum, and of an Euler step where the form has one."""
    wide = W.double()
    if name == "euler":
        return min(spectral_margin(wide, "continuous"), spectral_margin(torch.eye(N) + 0.1 * wide, "discrete"))
    return spectral_margin(wide, f.time)


@forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e6, 1e25, 3e38])
def test_the_matrix_stays_stable_and_its_gradient_finite(name, dtype, scale):
    f, free = build(name, dtype)
    for seed in range(3):
        moved = [w.requires_grad_() for w in elsewhere(free, scale, seed)]
        W = f(*moved)
        assert W.dtype == dtype
        assert bool(torch.isfinite(W).all())
        assert margin(name, f, W.detach()) > 0
        W.double().square().sum().sqrt().backward()
        assert all(bool(torch.isfinite(w.grad).all()) for w in moved)


@forms
def test_one_large_weight_among_small_ones_is_no_trouble(name):
    f, free = build(name, torch.float32)
    for k in range(len(free)):
        if free[k].numel() == 0:
            continue
        for size in (1e6, 1e20, 3e38):
            moved = [w.clone() for w in free]
            moved[k].view(-1)[0] = size
            assert margin(name, f, f(*moved)) > 0


@forms
def test_a_weight_that_is_not_a_number_gives_no_number_and_no_error(name):
    f, free = build(name, torch.float32)
    moved = [w.clone() for w in free]
    moved[0].view(-1)[0] = float("nan")
    assert bool(f(*moved).isnan().all())


@pytest.mark.parametrize("scale", [0.3, 1.0, 30.0, 1e6])
def test_a_contraction_shrinks_whatever_the_slopes_of_the_activation_are(scale):
    """|Y^1/2 D S W h| <= |Y^1/2 D h| for every diagonal S with entries in [0, 1]; tried on corners of that cube."""
    f, free = build("contraction", torch.float64)
    generator = np.random.default_rng(0)
    for seed in range(5):
        moved = elsewhere(free, scale, seed)
        W, H = f(*moved).numpy(), f.metric(*moved).numpy()
        D = np.sqrt(np.diag(H))  # S commutes with it, and the rest of H is better conditioned
        W, T = D[:, None] * W / D, np.linalg.cholesky(H / D / D[:, None]).T
        for _ in range(50):
            S = np.diag((generator.random(N) < generator.random()).astype(float))
            # H's condition ends at 1342^2: 1e7 roundings
            assert np.linalg.norm(T @ S @ W @ np.linalg.inv(T), 2) < 1 + 1e-8


@forms
@pytest.mark.usefixtures("user_mistakes")  # torch.compile cannot trace the checks of annotations
def test_a_form_compiles_to_one_graph(name):
    f, free = build(name, torch.float32)
    compiled = torch.compile(f, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*free), f(*free))
