"""Arguments read by their annotations: what is taken, and how the wrong one is named."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

import holdfast
from holdfast import MemoryCurve, check_properties, fit_decay, memory_function, perturbation_error
from holdfast._arguments import checked
from holdfast.decay import asymptotic_law
from holdfast.errors import ArgumentError, DtypeError, HoldfastError, ShapeError, UnknownNameError
from holdfast.memory import InputSearch, Run
from holdfast.nn import LRU, LanguageModel, SequenceClassifier, SequenceModel
from holdfast_papers import reconstruct

pytestmark = pytest.mark.usefixtures("user_mistakes")
CURVE = MemoryCurve(time=np.arange(60.0), values=np.exp(-0.1 * np.arange(60.0)))


@checked
def takes(
    lam: Float[Tensor, " modes"] | Complex[Tensor, " modes"] | None = None,
    W: Complex[Tensor, "n n"] | None = None,
    time: Literal["discrete", "continuous"] = "discrete",
    count: int = 1,
    size: float = 1.0,
    sizes: Sequence[float] = (1.0,),
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    seed: int | torch.Generator = 0,
    model: nn.Module | None = None,
):
    return {name: value for name, value in locals().items()}


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("lam", [1, 2], torch.tensor([1.0, 2.0], dtype=torch.float64)),
        ("lam", np.array([1 + 1j]), torch.tensor([1 + 1j], dtype=torch.complex128)),
        ("W", [[1.0]], torch.tensor([[1.0]], dtype=torch.complex128)),
        ("count", np.int64(3), 3),
        ("size", torch.tensor(0.5), 0.5),
        ("sizes", np.array([1.0, 2.0]), [1.0, 2.0]),
        ("dtype", "float64", torch.float64),
        ("device", "cpu", torch.device("cpu")),
        ("seed", 2**63, 2**63),
    ],
    ids=str,
)
def test_near_kinds_are_taken(name, given, taken):
    found = takes(**{name: given})[name]
    assert type(found) is type(taken)
    if isinstance(taken, Tensor):
        assert found.dtype == taken.dtype
        assert torch.equal(found, taken)
    else:
        assert found == taken


@pytest.mark.parametrize(
    ("name", "given", "error", "text"),
    [
        ("lam", "abc", ArgumentError, "lam must be a real tensor or a complex tensor or None, got str 'abc'"),
        ("lam", torch.zeros(2, device="meta"), DtypeError, "values cannot be read"),
        ("lam", torch.zeros(2, 2), ShapeError, r"lam .*expected 1 dimension: modes"),
        ("time", "continuos", UnknownNameError, "unknown time 'continuos'. Did you mean 'continuous'"),
        ("time", None, ArgumentError, "time must be one of"),
        ("count", 1.5, ArgumentError, "count must be a whole number, got float 1.5"),
        ("count", True, ArgumentError, "count must be a whole number, got bool True"),
        ("count", 10**18, ArgumentError, "count .*sizes and counts below"),
        ("size", float("nan"), ArgumentError, "size must be a number, got float nan"),
        ("sizes", "12", ArgumentError, "sizes must be a list or tuple"),
        ("sizes", [1.0, None], ArgumentError, "one element is NoneType"),
        ("dtype", "flaot32", ArgumentError, "dtype must be a dtype such as torch.float32"),
        ("device", "gpuu", ArgumentError, "device must be"),
        ("seed", None, ArgumentError, "seed must be"),
        ("seed", 2**64, ArgumentError, "seed must be a whole number that fits into 64 bits"),
        ("model", 3, ArgumentError, "model must be an nn.Module"),
    ],
    ids=str,
)
def test_the_wrong_argument_is_named(name, given, error, text):
    with pytest.raises(error, match=text):
        takes(**{name: given})


def test_pythons_own_errors_about_the_signature_name_the_function():
    with pytest.raises(TypeError, match="takes: got an unexpected keyword argument 'lamb'"):
        takes(lamb=1)


META = nn.Linear(1, 1, device="meta")
X = np.zeros((2, 5, 1))
MISTAKES = {
    "misspelt time": (lambda: fit_decay(CURVE, eigenvalues=[-0.1], time="continuos"), "continuous"),
    "misspelt mode": (lambda: check_properties(LRU(1, 2), run=Run(mode="Eval")), "'eval'"),
    "no classes": (lambda: SequenceClassifier(3, 0, 4), "classes"),
    "negative depth": (lambda: SequenceModel(3, 4, depth=-2), "depth"),
    "no step": (lambda: asymptotic_law([0.5], dt=0.0), "dt"),
    "nan examples": (lambda: reconstruct.learned_basis([[float("nan"), 1.0], [1.0, 2.0]], 1), "examples"),
    "lazy model": (lambda: memory_function(nn.LazyLinear(1)), "run the model once"),
    "meta model": (lambda: memory_function(META), "meta device"),
    "meta model perturbed": (lambda: perturbation_error(META, X, X, [0.1]), "meta device"),
    "no model": (lambda: perturbation_error(None, X, X, [0.1]), "model must be an nn.Module"),
    "no model to measure": (lambda: memory_function(None), "model must be"),
    "no seed": (lambda: memory_function(LRU(1, 2), search=InputSearch(seed=None)), "seed"),
    "rank of x": (lambda: SequenceModel(2, 4, depth=1)(torch.zeros(2, 2)), "expected x of shape"),
    "size of x": (lambda: SequenceModel(2, 4, depth=1)(torch.zeros(2, 5, 3)), "expected x of shape"),
    "dtype of x": (lambda: SequenceModel(2, 4, depth=1)(torch.zeros(2, 5, 2).double()), "convert one"),
    "x of a classifier": (lambda: SequenceClassifier(2, 3, 4, depth=1)(None), "x to be"),
    "tokens": (lambda: LanguageModel(5, 4, depth=1, state_size=4)(torch.zeros(1, 2)), "tokens as an int64"),
    "large tokens": (lambda: LanguageModel(5, 4, depth=1, state_size=4)(torch.tensor([[7]])), "tokens must be 0 to 4"),
    "x on another device": (lambda: LRU(2, 4).to("meta").step(torch.zeros(1, 2)), "x is on cpu"),
    "no width": (lambda: holdfast.nn.GatedMLP(0), "width"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_of_users_are_told_in_a_sentence(name):
    mistake, text = MISTAKES[name]
    with pytest.raises(HoldfastError, match=text):
        mistake()


def test_arrays_and_lists_are_data_too():
    layer = LRU(1, 4)
    x, y = np.random.default_rng(0).standard_normal((2, 2, 6, 1))
    with_tensors = perturbation_error(layer, torch.tensor(x).float(), torch.tensor(y).float(), [0.1], draws=2)
    with_arrays = perturbation_error(layer, x, y.tolist(), np.array([0.1]), draws=2)
    assert np.array_equal(with_tensors.errors, with_arrays.errors)
    assert (
        memory_function(layer, horizon=10, search=InputSearch(candidates=[[1.0]]), run=Run(dtype="float32")).tried == 1
    )
    assert LRU(1, 2, eigenvalues=[0.5, 0.2j]).eigenvalues().detach().abs().tolist() == pytest.approx([0.5, 0.2])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused_with_what_to_call(layout):
    nested = torch.nested.nested_tensor([torch.ones(2, 1), torch.ones(3, 1)], layout=layout)

    @checked
    def takes(x: Float[torch.Tensor, "batch time"], several: Sequence[float] = ()) -> None: ...

    with pytest.raises(HoldfastError, match=r"a nested float32 tensor.*to_padded_tensor"):
        takes(nested)
    with pytest.raises(HoldfastError, match="a nested float32 tensor"):
        takes(torch.ones(1, 1), nested)
