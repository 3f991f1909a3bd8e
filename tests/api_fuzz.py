"""Calls of the public API with odd values, by number: `python api_fuzz.py FIRST COUNT` prints one line of JSON a call.

Each call starts from arguments that work, of which one or two are replaced. A call is sound if it returns, or raises a
HoldfastError, TypeError or ValueError whose text names a replaced argument or describes its value, or is Python's own
about the signature.
"""

# ruff: noqa: T201
from __future__ import annotations

import inspect
import json
import random
import re
import resource
import signal
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import holdfast
import holdfast_papers
from holdfast import (
    approximate,
    data,
    decay,
    kernels,
    laws,
    memory,
    parameterizations,
    stability,
    training,
)
from holdfast import nn as layers
from holdfast.memory import huggingface
from holdfast_papers import constructions, experiments, reconstruct

FOREIGN_DEVICE_SHARE = 0.05  # of the calls that run with another default device than that of their tensors


class Marked(torch.Tensor):
    """A tensor with memory, of an unknown class."""


LAYERS = ("LRU", "S4D", "DiagonalSSM", "LinearRNN", "ContinuousRNN", "ContinuousGRU", "SelectiveSSM")
SECONDS = 10  # of processor time, so that a busy machine is no hang
SIGNATURE = re.compile(r"unexpected keyword|missing|required positional|takes .* positional|too many positional")


def _curve():
    return holdfast.MemoryCurve(time=np.arange(60.0), values=np.exp(-0.2 * np.arange(60.0)))


def _errors(width):
    return holdfast.PerturbationCurve(radii=[0.01, 0.1, 1.0], errors=[0.1, 0.2 * width, 3.0], centre=0.05)


def _x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _ring(size=6):
    return reconstruct.ring_eigenvalues(size, 0.9)


def _layer(name):
    return lambda: {"features": 2, "state_size": 4} | ({"structure": "dense"} if name == "LinearRNN" else {})


def _kernel_arguments():
    return {"eigenvalues": -torch.rand(3), "B": torch.ones(3), "C": torch.ones(3), "times": [0.0, 1.0, 2.0]}


def _s4d_arguments():
    modes = torch.rand(2, 3)
    return {"u": _x(1, 5, 2), "dt": torch.rand(2), "lam_re": -modes, "lam_im": modes, "c_re": modes, "c_im": modes}


def _lru_arguments():
    return {"u": _x(1, 5, 2), "lam_re": torch.rand(3), "lam_im": torch.rand(3), "b": _x(6, 2), "c": _x(2, 6)}


def _perturbation():
    model = layers.LRU(1, 4)
    return {"model": model, "inputs": _x(2, 8, 1), "targets": _x(2, 8, 1), "radii": [0.01, 0.1], "draws": 2}


