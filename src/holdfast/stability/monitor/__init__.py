"""GradientMonitor, what it watches, and the guard that stops or rolls back by its alarms.

`_signals.py` compares loss, gradient and state with their medians, `_activations.py` sees states and step sizes by hooks,
`vitals.py` says what records mean for memory.
"""

from holdfast.stability.monitor._signals import Alarm
from holdfast.stability.monitor.guard import DivergenceGuard
from holdfast.stability.monitor.history import GradientHistory
from holdfast.stability.monitor.monitor import DivergenceWarning, GradientMonitor

__all__ = ["Alarm", "DivergenceGuard", "DivergenceWarning", "GradientHistory", "GradientMonitor"]
