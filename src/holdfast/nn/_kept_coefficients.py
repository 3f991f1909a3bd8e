"""A layer's coefficients kept between the steps of a stream, for as long as all that they were made of is the same."""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from holdfast.kernels._common import checks, library
from holdfast.kernels._common.autograd import PLAIN
from holdfast.kernels._common.calls import pointer

Kept = TypeVar("Kept")
MAX_ENTRIES = 8  # of one layer: step sizes that take turns share them, one that changes all the time fills no memory


@functools.cache
def _same_bytes() -> Any:
    address = ctypes.c_void_p
    return library.function("holdfast_same", [address, address, address, ctypes.c_int64], ctypes.c_int)


class Snapshot:
    """The numbers and the settings that coefficients are made of, to tell later whether they are still the same.

    Contents are compared, not version counters: those miss a change through `.data`. That is one call in C for all
    tensors where it can be, since torch.equal takes 3 us a tensor at every step. On a GPU the host would wait for the
    answer at every step, so there it is addresses and version counters, unless HOLDFAST_CHECKS=full. Nothing changes after
    it is made but `_prepared`, which is replaced as a whole: threads may share one.
    """

    def __init__(self, layer: nn.Module, sources: Sequence[Tensor]) -> None:
        inner = [module for module in layer.modules() if module is not layer]
        holders = [holder for m in inner for holder in (m.__dict__, m._modules) if holder]
        self._settings = [(holder, len(holder), tuple(holder.values())) for holder in holders]
        # constants of a parameterization may be buffers, which are changed in place by loading a state dict
        self._buffers = tuple(b for module in inner for b in module._buffers.values() if b is not None)
        watched = (*sources, *self._buffers)
        # plain tensors on a GPU; a look at the first one takes 50 ns, at all of them as long as the rest of a step
        self._by_marks = bool(watched) and checks.readable(watched[0]) and not checks.at_hand(watched[0])
        self._marks = _marks(watched) if self._by_marks else None
        kept = () if self._by_marks else watched
        self._copies = [t.detach().clone(memory_format=torch.contiguous_format) for t in kept]
        self._prepared: tuple[Any, Any] = (None, None)

    def holds(self, sources: Sequence[Tensor]) -> bool:
        """True where every setting, and dtype, shape, layout and numbers of every tensor are as they were."""
        for holder, size, values in self._settings:
            if len(holder) != size or not all(map(operator.is_, holder.values(), values)):
                return False
        tensors = (*sources, *self._buffers) if self._buffers else sources
        # a subclass may have no memory to compare
        if not all(type(t) in PLAIN and not t._is_zerotensor() for t in tensors):
            return False
        if self._by_marks:
            return self._marks is not None and self._marks == _marks(tensors)
        places = [(pointer(t), t.nbytes, t.stride()) for t in tensors]
        before, arguments = self._prepared
        if places == before:
            return bool(_same_bytes()(*arguments))
        return self._compare(tensors, places)

    def _compare(self, tensors: Sequence[Tensor], places: list[Any]) -> bool:
        if len(tensors) != len(self._copies) or any(t.is_meta for t in tensors):
            return False
        pairs = list(zip(self._copies, tensors, strict=True))
        if any(x.dtype is not y.dtype or x.shape != y.shape or x.device != y.device for x, y in pairs):
            return False
        # the native comparison of all tensors in one call needs bytes that lie one after another
        if library.missing() or not all(t.device.type == "cpu" and t.is_contiguous() for t in tensors):
            return all(torch.equal(x, y) for x, y in pairs)
        count = len(places)
        copied = (ctypes.c_void_p * count)(*(pointer(copy) for copy in self._copies))
        now = (ctypes.c_void_p * count)(*(place for place, _, _ in places))
        arguments = copied, now, (ctypes.c_int64 * count)(*(size for _, size, _ in places)), count
        self._prepared = places, arguments
        return bool(_same_bytes()(*arguments))


def _marks(tensors: Sequence[Tensor]) -> list[Any] | None:
    """What changes with the numbers and takes no look at them; None where it is not known."""
    if any(t.is_meta or t.is_inference() for t in tensors):
        return None
    return [(t.data_ptr(), t._version, t.dtype, t.shape, t.stride(), t.device) for t in tensors]


class Keeping(nn.Module):
    """A module that keeps coefficients between calls."""

    def _keep(self, key: Hashable, sources: tuple[Tensor, ...], make: Callable[[], Kept]) -> Kept:
        """`make()`, kept between calls while gradients are off and nothing that it is made of has changed.

        Streaming spends most of its time on discretization otherwise. `sources` are the layer's weights that `make`
        reads; settings, and the constants of a parameterization, are watched without being named.
        """
        kept = self.__dict__.get("_kept")
        if kept is None:
            kept = self.__dict__.setdefault("_kept", {})
        if torch.compiler.is_exporting() and key in kept:
            return kept[key][1]
        watched = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if torch.compiler.is_exporting():
            kept[key] = (None, make())
            return kept[key][1]
        if torch.is_grad_enabled() or watched:
            return make()
        entry = kept.get(key)
        if entry is not None and entry[0].holds(sources):
            return entry[1]
        # copied before make() and compared after it: another thread may change the weights meanwhile
        snapshot = Snapshot(self, sources)
        value = make()
        if snapshot.holds(sources):
            if len(kept) >= MAX_ENTRIES:
                kept.clear()
            kept[key] = (snapshot, value)
        return value

    def _forget(self) -> None:
        """Drops what is kept, by a new dict: what a thread is making now goes into the old one."""
        self.__dict__["_kept"] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; coefficients that were made of the old one are dropped, in this order."""
        super().__setattr__(name, value)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_kept"}