def _functions():
    exp = laws.Exponential(0.5)
    modules = {
        holdfast: {
            "assess_stability": lambda: {"curves": {m: _errors(m) for m in (2, 4, 8, 16)}, "target_norm": 1.0},
            "certify": lambda: {"module": layers.LRU(1, 4), "horizon": 20},
            "check_properties": lambda: {"model": nn.GRU(1, 2, batch_first=True), "horizon": 16},
            "fit_decay": lambda: {"curve": _curve(), "eigenvalues": torch.tensor([0.5, 0.2])},
            "fit_exponential_sum": lambda: {"rho": exp, "order": 2, "horizon": 100.0},
            "gradient_scale": lambda: {"parameterization": "exp", "w": torch.ones(3), "time": "continuous"},
            "kernel_perturbation_error": lambda: {
                "sum": holdfast.ExponentialSum([1.0, 2.0], [0.5, 0.5]), "rho": exp, "radii": [0.01, 0.1], "draws": 2,
            },
            "memory_function": lambda: {"model": nn.GRU(1, 2, batch_first=True), "horizon": 16},
            "recurrences": lambda: {"model": nn.GRU(1, 2)},
            "parameter_groups": lambda: {"model": layers.LRU(1, 4), "lr": 0.1},
            "perturbation_error": _perturbation,
            "repeated_input_memory": lambda: {"score": lambda ids: float(len(ids)), "item": [1, 2], "lengths": 4},
            "stabilize": lambda: {"model": nn.RNN(1, 4)},
            "GradientMonitor": lambda: {"model": layers.LRU(1, 4)},
            "MemoryCurve": lambda: {"time": [0.0, 1.0], "values": [1.0, 0.5]},
            "ExponentialSum": lambda: {"rates": [1.0, 2.0], "coefficients": [0.5, 0.5]},
            "PerturbationCurve": lambda: {"radii": [0.01, 0.1], "errors": [0.1, 0.2]},
        },
        layers: {name: _layer(name) for name in
                 ("LRU", "S4D", "DiagonalSSM", "LinearRNN", "ContinuousRNN", "ContinuousGRU", "SelectiveSSM")}
        | {
            "Mamba": lambda: {"features": 4},
            "RecurrentStack": lambda: {"input_size": 2, "hidden_size": 4},
            "Mamba2": lambda: {"features": 4, "head_size": 2},
            "GatedBlock": lambda: {"mixer": layers.LRU(2, 4)},
            "GatedMLP": lambda: {"width": 2},
            "HyenaBlock": lambda: {"mixer": layers.LRU(2, 4)},
            "NaiveBlock": lambda: {"mixer": layers.LRU(2, 4)},
            "LanguageModel": lambda: {"vocabulary": 5, "width": 4, "depth": 1, "state_size": 4},
            "SequenceModel": lambda: {"features": 2, "width": 4, "depth": 1, "state_size": 4},
            "SequenceClassifier": lambda: {"features": 2, "classes": 3, "width": 4, "depth": 1, "state_size": 4},
            "RecurrentWeight": lambda: {"size": 3, "structure": "dense", "parameterization": "complete", "time": "discrete"},
        },
        kernels: {
            "gate": lambda: {"y": _x(2, 3), "x": _x(2, 3), "weight": _x(6, 3), "bias": _x(6)},
            "causal_conv": lambda: {"x": _x(1, 5, 2), "weight": _x(2, 3)},
            "lru": _lru_arguments,
            "selective": lambda: {
                "u": _x(1, 5, 2), "dt": torch.rand(1, 5, 2), "A": -torch.rand(2, 3), "B": _x(1, 5, 3), "C": _x(1, 5, 3)
            },
            "rnn": lambda: {"x": _x(1, 5, 2), "w": _x(3, 3), "u": _x(3, 2)},
            "s4d": _s4d_arguments,
            "scan": lambda: {"a": torch.rand(1, 5, 2), "b": _x(1, 5, 2)},
        },
        training: {"TrainingConfig": lambda: {"steps": 10}},
        memory.closed_form: {
            "diagonal": _kernel_arguments,
            "dense": lambda: {"W": -torch.eye(2), "U": torch.ones(2), "c": torch.ones(2), "times": [0.0, 1.0]},
            "lru": lambda: {"lam": torch.rand(3), "B": _x(3, 1), "C": _x(1, 3), "times": [0, 1, 2]},
            "of_layer": lambda: {"layer": layers.LRU(1, 4), "horizon": 5},
            "s4d": lambda: {"dt": torch.rand(2), "lam": -torch.rand(2, 3), "C": _x(2, 3), "times": [0, 1, 2]},
            "two_layer": lambda: {
                "lam1": -torch.rand(2), "lam2": -torch.rand(2), "C": _x(1, 2), "U1": _x(2, 2), "U2": _x(2, 1),
                "times": [0.0, 1.0],
            },
        },
        huggingface: {"load": lambda: {"name": "/nowhere/at/all"}, "FromEmbeddings": lambda: {"model": nn.Linear(1, 1)},
                      "TokenScore": lambda: {"model": nn.Linear(1, 1)}},
        decay: {"asymptotic_law": lambda: {"eigenvalues": torch.tensor([0.5, 0.2])}, "envelope": lambda: {"curve": _curve()},
                "stack_rate": lambda: {"model": layers.LRU(1, 3)}, "uniform_memory": lambda: {"curves": [_curve(), _curve()]}},
        memory: {
            "memory_capacity": lambda: {"model": nn.GRU(1, 2, batch_first=True), "longest": 5, "series": 60},
            "receptive_field": lambda: {"model": nn.GRU(1, 2, batch_first=True), "horizon": 16},
            "InputSearch": dict,
            "Probe": dict,
            "Readout": dict,
            "Run": dict,
        },
        holdfast_papers: {
            "Claim": lambda: {"name": "a", "statement": "b", "status": "met"},
        },
        stability: {
            "Ball": dict,
            "Metric": dict,
            "Search": dict,
            "bit_budget": lambda: {"model": nn.RNN(1, 2, batch_first=True), "inputs": _x(1, 8, 1), "bits": [2, 4], "draws": 2},
            "design_parameterization": lambda: {"criterion": "L|w|"},
            "lyapunov_spectrum": lambda: {
                "model": nn.GRU(1, 2, batch_first=True), "inputs": _x(1, 24, 1), "discard": 4, "count": 2,
            },
            "classify_activation": lambda: {"sigma": torch.tanh},
            "gradient_bound": lambda: {
                "coefficients": torch.ones(2).double(), "weights": -torch.ones(2).double(), "parameterization": "exp",
            },
            "kernel_error_bound": lambda: {
                "sum": laws.ExponentialMixture((1.0, 2.0), (0.5, 0.5)), "radii": [0.1, 0.2], "centre": 0.1,
            },
            "memory_bound": lambda: {"layer": layers.DiagonalSSM(1, 3), "horizon": 5},
            "weight_bound": lambda: {"rate": 0.5, "horizon": 10.0, "memory": 1.0},
        },
        approximate: {
            "convergence": lambda: {"rho": exp, "orders": [1, 2], "horizon": 100.0},
            "load_layer": lambda: {"path": "/nowhere/at/all"},
            "save_layer": lambda: {"layer": layers.LRU(1, 2), "path": "/nowhere/at/all"},
        },
        constructions: {
            "ByChannel": lambda: {"layers": [layers.LRU(1, 2)]},
            "Pointwise": lambda: {"function": nn.Tanh()},
            "convolution": lambda: {"rho": exp, "length": 8, "tolerance": 0.5},
            "elementwise": lambda: {"f": np.tanh, "width": 4, "tolerance": 0.5},
            "kolmogorov_arnold": lambda: {"f": lambda x: x.sum(-1), "length": 2, "digits": 1, "base": 3, "tolerance": 10.0},
            "mlp_as_ssm": lambda: {"mlp": nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1))},
            "volterra": lambda: {"kernels": {1: 0.5 ** torch.arange(8.0)}, "length": 8, "tolerance": 0.5},
        },
        reconstruct: {
            "counting_eigenvalue": lambda: {"longest": 10},
            "decoder": lambda: {"eigenvalues": _ring(), "length": 5},
            "encode": lambda: {"inputs": _x(2, 5), "eigenvalues": _ring()},
            "fourier_basis": lambda: {"length": 8, "size": 4},
            "haar_basis": lambda: {"length": 8, "size": 4},
            "inputs": lambda: {"states": reconstruct.encode(_x(2, 5), _ring()), "eigenvalues": _ring(), "length": 5},
            "interpolated": lambda: {"maps": lambda n: torch.ones(2) * n, "time": 1.5},
            "learned_basis": lambda: {"examples": _x(6, 8), "size": 3},
            "ring_eigenvalues": lambda: {"size": 4, "r_min": 0.5},
            "roots_of_unity": lambda: {"size": 4},
            "sparse_inputs": lambda: {
                "states": reconstruct.encode(_x(2, 8), _ring()), "eigenvalues": _ring(), "basis": "haar", "length": 8,
                "functions": 3,
            },
            "timestamp": lambda: {"state": 0.81, "eigenvalue": 0.9},
            "vandermonde": lambda: {"eigenvalues": _ring(), "length": 5},
        },
        laws: {
            "Exponential": lambda: {"rate": 0.5},
            "ExponentialMixture": lambda: {"rates": (1.0, 2.0), "coefficients": (0.5, 0.5)},
            "Finite": lambda: {"support": 3.0},
            "OscillatingExponential": lambda: {"rate": 0.5, "frequency": 1.0},
            "PowerLaw": lambda: {"exponent": 1.5},
            "ReciprocalSum": lambda: {"power": 2},
            "StretchedExponential": lambda: {"scale": 1.0, "exponent": 0.5},
            "get": lambda: {"name": "exponential"},
        },
        parameterizations: {
            "Best": dict, "Clip": dict, "DiscreteBest": dict, "DiscreteClip": dict,
            "Custom": lambda: {"f": lambda w: -torch.exp(w)},
            "Normal": lambda: {"parameterization": parameterizations.get("exp")},
            "Range": lambda: {"low": 0.0, "high": 1.0},
            "fit_constants": lambda: {"f": parameterizations.get("best"), "lam": -torch.rand(3)},
            "get": lambda: {"name": "best"},
            "get_matrix": dict,
            "names": dict,
            "numerical_modulus": lambda: {"f": lambda w: -torch.exp(w), "time": "continuous", "beta": 0.1},
            "spectral_margin": lambda: {"W": torch.eye(2) / 2, "time": "discrete"},
        },
        experiments: {"get": lambda: {"id": "stable-fig2"}},
        data: {"mnist": lambda: {"split": "train", "download": False}},
    }  # fmt: skip
    return {
        f"{m.__name__}.{name}": (getattr(m, name), how) for m, some in modules.items() for name, how in some.items()
    }


