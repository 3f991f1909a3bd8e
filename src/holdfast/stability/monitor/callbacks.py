"""Thin adapters of GradientMonitor to training loops that others wrote."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.errors import BackendError

if TYPE_CHECKING:
    from holdfast.stability.monitor.monitor import GradientMonitor


def lightning_callback(monitor: GradientMonitor) -> Any:
    """A callback for Lightning's Trainer, of whichever package is installed."""
    base = _first("Callback", ("lightning.pytorch", "pytorch_lightning"), "pip install lightning")

    def on_before_optimizer_step(self: Any, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        monitor.record(step=trainer.global_step)

    return type("MonitorCallback", (base,), {"on_before_optimizer_step": on_before_optimizer_step})()


def transformers_callback(monitor: GradientMonitor) -> Any:
    """A callback for transformers' Trainer."""
    base = _first("TrainerCallback", ("transformers",), "pip install 'holdfast[hf]'")

    def on_pre_optimizer_step(self: Any, args: Any, state: Any, control: Any, **rest: Any) -> None:
        monitor.record(step=state.global_step)

    return type("MonitorCallback", (base,), {"on_pre_optimizer_step": on_pre_optimizer_step})()


def _first(name: str, packages: tuple[str, ...], how: str) -> Any:
    for package in packages:
        try:
            return getattr(importlib.import_module(package), name)
        except ImportError:
            continue
    raise BackendError(f"{packages[0].partition('.')[0]} is not installed; get it by: {how}")
