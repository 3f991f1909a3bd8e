"""torch.compile, ONNX, DDP and copies: the layers where users put them."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from layer_cases import BATCH, FEATURES, LAYERS, build, sequence

import children
from holdfast.nn import SequenceClassifier

# one of each kind of kernel and of state; the others take the same way
COMPILED = [
    "LRU",
    "S4D lin",
    "Mamba2",
    "ContinuousGRU",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("DiagonalSSM", "S4D real", "SelectiveSSM", "Mamba", "LinearRNN", "ContinuousRNN")
    ),
]


@pytest.mark.usefixtures("user_mistakes")  # what checks annotations while testing cannot be traced
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_layer_has_no_graph_break_and_equal_outputs_and_gradients(name):
    torch.compiler.reset()  # all layers share one forward, which is compiled again for each: torch allows eight
    layer, x = build(name).float(), sequence().float()
    compiled = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="aot_eager")
    expected, last = layer(x)
    found, end = compiled(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(end, last)
    (expected.sum() + last.square().sum()).backward()
    (found.sum() + end.square().sum()).backward()
    for (path, a), b in zip(layer.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, msg=lambda m, path=path: f"{path}: {m}")


@pytest.mark.usefixtures("user_mistakes")
def test_a_compiled_classifier_trains_without_the_final_state():
    torch.compiler.reset()
    torch.manual_seed(0)
    model, x = SequenceClassifier(FEATURES, 2, 4, depth=1, layer="s4d", state_size=4), sequence().float()
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
    for each in (model, compiled):
        each(x).square().sum().backward()
    for (path, a), b in zip(model.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, msg=lambda m, path=path: f"{path}: {m}")


@pytest.mark.parametrize("name", COMPILED)
def test_exported_step_runs_in_onnxruntime(name, tmp_path):
    import onnxruntime

    layer = build(name).float().eval()
    x = torch.randn(BATCH, FEATURES)
    state = torch.randn_like(layer.initial_state(BATCH))
    path = tmp_path / "step.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        torch.onnx.export(layer.stepper(), (x, state), str(path), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {i.name: v.numpy() for i, v in zip(session.get_inputs(), (x, state), strict=True)}
    y, after = session.run(None, feeds)
    with torch.no_grad():
        expected, end = layer.step(x, state)
    # two float32 runtimes, sums of a few terms
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after, end.numpy(), rtol=1e-5, atol=1e-6)


DDP = """
import torch.multiprocessing
import test_deployment
torch.multiprocessing.start_processes(test_deployment.gradients_in, args=({store!r},), nprocs=2, start_method="fork")
print("equal")
"""


def gradients_in(rank, store):
    """One of two DDP processes: the gradients of each layer on half a batch, averaged, against the whole batch."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.cat([sequence(seed=1), sequence(seed=2)])
    for name in LAYERS:
        model = torch.nn.parallel.DistributedDataParallel(build(name))
        y, state = model(x[rank::2])
        (y.square().mean() + state.square().mean()).backward()
        if rank == 0:
            alone = build(name)
            y, state = alone(x)
            (y.square().mean() + state.square().mean()).backward()
            for (path, a), b in zip(alone.named_parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(b.grad, a.grad, rtol=1e-9, atol=1e-11, msg=f"{name} {path}")
    torch.distributed.destroy_process_group()


def test_two_ddp_processes_give_the_gradients_of_one(tmp_path):
    done = children.run(DDP.format(store=str(tmp_path / "store")))
    assert done.stdout.strip().endswith("equal"), done.stderr[-3000:]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_can_be_copied_and_pickled_after_streaming(name):
    layer, x = build(name), sequence()
    with torch.no_grad():
        layer.step(x[:, 0])
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x)[0], layer(x)[0])