def _methods():
    """Forward and step of layers and stacks, and what objects offer that take arguments."""
    found = {}
    for name in LAYERS:
        layer = getattr(layers, name)(2, 4)
        found[f"{name}.forward"] = (layer.forward, lambda: {"x": _x(1, 5, 2), "state": None})
        found[f"{name}.step"] = (layer.step, lambda: {"x": _x(1, 2), "state": None})
        found[f"{name}.initial_state"] = (layer.initial_state, lambda: {"batch": 2})
    model = layers.SequenceModel(2, 4, depth=1, state_size=4)
    tokens = layers.LanguageModel(5, 4, depth=1, state_size=4)
    scores = layers.SequenceClassifier(2, 3, 4, depth=1, state_size=4)
    found["SequenceModel.forward"] = (model.forward, lambda: {"x": _x(1, 5, 2), "state": None})
    found["SequenceModel.step"] = (model.step, lambda: {"x": _x(1, 2), "state": None})
    found["SequenceClassifier.forward"] = (scores.forward, lambda: {"x": _x(1, 5, 2)})
    found["LanguageModel.forward"] = (tokens.forward, lambda: {"tokens": torch.tensor([[1, 2]]), "state": None})
    found["LanguageModel.step"] = (tokens.step, lambda: {"tokens": torch.tensor([1]), "state": None})
    fit = holdfast.fit_decay(_curve())
    found["DecayFit.horizon"] = (fit.horizon, lambda: {"fraction": 0.1})
    field = holdfast.memory.ReceptiveField(np.arange(3.0), np.array([1.0, 0.5, 0.1]), 1)
    found["ReceptiveField.size"] = (field.size, lambda: {"share": 0.9})
    found["MemoryCurve.until"] = (_curve().until, lambda: {"time": 10.0})
    best = parameterizations.get("best")
    for name in ("forward", "inverse", "derivative", "margin", "gradient_scale"):
        argument = "lam" if name == "inverse" else "w"
        found[f"best.{name}"] = (getattr(best, name), lambda argument=argument: {argument: -torch.rand(3)})
    found["best.modulus"] = (best.modulus, lambda: {"beta": 0.1})
    return found


