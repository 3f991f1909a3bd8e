from dataclasses import replace

import pytest

from holdfast.errors import UnknownNameError
from holdfast_papers.benchmarks import registry, timing
from holdfast_papers.benchmarks.cases import data, mamba, perturbation, products, stack
from holdfast_papers.benchmarks.run import run_case

# every row of the design's speed table with its goal
GOALS = {
    "raw scan, share of a STREAM triad over the same arrays": 0.9,
    "raw scan against mamba.py pscan": 4,
    "raw scan against JAX lax.scan": 4,
    "raw scan against JAX associative_scan": 9,
    "S4D against FFT S4D, T >= 784": 15,
    "S4D against FFT S4D, T = 32": 4,
    "LRU against s5-pytorch": 4,
    "LRU against a JAX LRU": 4,
    "LRU over its own bare GEMMs": 0.8,
    "LRU against torch.nn.LSTM of equal width": 4,
    "RNN against torch.nn.RNN, m <= 64": 6,
    "RNN against torch.nn.RNN, m = 256": 2,
    "selective scan over one exp and one multiply-add a state and step": 3.5,
    "selective scan against mamba.py's, discretization included": 6,
    "selective scan against transformers' loop, T = 512": 100,
    "training step of a transformers Mamba layer after accelerate over its matrix products": 1.5,
    "training step of a transformers Mamba layer after accelerate against the layer as it was": 25,
    "training step of a transformers Mamba layer after accelerate against the layer with mambapy": 3,
    "forward pass of a transformers Mamba layer after accelerate over its matrix products": 1.5,
    "forward pass of the selective scan against transformers' loop, T = 512": 15,
    "forward pass of a transformers Mamba layer after accelerate against the layer with mambapy": 3,
    "one token through two layers of a transformers Mamba after accelerate against the model as it was": 1.5,
    "4-layer stack, T = 784: LRU against s5-pytorch's layer": 3.5,
    "4-layer stack, T = 784: S4D against an FFT S4D layer": 2.8,
    "4-layer stack, T = 8192: LRU against s5-pytorch's layer": 2.2,
    "4-layer stack, T = 8192: S4D against an FFT S4D layer": 4.2,
    "memory function over as many plain forward passes": 1.3,
    "630 perturbed evaluations of a linear DiagonalSSM, T = 32": 30,
    "630 perturbed evaluations of a linear DiagonalSSM, T = 256": 30,
    "630 perturbed evaluations of a tanh DiagonalSSM, T = 32": 2,
    "630 perturbed evaluations of a tanh DiagonalSSM, T = 256": 2,
    "630 perturbed evaluations of torch.nn.RNN, T = 32": 2,
    "630 perturbed evaluations of torch.nn.RNN, T = 256": 2,
    "training step of a 4-layer stack (lru) with GradientMonitor over one without": 1.03,
    "training step of a 4-layer stack (linear) with GradientMonitor over one without": 1.03,
    "sequential MNIST: the whole loop over the bare step": 1.05,
    "sequential MNIST: the loop against the bare step with s5-pytorch's layer": 3.5,
    "sequential MNIST: the loop against the bare step with an FFT S4D layer": 2.8,
    "recall over 131,072 steps: the whole loop over the bare step": 1.05,
    "training step of MinGRU against torch.nn.GRU": 9,
    "training step of transformers' RecurrentGemma after accelerate against the layer as it was": 20,
    "training step of transformers' RWKV after accelerate against the layer as it was": 20,
    "training step of transformers' gated delta rule after accelerate against the layer as it was": 3,
    "training step of the gated delta rule against transformers' torch fallback": 3,
    "training step of transformers' RecurrentGemma after accelerate over its own matrix products": 1.5,
    "training step of transformers' RWKV after accelerate over its own matrix products": 1.5,
} | {
    f"batches of {name} against the training step that takes them": 20
    for name in ("functional", "recall", "recall-long", "multi-recall", "lotka-volterra", "images", "text")
} | {
    f"training step of an accelerated {kind} against torch's, {shape} units": goal
    for kind, goals in (("LSTM", (2, 3, 4, 1.3, 1.3, 1)), ("GRU", (8, 16, 20, 2, 2, 1.2)))
    for shape, goal in zip(
        ("4 x 8,192 x 128, 64", "4 x 8,192 x 128, 16", "1 x 2,048 x 32, 32", "128 x 32 x 64, 64", "64 x 784 x 64, 64",
         "64 x 784 x 64, 256"), goals, strict=True,
    )
} | {f"a streamed step of {kind}(64) against torch's module, 16 in a row": 6 for kind in ("LSTM", "GRU")} | {
    f"{name} on 2 threads beside 3 busy processes over 1 thread": 1.3
    for name in ("scan", "s4d", "lru", "rnn", "selective", "lstm", "gru", "delta_rule")
}  # fmt: skip
if products.pays():  # elsewhere the product of a linear layer is torch's own
    GOALS[products.ROW] = products.GOAL


def matches(plan):
    return [match for case in plan.cases for match in case.matches]


def test_every_row_of_the_speed_table_is_measured_against_its_goal():
    found = {match.row: match.goal for match in matches(registry.select(peers=True)) if match.goal is not None}
    assert found == GOALS


