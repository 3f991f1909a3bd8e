import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from holdfast import parameterizations
from holdfast.errors import ArgumentError, DtypeError, RangeError, ShapeError, UnknownNameError
from holdfast.parameterizations import Hurwitz, Normal, Schur, spectral_margin
from holdfast.parameterizations._factors import positive_definite, positive_definite_inverse

MARGIN = 0.05


# torch makes its own forward-mode formulas by a compiler that it warns about
forward_mode = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")


def stable_matrix(n, time, seed=0):
    """A dense, non-normal matrix whose spectrum keeps MARGIN to the boundary."""
    W = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if time == "discrete":
        return W / torch.linalg.eigvals(W).abs().max() * (1 - MARGIN)
    return W - (torch.linalg.eigvals(W).real.max() + MARGIN) * torch.eye(n, dtype=torch.float64)


def normal_matrix(n, time, seed=0):
    A = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if time == "discrete":
        return 0.9 * torch.linalg.qr(A).Q
    return A - A.mT - 0.3 * torch.eye(n, dtype=torch.float64)


def build(form, time, n, seed=0):
    if form == "complete":
        return parameterizations.get_matrix(time=time), stable_matrix(n, time, seed)
    return parameterizations.get_matrix("normal", time=time, parameterization="softplus"), normal_matrix(n, time, seed)


forms = pytest.mark.parametrize("form", ["complete", "normal"])
times = pytest.mark.parametrize("time", ["continuous", "discrete"])


@forms
@times
@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_a_stable_matrix_is_taken_over_unchanged(form, time, n):
    f, W = build(form, time, n)
    again = f(*f.right_inverse(W))
    # a few hundred roundings of entries of size 10
    assert float((again - W).abs().max()) < 1e-13


@forms
@times
@pytest.mark.parametrize(
    ("n", "draws"),
    [(5, 200), (40, 40), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((5, 1000), (40, 200)))],
)
def test_random_perturbations_of_the_free_weights_stay_stable(form, time, n, draws):
    f, W = build(form, time, n)
    free = f.right_inverse(W)
    generator = torch.Generator().manual_seed(1)
    worst = float("inf")
    for draw in range(draws):
        radius = (0.1, 1.0, 3.0, 10.0)[draw % 4]
        moved = []
        for weight in free:
            noise = torch.randn(weight.shape, dtype=weight.dtype, generator=generator)
            size = torch.linalg.matrix_norm(noise, 2) if noise.ndim == 2 else noise.norm()
            moved.append(weight + noise * (radius / size.clamp(min=1e-12)))
        worst = min(worst, spectral_margin(f(*moved), time))
    assert worst > 0


@times
def test_the_boundary_itself_can_be_approached(time):
    W = stable_matrix(6, time)
    near = W + (MARGIN - 1e-6) * torch.eye(6, dtype=torch.float64) if time == "continuous" else W * (1 - 1e-6) / 0.95
    f = parameterizations.get_matrix(time=time)
    again = f(*f.right_inverse(near))
    # the Lyapunov solution grows like 1/margin = 1e6, and with it the rounding
    torch.testing.assert_close(again, near, rtol=0, atol=1e-8)


@pytest.mark.parametrize("f", [Hurwitz(), Schur()], ids=["hurwitz", "schur"])
def test_gradients_of_the_complete_forms_pass_gradcheck(f):
    free = [w.clone().requires_grad_() for w in f.right_inverse(stable_matrix(3, f.time))]
    assert torch.autograd.gradcheck(f, free)


@times
def test_gradients_of_the_normal_form_pass_gradcheck(time):
    f, W = build("normal", time, 3)
    free = [w.clone().requires_grad_() for w in f.right_inverse(W)]
    assert torch.autograd.gradcheck(f, free)


@forward_mode
def test_gradient_exists_where_eigenvalues_are_equal():
    # eigh's own gradient is infinite at S = 0, where every layer starts whose W is a multiple of I
    S = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(positive_definite, S, check_forward_ad=True)


@forward_mode
def test_transforms_of_torch_func_go_through_the_complete_form():
    torch.manual_seed(0)
    S = torch.randn(3, 4, 4, dtype=torch.float64)
    each = torch.func.vmap(torch.func.jacrev(positive_definite))(S)
    torch.testing.assert_close(each, torch.stack([torch.func.jacfwd(positive_definite)(s) for s in S]))


def test_positive_definite_is_one_to_one():
    A = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    P = A @ A.mT + 0.01 * torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(positive_definite(positive_definite_inverse(P)), P, rtol=1e-11, atol=1e-11)
    assert float(torch.linalg.eigvalsh(positive_definite(1e6 * A)).min()) > 0


@times
def test_a_torch_rnn_weight_can_be_parametrized_and_trained(time):
    layer = nn.Linear(4, 4, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(stable_matrix(4, time))
    before = layer.weight.detach().clone()
    parametrize.register_parametrization(layer, "weight", parameterizations.get_matrix(time=time))
    torch.testing.assert_close(layer.weight, before, rtol=1e-12, atol=1e-12)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02)
    x = torch.ones(4, dtype=torch.float64)
    for _ in range(100):  # pushes every entry upward, toward and past where a plain weight becomes unstable
        optimizer.zero_grad()
        (-layer(x).sum()).backward()
        optimizer.step()
    assert spectral_margin(layer.weight, time) > 0
    assert float((layer.weight - before).detach().abs().max()) > 0.1


def test_float32_weights_stay_float32():
    f = Schur()
    free = f.right_inverse(stable_matrix(5, "discrete").float())
    assert all(w.dtype == torch.float32 for w in free)
    assert f(*free).dtype == torch.float32


@pytest.mark.usefixtures("user_mistakes")
def test_unusable_matrices_are_refused_with_their_eigenvalues():
    eye = torch.eye(3)
    with pytest.raises(RangeError, match=r"real part < 0., got 3 of 3 eigenvalues outside: 0\.5, 0\.5, 0\.5"):
        Hurwitz().right_inverse(0.5 * eye)
    with pytest.raises(RangeError, match=r"modulus < 1., got 3 of 3 eigenvalues outside: 1\.5"):
        Schur().right_inverse(-1.5 * eye)
    with pytest.raises(ShapeError, match=r"square matrix \(n, n\), got shape \(2, 3\)"):
        Schur().right_inverse(torch.zeros(2, 3))
    with pytest.raises(DtypeError, match=r"real floating-point tensor, got torch\.int64"):
        Schur().right_inverse(torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(RangeError, match="must be finite"):
        Schur().right_inverse(eye * float("nan"))
    shear = torch.tensor([[-1.0, 5.0], [0.0, -1.0]])
    with pytest.raises(RangeError, match="W must be normal"):
        parameterizations.get_matrix("normal").right_inverse(shear)
    with pytest.raises(RangeError, match="must be in the range"):
        parameterizations.get_matrix("normal", parameterization="best").right_inverse(-3 * eye)


@pytest.mark.usefixtures("user_mistakes")
def test_unknown_forms_and_useless_arguments_are_refused():
    with pytest.raises(UnknownNameError, match="matrix form 'full'"):
        parameterizations.get_matrix("full")
    with pytest.raises(ArgumentError, match="has no scalar parameterization"):
        parameterizations.get_matrix("complete", parameterization="best")
    with pytest.raises(ArgumentError, match="needs a scalar parameterization"):
        Normal("exp")