ODD = {
    "None": lambda: None, "empty text": lambda: "", "text": lambda: "abc", "bytes": lambda: b"abc",
    "object": lambda: object(), "class": lambda: int, "function": lambda: (lambda *a, **k: None), "dict": dict,
    "True": lambda: True, "0": lambda: 0, "-1": lambda: -1, "1.5": lambda: 1.5, "huge": lambda: 10**18,
    "64 bits": lambda: 2**63, "-huge": lambda: -(2**70), "nan": lambda: float("nan"), "inf": lambda: float("inf"),
    "-inf": lambda: -float("inf"), "1e300": lambda: 1e300, "1e-300": lambda: 1e-300, "complex": lambda: 1 + 2j,
    "empty list": list, "list": lambda: [1.0, 2.0], "mixed list": lambda: [1.0, "a", None],
    "nested": lambda: [[1.0], [2.0, 3.0]],
    "empty tuple": tuple, "array": lambda: np.array([0.5, 0.25]), "nan array": lambda: np.array([np.nan, 1.0]),
    "empty array": lambda: np.zeros(0), "array 2d": lambda: np.ones((2, 2)), "objects": lambda: np.array([None, "a"]),
    "int array": lambda: np.array([1, 2]), "numpy int": lambda: np.int64(3), "numpy float": lambda: np.float32(0.5),
    "tensor": lambda: torch.tensor([0.5, 0.25]), "empty tensor": lambda: torch.zeros(0), "0-dim": lambda: torch.tensor(0.5),
    "int tensor": lambda: torch.tensor([1, 2]), "bool tensor": lambda: torch.tensor([True, False]),
    "complex tensor": lambda: torch.tensor([1 + 2j, 0.5]), "nan tensor": lambda: torch.tensor([float("nan"), 1.0]),
    "meta": lambda: torch.zeros(2, 2, device="meta"), "half": lambda: torch.ones(2, 2, dtype=torch.float16),
    "bfloat16": lambda: torch.ones(2, 2, dtype=torch.bfloat16), "double": lambda: torch.ones(1, 5, 2, dtype=torch.float64),
    "sparse": lambda: torch.eye(2).to_sparse(), "3-dim": lambda: torch.ones(1, 5, 2), "no time": lambda: torch.ones(1, 0, 2),
    "module": lambda: nn.Linear(1, 1), "meta module": lambda: nn.Linear(1, 1, device="meta"), "lazy": lambda: nn.LazyLinear(2),
    "dtype": lambda: torch.float32, "dtype name": lambda: "float32", "generator": torch.Generator,
    "path": lambda: Path("/nowhere"),
    "two tensors": lambda: TwoTensor(torch.ones(1, 5, 2), torch.ones(1, 5, 2)),
    "fake": lambda: FakeTensorMode().from_tensor(torch.ones(1, 5, 2)),
    "nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], layout=torch.jagged),
    "subclass": lambda: nn.Parameter(torch.ones(1, 5, 2)).as_subclass(Marked),
}  # fmt: skip


