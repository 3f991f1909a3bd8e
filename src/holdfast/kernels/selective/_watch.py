"""Who wants to know how fast selective scans forget: while someone watches, each call says its step sizes and rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from holdfast.kernels.selective._reference import step_sizes

# called with step sizes (batch, time, channels or heads) and rates (channels, state) or (heads,)
Watcher = Callable[[Tensor, Tensor], None]
_WATCHERS: list[Watcher] = []


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Has `watcher(step_sizes, rates)` called by every scan until the end; in all threads."""
    _WATCHERS.append(watcher)
    try:
        yield
    finally:
        _WATCHERS.remove(watcher)


def watched() -> bool:
    """Whether anybody watches."""
    return bool(_WATCHERS)


def tell(dt: Tensor, A: Tensor, dt_bias: Tensor | None, softplus: bool) -> None:
    """Tells those who watch; nothing otherwise."""
    if not _WATCHERS:
        return
    delta = step_sizes(dt.detach(), None if dt_bias is None else dt_bias.detach(), softplus)
    for watcher in _WATCHERS:
        watcher(delta, A.detach())
