"""Calls of every kernel and layer with tensors that have no memory of their own, one of them or all; a process for each.

Run as a script: prints a JSON pair [case, outcome] a line. An outcome is "ran", "refused" (one of our errors), the name of
another error, or "signal N" where the process died.
"""

import functools
import json
import os
import resource
import signal
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

import holdfast
from holdfast import kernels
from holdfast.errors import HoldfastError
from holdfast.kernels.s4d._step import s4d_step

BATCH, TIME, WIDTH, MODES = 2, 24, 16, 4


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype)


def rates(*shape):
    return -torch.rand(shape)


# what each kernel takes: (call, tensors)
KERNELS = {
    "scan": (kernels.scan, lambda: [torch.rand(WIDTH), numbers(BATCH, TIME, WIDTH), numbers(BATCH, WIDTH)]),
    "lru": (
        kernels.lru,
        lambda: [
            numbers(BATCH, TIME, WIDTH), torch.rand(8), torch.rand(8), numbers(16, WIDTH), numbers(WIDTH, 16),
            numbers(WIDTH), numbers(BATCH, 16),
        ],
    ),
    "rnn": (
        kernels.rnn,
        lambda: [numbers(BATCH, TIME, 3), numbers(5, 5), numbers(5, 3), numbers(5), numbers(BATCH, 5)],
    ),
    "s4d": (
        kernels.s4d,
        lambda: [
            numbers(BATCH, TIME, WIDTH), torch.rand(WIDTH), rates(WIDTH, MODES), numbers(WIDTH, MODES),
            numbers(WIDTH, MODES), numbers(WIDTH, MODES), numbers(WIDTH),
        ],
    ),
    "s4d_step": (
        s4d_step,
        lambda: [
            numbers(BATCH, WIDTH), numbers(BATCH, WIDTH, MODES), torch.rand(WIDTH, MODES), numbers(WIDTH, MODES),
            numbers(WIDTH, MODES), numbers(WIDTH),
        ],
    ),
    "selective": (
        kernels.selective,
        lambda: [
            numbers(BATCH, TIME, WIDTH), torch.rand(BATCH, TIME, WIDTH), rates(WIDTH, MODES),
            numbers(BATCH, TIME, MODES), numbers(BATCH, TIME, MODES), numbers(WIDTH),
        ],
    ),
    "gate": (
        kernels.gate,
        lambda: [numbers(BATCH, TIME, 16), numbers(BATCH, TIME, 16), numbers(32, 16), numbers(32)],
    ),
    "causal_conv": (kernels.causal_conv, lambda: [numbers(BATCH, TIME, WIDTH), numbers(WIDTH, 4), numbers(WIDTH)]),
}  # fmt: skip
LAYERS = ("DiagonalSSM", "LRU", "S4D", "SelectiveSSM", "LinearRNN", "ContinuousRNN", "ContinuousGRU")


def freed(x):
    """A tensor whose memory was given back, as FSDP leaves its parameters, and that begins inside it."""
    whole = torch.cat((x.flatten(), x.flatten()))
    part = whole[x.numel() :].view(x.shape)
    whole.untyped_storage().resize_(0)
    return part


def nested(x):
    return torch.nested.nested_tensor(list(x) if x.ndim > 1 else [x])


MODE = FakeTensorMode(allow_non_fake_inputs=True)


@functools.cache
def mesh():
    """One process; made where it is needed, in a fork: its threads would not survive one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return init_device_mesh("cpu", (1,))


WRAPPERS = {
    "DTensor": lambda x: distribute_tensor(x, mesh(), [Replicate()]),
    "TwoTensor": lambda x: TwoTensor(x, x.clone()),
    "FakeTensor": lambda x: MODE.from_tensor(x),
    "zero tensor": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "freed": freed,
    "nested": nested,
}


def kernel_call(name, wrapper, place, tracked):
    call, make = KERNELS[name]
    tensors = make()
    chosen = range(len(tensors)) if place is None else (place,)
    for i in chosen:
        tensors[i] = WRAPPERS[wrapper](tensors[i])
    with nullcontext() if tracked else torch.no_grad():
        call(*tensors)


def default_device(name, tracked):
    call, make = KERNELS[name]
    tensors = [x.requires_grad_(tracked) for x in make()]
    torch.set_default_device("meta")
    with nullcontext() if tracked else torch.no_grad():
        out = call(*tensors)
    first = out if isinstance(out, torch.Tensor) else out[0]
    assert first.device.type == "cpu"
    if tracked:
        first.sum().backward()
    torch.set_default_device("cpu")
    assert bool(first.isfinite().all())


def layer_call(name, wrapper, method, twice):
    layer = getattr(holdfast.nn, name)(16, 4)
    x = numbers(BATCH, 16) if method == "step" else numbers(BATCH, TIME, 16)
    with torch.no_grad():
        if twice:
            getattr(layer, method)(x)
        if wrapper == "fully_shard":
            from torch.distributed.fsdp import fully_shard

            fully_shard(layer, mesh=mesh())
        else:
            for module in layer.modules():
                for key, weight in list(module._parameters.items()):
                    if weight is not None:
                        module._parameters[key] = nn.Parameter(WRAPPERS[wrapper](weight.detach()))
        getattr(layer, method)(x)
        getattr(layer, method)(x)


def layer_on_default_device(name, method):
    layer = getattr(holdfast.nn, name)(16, 4)
    x = numbers(BATCH, 16) if method == "step" else numbers(BATCH, TIME, 16)
    torch.set_default_device("meta")
    with torch.no_grad():
        getattr(layer, method)(x)
        y, _ = getattr(layer, method)(x)
    torch.set_default_device("cpu")
    assert bool(y.isfinite().all())


def cases():
    for name, (_, make) in KERNELS.items():
        for tracked in (False, True):
            yield f"{name}, default device meta, {tracked=}", default_device, (name, tracked)
            for wrapper in WRAPPERS:
                for place in (None,) if tracked else (None, 0, 1, len(make()) - 1):
                    yield f"{name}, {wrapper} at {place}, {tracked=}", kernel_call, (name, wrapper, place, tracked)
    for name in LAYERS:
        for method in ("forward", "step"):
            yield f"{name}.{method}, default device meta", layer_on_default_device, (name, method)
            for wrapper in ("fully_shard", "DTensor", "TwoTensor", "FakeTensor", "zero tensor", "nested"):
                for twice in (False, True):
                    label = f"{name}.{method}, {wrapper}, {'warm' if twice else 'cold'}"
                    yield label, layer_call, (name, wrapper, method, twice)


def outcome(run, arguments):
    try:
        run(*arguments)
    except HoldfastError:
        return "refused"
    except BaseException as error:
        return type(error).__name__
    return "ran"


def apart(run, arguments):
    """The outcome of a call in a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.write(writing, outcome(run, arguments).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return text or f"signal {os.WTERMSIG(status)}"


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for label, run, arguments in cases():
        sys.stdout.write(json.dumps([label, apart(run, arguments)]) + "\n")
        sys.stdout.flush()
