"""GradientMonitor, what it watches, and its adapters to the training loops of others."""

from holdfast.stability.monitor.history import GradientHistory
from holdfast.stability.monitor.monitor import DivergenceWarning, GradientMonitor

__all__ = ["DivergenceWarning", "GradientHistory", "GradientMonitor"]
