"""Counts what a training step would launch and move on a GPU, without one; prints a JSON line for each layer and length.

Tensors are fake ones on a device of torch's PrivateUse1 backend, named "gpu": all shapes and operators are those of a GPU
where the Triton kernels run, nothing is computed. A process of its own: the backend cannot be taken away again.
"""

import json
import math
import os
import sys
import warnings
from collections import Counter

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from holdfast import kernels, nn
from holdfast.kernels._common import calls, checks, gpu
from holdfast.kernels.causal_conv import _triton as conv
from holdfast.kernels.lru import _triton as lru
from holdfast.kernels.rnn import _autograd as rnn
from holdfast.kernels.rnn._reference import RNNSaved, RNNSettings, RNNTensors
from holdfast.kernels.scan import _triton as scan
from holdfast.kernels.selective import _triton as selective

DEVICE = "gpu"
HOST_READS = (
    "_local_scalar_dense",
    "equal",
    "nonzero",
    "is_nonzero",
    "_unique2",
    "unique_consecutive",
    "masked_select",
)
FREE = (
    "empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "detach", "alias", "_unsafe_view",
    "lift_fresh", "_reshape_alias", "is_same_size",
)  # fmt: skip
WRITE_ONLY = (
    "copy_", "fill_", "zero_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones",
    "new_full", "arange",
)  # fmt: skip


def size(x):
    """Bytes that reading `x` takes; a dimension that is expanded is read once."""
    return math.prod(n for n, stride in zip(x.shape, x.stride(), strict=True) if stride or not n) * x.element_size()