def test_only_what_ours_adds_to_is_an_upper_bound():
    limited = [match for match in matches(registry.select(peers=True)) if match.goal is not None]
    upper = {match.row for match in limited if match.sense == "at most"}
    lower = ("share", "one token", "product of", "accelerated LSTM against", "accelerated GRU against")
    bounds = {row for row, goal in GOALS.items() if goal < 2 and not any(part in row for part in lower)}
    assert upper == bounds | {row for row in GOALS if "over one exp" in row}


def test_names_are_unique():
    assert len(set(registry.names())) == len(registry.names())


def test_without_peers_nothing_but_torch_is_needed():
    plan = registry.select()
    assert all(not match.against.modules for match in matches(plan))
    groups = {case.group for case in plan.cases if case.matches}
    assert groups == {"scan", "s4d", "lru", "rnn", "selective", "stack-lru", "stack-s4d", "probes"} | {
        "perturbation-linear", "perturbation-tanh", "perturbation-rnn", "monitor-lru", "monitor-linear",
        *(f"data-{name}" for name in data.SETS),
        "training-images", "training-recall", "packed", "selective-heads", "mamba", "mamba-forward", "recurrent-mingru",
        "gated-lstm", "gated-gru", "gated-lstm-stream", "gated-gru-stream", "linear",
        *(f"busy-{name}" for name in ("scan", "s4d", "lru", "rnn", "selective", "lstm", "gru", "delta_rule")),
    }  # fmt: skip
    assert len(matches(registry.select(peers=True))) > len(matches(plan))


def test_only_takes_kernels_cases_growth_and_memory():
    assert {case.group for case in registry.select(["lru"]).cases} == {"lru"}
    assert [case.name for case in registry.select(["rnn-128x32x1x64"]).cases] == ["rnn-128x32x1x64"]
    plan = registry.select(["growth-s4d", "memory"])
    assert plan.cases == ()
    assert [kernel.name for kernel in plan.growth] == ["s4d"]
    kernels = ["scan", "s4d", "lru", "rnn", "selective"]
    whole = ["mamba-layer", "mamba-layer-before", "mamba-24-layers", "recall"]
    assert [kernel.name for kernel in plan.memory] == [*kernels, *whole]


def test_quick_keeps_small_shapes_of_every_kernel():
    plan = registry.select(quick=True)
    assert {case.group for case in plan.cases} == {"scan", "s4d", "lru", "rnn", "selective", "packed", "linear"}
    assert len(plan.cases) < len(registry.cases())
    assert plan.growth == plan.memory == ()
    # a case asked for by its name is run, however large
    assert len(registry.select(["scan-1x131072x64"], quick=True).cases) == 1


def test_an_unknown_name_lists_the_known_ones_nearest_first():
    with pytest.raises(UnknownNameError, match=r"unknown benchmark 'growth-s4'\. Did you mean 'growth-s4d'\?"):
        registry.select(["growth-s4"])


@pytest.mark.parametrize("kernel", registry.kernels(), ids=lambda k: k.name)
def test_sweeps_vary_sizes_that_the_kernel_has(kernel):
    assert set(kernel.sweeps) == set(kernel.bounds) == {"B", "T", "N"}
    assert len(kernel.dims) == len(kernel.base) == len(kernel.memory_shape)
    for size, values in kernel.sweeps.items():
        assert kernel.base[kernel.dims.index(size)] in values


@pytest.mark.parametrize("kernel", registry.kernels(), ids=lambda k: k.name)
def test_stated_memory_counts_at_least_inputs_and_gradients(kernel):
    shape = tuple(min(n, 256) for n in kernel.memory_shape)
    inputs = kernel.make_inputs(shape)
    # every input but the cotangent has a gradient of its size; weights are left out of the statement, being small
    sequences = [x for x in inputs.values() if x.ndim == 3]
    assert kernel.stated_bytes(shape) >= sum(4 * x.numel() for x in sequences)


@pytest.mark.parametrize(
    "case", [*stack.at((2, 8, 16, 8), 1.0, 1.0), *perturbation.at((3, 8, 1, 4))], ids=lambda case: case.group
)
def test_the_rows_of_whole_models_run_at_a_small_size(case, monkeypatch):
    monkeypatch.setattr(timing, "BLOCK", 1e-5)
    monkeypatch.setattr(perturbation, "DRAWS", 2)
    monkeypatch.setattr(perturbation, "RADII", perturbation.RADII[-2:])
    for row in run_case(replace(case, matches=tuple(m for m in case.matches if not m.against.modules)), 0.01, str):
        assert row.status in ("met", "missed", "information"), row.note


def test_the_rows_of_a_transformers_mamba_compute_what_the_layer_computed_before(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(timing, "BLOCK", 1e-5)
    monkeypatch.setattr(mamba, "SHAPES", ((1, 64, mamba.HIDDEN, mamba.STATES),))
    for case in mamba.cases():
        there = tuple(m for m in case.matches if "mambapy" not in m.against.modules)
        for row in run_case(replace(case, matches=there), 0.01, str):
            assert row.status in ("met", "missed", "information"), row.note
