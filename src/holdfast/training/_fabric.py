"""Lightning Fabric as the loop uses it: made from a config, loaded when something is trained; what is put back after."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.errors import ArgumentError, BackendError
from holdfast.kernels import reuse_memory
from holdfast.training._config import TrainingConfig


def make_fabric(config: TrainingConfig, folder: Path, loggers: Sequence[Any] = ()) -> Any:
    """A Fabric for the config, with its processes started where it has several."""
    try:
        from lightning_fabric import Fabric
    except ImportError:
        raise BackendError("training needs Lightning Fabric: pip install 'holdfast[train]'") from None
    given = [*loggers, *([_tensorboard(folder)] if config.tensorboard else [])]
    fabric = Fabric(
        accelerator=config.accelerator,
        strategy=_strategy(config),
        devices=config.devices,
        num_nodes=config.nodes,
        precision=config.precision,
        loggers=given,
    )
    fabric.launch()
    return fabric


def check_batch_size(config: TrainingConfig, processes: int) -> int:
    """Examples that one process takes at a time."""
    parts = processes * config.accumulate
    if config.batch % parts:
        raise ArgumentError(
            f"batch must be a multiple of {parts} ({processes} processes times accumulate = {config.accumulate}), got "
            f"{config.batch}"
        )
    return config.batch // parts


@contextmanager
def undisturbed(threads: int | None) -> Iterator[None]:
    """Puts random states and the number of threads back at the end; freed memory is kept for the next step until then."""
    # a training run seeds every generator at every step; the caller's own numbers go on as if it had not
    before = random.getstate(), np.random.get_state(), torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        with torch.random.fork_rng(), reuse_memory():
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_num_threads(before[2])


def seed_all(seed: int) -> None:
    """Seeds every generator that a module may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # torch.manual_seed formats three stacks for missing devices: a millisecond per step
        torch.default_generator.manual_seed(seed)


def _strategy(config: TrainingConfig) -> Any:
    if config.strategy != "fsdp":
        return config.strategy
    from lightning_fabric.strategies import ModelParallelStrategy

    # Fabric's own FSDP strategy takes GPUs only; this one runs torch's fully_shard on any device
    return ModelParallelStrategy(shard, data_parallel_size=config.devices * config.nodes, tensor_parallel_size=1)


def shard(model: nn.Module, mesh: Any) -> nn.Module:
    """Shares the weights out: each block of a stack on its own, so that only one is whole at a time, then the rest."""
    from torch.distributed.fsdp import fully_shard

    for module in [*model.modules()]:
        if isinstance(module, nn.ModuleList):
            for block in module:
                fully_shard(block, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])  # type: ignore[return-value]


def _tensorboard(folder: Path) -> Any:
    from lightning_fabric.loggers import TensorBoardLogger

    try:
        return TensorBoardLogger(root_dir=folder / "tensorboard", name="", version="")
    except ModuleNotFoundError:
        raise BackendError("tensorboard = true needs TensorBoard: pip install 'holdfast[tensorboard]'") from None