def again(name, tensors):
    """Launches of one of our operators beyond the first, and bytes beyond one look at each argument and result."""
    if name.startswith("scan_triton"):
        a, like = tensors[0], tensors[1]
        parts = 2 if like.is_complex() else 1
        plan = scan.plan(*like.shape, parts, gpu.programs(like.device))
        moved = tensors[1] if name.endswith("forward") else tensors[-1]
        return (0, 0) if plan.segments == 1 else (2, size(a) + size(moved))
    if name in ("lru_triton_forward", "lru_triton_backward"):  # inputs and matrix read again where time is cut
        x, lam, matrix = tensors[:3]
        backward = name.endswith("backward")
        channels = lam.shape[0] // 2  # complex in all layers that are counted here
        segments = lru.plan(x.shape[0], x.shape[1], channels, gpu.programs(x.device))[1]
        sums = (2, 2 * 8 * x.shape[0] * segments * lam.shape[0]) if backward else (0, 0)  # lam's gradient, added up
        again_read = (2, size(x) + size(matrix)) if segments > 1 else (0, 0)
        return again_read[0] + sums[0], again_read[1] + sums[1]
    if name == "lru_triton_inputs":  # sums of the direct path's gradient for each tile, written and added up
        tiles = math.ceil(tensors[0].shape[0] * tensors[0].shape[1] / lru.DIRECT_TILE["TOKENS"])
        return 1, 2 * 4 * tiles * tensors[2].shape[0]
    if name == "causal_conv_triton_backward":  # partial sums of taps and bias, written and added up
        x, weight = tensors[:2]
        parts = math.ceil((x.shape[1] + weight.shape[1] - 1) / conv._STEPS) * x.shape[0]
        return 2, 2 * 4 * parts * x.shape[2] * (weight.shape[1] + 1)
    if not name.startswith("selective_triton"):
        return 0, 0
    u, _, A, B = tensors[:4]
    backward = name.endswith("backward")
    width, _, _ = selective.layout(backward, A.shape[1])
    blocks = math.ceil(u.shape[2] // B.shape[2] / width) * B.shape[2]
    _, parts = selective.segments(u.shape[0], u.shape[1], blocks, gpu.programs(u.device))
    # a first look at the segments reads u or grad_y, dt, and B or C
    extra = (2, 2 * size(u) + size(B)) if parts > 1 else (0, 0)
    if (
        backward
    ):  # partial sums of B's and C's gradients, written and read by torch's sums, beside those of A, D and dt_bias
        sums = 4 * 2 * 2 * B.numel() * math.ceil(u.shape[2] // B.shape[2] / width)
        extra = (extra[0] + 5, extra[1] + sums)
    return extra


class Count(TorchDispatchMode):
    """Launches, bytes, host reads and tensors on other devices."""

    def __init__(self):
        super().__init__()
        self.launches = self.bytes = 0
        self.reads, self.elsewhere = Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[-1]
        if name in HOST_READS:
            self.reads[name] += 1
        out = func(*args, **(kwargs or {}))
        outs = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        ins = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        for x in (*ins, *outs):
            if x.device.type != DEVICE and x.ndim:
                self.elsewhere[name] += 1
        if (
            not outs
            or name in FREE
            or any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        ):
            return out
        written = {id(x) for x in outs}
        if name in WRITE_ONLY:
            ins = [] if name.startswith("new_") or name.endswith("_like") else [x for x in ins if id(x) not in written]
        launches, extra = again(name, ins)
        self.launches += 1 + launches
        self.bytes += sum(map(size, ins)) + sum(map(size, outs)) + extra
        return out


def on_device(module):
    """The module with fake weights on the device."""
    for part in module.modules():
        for name, p in part._parameters.items():
            if p is not None:
                fake = torch.empty(p.shape, dtype=p.dtype, device=DEVICE)
                part._parameters[name] = torch.nn.Parameter(fake, requires_grad=p.requires_grad)
        for name, b in part._buffers.items():
            if b is not None:
                part._buffers[name] = torch.empty(b.shape, dtype=b.dtype, device=DEVICE)
    return module


BATCH, WIDTH = 8, 256
LAYERS = {
    "DiagonalSSM": lambda: nn.DiagonalSSM(WIDTH, WIDTH),
    "LRU": lambda: nn.LRU(WIDTH, WIDTH),
    "S4D": lambda: nn.S4D(WIDTH, 64),
    "SelectiveSSM": lambda: nn.SelectiveSSM(WIDTH, 16),
    "Mamba": lambda: nn.Mamba(WIDTH, 16),
    "Mamba2": lambda: nn.Mamba2(WIDTH, 128),
    "LinearRNN diagonal": lambda: nn.LinearRNN(WIDTH, WIDTH, structure="diagonal"),
    "MinGRU": lambda: nn.MinGRU(WIDTH, WIDTH),
    "MinLSTM": lambda: nn.MinLSTM(WIDTH, WIDTH),
    "RGLRU": lambda: nn.RGLRU(WIDTH, WIDTH),
    "ContinuousRNN": lambda: nn.ContinuousRNN(WIDTH, WIDTH),
    "LinearRNN": lambda: nn.LinearRNN(WIDTH, WIDTH),
    "LanguageModel": lambda: nn.LanguageModel(512, WIDTH, depth=2),
}


def training_step(name, time):
    """Forward and backward of one layer; bytes in units of its input."""
    layer = LAYERS[name]()
    with FakeTensorMode():
        on_device(layer)
        if name == "LanguageModel":
            x = torch.empty(BATCH, time, dtype=torch.int64, device=DEVICE)
        else:
            x = torch.empty(BATCH, time, WIDTH, device=DEVICE, requires_grad=True)
        options = {"lengths": torch.empty(BATCH, dtype=torch.int64, device=DEVICE)}
        options["resets"] = torch.empty(BATCH, time, dtype=torch.bool, device=DEVICE)
        count = Count()
        with count:
            y, _ = layer(x, **{key: value for key, value in options.items() if key in sys.argv})
            forward = count.launches
            y.backward(torch.empty_like(y))
    unit = BATCH * time * WIDTH * 4
    return {
        "name": name, "time": time, "forward": forward, "backward": count.launches - forward,
        "bytes": count.bytes / unit, "reads": dict(count.reads), "elsewhere": dict(count.elsewhere),
    }  # fmt: skip


def raw_scan(rows, time, channels):
    """The scan alone with factors that vary: 3 + 5 arrays are the least that a training step moves."""
    with FakeTensorMode():
        a, b = (torch.empty(rows, time, channels, device=DEVICE, requires_grad=True) for _ in range(2))
        count = Count()
        with count:
            h, _ = kernels.scan(a, b)
            h.backward(torch.empty_like(h))
    return {
        "name": f"scan {rows} x {channels}",
        "time": time,
        "launches": count.launches,
        "bytes": count.bytes / (rows * time * channels * 4),
    }


def loop_of_rnn(time=5):
    """The RNN's loop in torch, forward and backward: what its operator runs on a GPU, which a fake tensor passes over."""
    calls.LOWEST_ADDRESS = -1  # fake tensors have no address
    settings = RNNSettings("tanh", 1.0, False, "auto")
    with FakeTensorMode(), torch.no_grad():
        shapes = ((BATCH, time, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH,), (BATCH, WIDTH), (BATCH, time))
        given = [torch.empty(shape, device=DEVICE) for shape in shapes]
        lengths = torch.empty(BATCH, dtype=torch.int64, device=DEVICE)
        count = Count()
        with count:
            h, last, y = rnn._forward(RNNTensors(*given, lengths), settings, True)
            x, w, u, _, h0, dts = given
            rnn._backward(RNNSaved(x, w, u, h0, dts, lengths, h, y), h, last, settings, [True] * 6)
    return {"name": "rnn", "time": time, "reads": dict(count.reads), "elsewhere": dict(count.elsewhere)}


def stream(name):
    """Two steps without gradients, as a stream takes them; the second finds the coefficients of the first."""
    layer = LAYERS[name]()
    with FakeTensorMode(), torch.no_grad():
        on_device(layer)
        x, count = torch.empty(BATCH, WIDTH, device=DEVICE), Count()
        with count:
            _, state = layer.step(x)
            layer.step(x, state)
    return {"name": f"{name} stream", "reads": dict(count.reads), "elsewhere": dict(count.elsewhere)}


library = torch.library.Library("_", "IMPL")
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def under_autocast(name, time=128):
    """Dtypes of all products with time as a dimension, forward and backward, of what the scans keep, and of the state."""
    layer = LAYERS[name]()
    found, kept = Counter(), Counter()

    class Products(Count):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = super().__torch_dispatch__(func, types, args, kwargs)
            short = func._schema.name.split("::")[-1]
            ins = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
            if short in PRODUCTS and any(BATCH * time in x.shape for x in ins):
                found[str(ins[-1].dtype)] += 1
            if "triton_forward" in short:
                kept[str(out[0].dtype)] += 1
            return out

    with FakeTensorMode():
        on_device(layer)
        x = torch.empty(BATCH, time, WIDTH, device=DEVICE, requires_grad=True)
        with Products() as count, torch.autocast(DEVICE, dtype=torch.bfloat16):
            y, state = layer(x)
            y.backward(torch.empty_like(y))
    dtypes = {"products": dict(found), "kept": dict(kept), "state": str(state.dtype), "output": str(y.dtype)}
    grads = {str(p.grad.dtype) for p in layer.parameters()}
    return {"name": f"{name} autocast", "grads": sorted(grads), "reads": dict(count.reads), **dtypes}


def prepare():
    """Makes the device, and lets the package take it for one where Triton runs and where values are real."""
    os.environ["HOLDFAST_CHECKS"] = "auto"
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    _setup_privateuseone_for_python_backend(DEVICE)
    # autocast of a Python backend changes nothing by itself
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    torch.get_device_module(DEVICE).get_amp_supported_dtype = lambda: [torch.bfloat16]
    gpu.DEVICES, gpu._installed = (*gpu.DEVICES, DEVICE), lambda: True
    checks.readable = lambda value: True  # a check that reads values is to be seen, not skipped
    # the generators' state, which a fake device has not
    torch.utils.checkpoint.get_device_states = lambda *args: ([], [])
    torch.utils.checkpoint.set_device_states = lambda *args, **kwargs: None


if __name__ == "__main__":
    prepare()
    chosen = [name for name in LAYERS if name in sys.argv] or list(LAYERS)
    times = [int(word) for word in sys.argv if word.isdigit()] or [1024, 8192, 131072]
    if "autocast" in sys.argv:
        for layer in [name for name in chosen if name != "LanguageModel"]:
            print(json.dumps(under_autocast(layer)), flush=True)  # noqa: T201
        sys.exit()
    for rows, channels in ((64, 2048), (8, 256)):
        print(json.dumps(raw_scan(rows, 8192, channels)), flush=True)  # noqa: T201
    print(json.dumps(loop_of_rnn()), flush=True)  # noqa: T201
    for layer in chosen:
        if layer != "LanguageModel":
            print(json.dumps(stream(layer)), flush=True)  # noqa: T201
        for time in times:
            print(json.dumps(training_step(layer, time)), flush=True)  # noqa: T201
