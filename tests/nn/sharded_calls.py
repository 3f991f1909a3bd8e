"""Layers under `fully_shard` in two processes: prints what each call gave beside the same layer alone.

Run as `python sharded_calls.py`; every line of the output is [layer, call, outcome], and outcome is "equal" or an error.
"""

import copy
import json
import os
import socket
import sys

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from holdfast.nn import LRU, S4D, ContinuousGRU, ContinuousRNN, DiagonalSSM, LinearRNN, SelectiveSSM

WORLD = 2
LAYERS = {
    kind.__name__: kind for kind in (S4D, LRU, DiagonalSSM, LinearRNN, ContinuousRNN, ContinuousGRU, SelectiveSSM)
}


def close(got, expected):
    return torch.allclose(got, expected, rtol=1e-5, atol=1e-6)


def forward(layer, alone, x, gradients):
    with torch.set_grad_enabled(gradients):
        (y, _), (y_alone, _) = layer(x), alone(x)
        same = close(y, y_alone)
        if gradients:
            y.square().mean().backward()
            y_alone.square().mean().backward()
            # each process saw the same batch, so that the mean over processes is the gradient of one
            pairs = zip(layer.parameters(), alone.parameters(), strict=True)
            same = same and all(close(p.grad.full_tensor(), q.grad) for p, q in pairs if q.grad is not None)
    return same


def step(layer, alone, x, gradients):
    with torch.set_grad_enabled(gradients):
        state = state_alone = None
        for t in range(3):
            y, state = layer.step(x[:, t], state)
            y_alone, state_alone = alone.step(x[:, t], state_alone)
            if not close(y, y_alone):
                return False
        if gradients:
            y.square().mean().backward()
    return True


def outcome(call, kind, registered, gradients):
    torch.manual_seed(0)
    alone = kind(8, 16)
    layer = fully_shard(copy.deepcopy(alone), mesh=init_device_mesh("cpu", (WORLD,)))
    if registered:
        register_fsdp_forward_method(layer, "step")
    try:
        return "equal" if call(layer, alone, torch.randn(4, 20, 8), gradients) else "different"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def run(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    for name, kind in LAYERS.items():
        for gradients in (True, False):
            mode = "with gradients" if gradients else "without gradients"
            calls = {
                f"forward {mode}": (forward, False), f"step {mode}": (step, True), f"unregistered step {mode}": (step, False)
            }  # fmt: skip
            for case, (call, registered) in calls.items():
                line = json.dumps([name, case, outcome(call, kind, registered, gradients)])
                if rank == 0:
                    sys.stdout.write(f"{line}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(run, (port,), nprocs=WORLD)