def targets():
    return _functions() | _methods()


def misspelt(rng, value):
    letters = list(value) or ["x"]
    place = rng.randrange(len(letters))
    letters[place] = "" if rng.random() < 0.5 else letters[place].upper() + "q"
    return "".join(letters)


def replaced(rng, function, arguments):
    """The names of one or two parameters with what replaces them."""
    names = [
        n
        for n, p in inspect.signature(function).parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    chosen = rng.sample(names, min(len(names), 1 if rng.random() < 0.8 else 2))
    odd = {}
    for name in chosen:
        default = arguments.get(name, inspect.signature(function).parameters[name].default)
        if isinstance(default, str) and rng.random() < 0.3:
            odd[name] = misspelt(rng, default)
        else:
            odd[name] = ODD[rng.choice(list(ODD))]()
    return odd


def names_it(error, odd):
    text = str(error)
    if isinstance(error, TypeError) and SIGNATURE.search(text):
        return True
    if any(re.search(rf"\b{re.escape(name)}\b", text) for name in odd):
        return True
    return any(word in text for value in odd.values() for word in _descriptions(value))


def _descriptions(value):
    text = _shown(value)
    words = [text[:40], type(value).__name__] if len(text) > 2 else []
    words += ["''"] if isinstance(value, str) and not value else []
    words += [str(value)] if isinstance(value, Path) else []
    words += [value.__name__] if isinstance(value, type) else []
    if isinstance(value, torch.Tensor):
        words += [str(value.dtype).removeprefix("torch."), "meta", "nested"]
        words += [] if value.is_nested else [str(tuple(value.shape))]
    return words


def call(number, known):
    """None if the call was sound, else what was wrong with it."""
    rng = random.Random(number)
    name = rng.choice(sorted(known))
    function, how = known[name]
    arguments = how()
    odd = replaced(rng, function, arguments)
    foreign = rng.random() < FOREIGN_DEVICE_SHARE
    shown = ", ".join(f"{k}={_shown(v)}" for k, v in odd.items())
    said = f"{number}: {name}({shown}){' on meta by default' if foreign else ''}"
    try:
        with torch.device("meta") if foreign else nullcontext():
            function(**(arguments | odd))
    except (holdfast.HoldfastError, TypeError, ValueError) as error:
        # under a foreign default device an error of ours may be about that
        named = names_it(error, odd) or (foreign and isinstance(error, holdfast.HoldfastError))
        return None if named else f"{said}: not named: {type(error).__name__}: {str(error)[:200]}"
    except BaseException as error:
        return f"{said}: {type(error).__name__}: {str(error)[:200]}"
    return None


def _shown(value):
    try:
        return f"{value!r:.60}"
    except Exception:  # a tensor that cannot print itself
        return type(value).__name__


class HungError(BaseException):
    pass


def _hung(*_):
    raise HungError(f"more than {SECONDS} s")


def main():
    first, count = int(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    signal.signal(signal.SIGPROF, _hung)
    known = targets()
    for number in range(first, first + count):
        print(json.dumps({"begin": number}), flush=True)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        found = call(number, known)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if found:
            print(json.dumps({"found": found}), flush=True)
    print(json.dumps({"done": count, "callables": len(known)}), flush=True)


if __name__ == "__main__":
    main()
