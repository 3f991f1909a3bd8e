"""Rows cut into pieces that know nothing of one another: resets inside a row, and sequences packed one after another.

Pieces of about one length are gathered into a batch, run by the kernel or layer as it stands, and put back. So the
result is by construction that of running the pieces apart, gradients included, whatever a neighbouring piece holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.errors import ArgumentError, DtypeError, ShapeError
from holdfast.kernels._common import checks

# padding that a batch of pieces may hold: this share of its steps, or so few that another call would cost more
_MAX_PADDING_SHARE = 0.25
_FREE_PADDING_STEPS = 64


class Cuts(NamedTuple):
    """Where rows are cut, and in which order they run.

    Args:
        lengths: steps of each row (batch,), or None.
        resets: bool (batch, time): before a marked step, in the order of the run, the state is zero; or None.
        cu_seqlens: bounds of the sequences in a batch of one row, or None.
        reverse: whether a run goes from the last step to the first.
    """

    lengths: Tensor | None
    resets: Tensor | None
    cu_seqlens: Tensor | None
    reverse: bool


class _Pieces(NamedTuple):
    """Pieces as steps of the flattened rows, the longest first; `closing` has one for each sequence, -1 where it is empty."""

    first: Tensor  # (pieces,)
    lengths: Tensor
    owner: Tensor  # the sequence that it belongs to
    opening: Tensor  # whether it continues from that sequence's initial state
    closing: Tensor  # (sequences,)


def in_pieces(
    function: str,
    run: Callable[..., tuple[Tensor, Any]],
    sequences: Mapping[str, Tensor],
    state: Tensor | None,
    cuts: Cuts,
) -> tuple[Tensor, Any]:
    """Outputs (batch, time, ...) and final states of `run(*sequences, state, lengths)`, run on every piece by itself.

    Args:
        function: the name that error messages give to the caller.
        run: the kernel; it returns outputs and final states, or None in their place.
        sequences: what is cut, (batch, time, ...) each, by name.
        state: initial states (sequences, ...), or None for zeros; a sequence is a row, or a part that `cu_seqlens` names.
        cuts: where the rows are cut.
    """
    if torch.compiler.is_compiling():  # as a decorator, `disable` would import all of dynamo, half of `import holdfast`
        return torch.compiler.disable(_in_pieces)(function, run, sequences, state, cuts)
    return _in_pieces(function, run, sequences, state, cuts)


def _in_pieces(
    function: str,
    run: Callable[..., tuple[Tensor, Any]],
    sequences: Mapping[str, Tensor],
    state: Tensor | None,
    cuts: Cuts,
) -> tuple[Tensor, Any]:
    """`in_pieces`, which no graph can hold: how many pieces there are is read from the data."""
    like = _check_sequences(function, sequences)
    starts, ends = _sequences(function, like, cuts.lengths, cuts.cu_seqlens)
    marks = None if cuts.resets is None else _marks(function, cuts.resets, like)
    if state is not None:
        _check_state(function, state, len(starts), like)
    pieces = _cut(starts, ends, marks, like.shape[0] * like.shape[1], cuts.reverse)
    if len(pieces.first) == 0:
        y, last = run(*(x.new_zeros(len(starts), 0, *x.shape[2:]) for x in sequences.values()), state, None)
        return y.new_zeros(*like.shape[:2], *y.shape[2:]), last
    flat = [x.flatten(0, 1) for x in sequences.values()]
    outputs, states = [], []
    place, used = torch.full((len(flat[0]),), -1, device=like.device), 0
    for group in _groups(pieces):
        steps, inside = _steps(pieces, group)
        taken = (x.index_select(0, steps.flatten()).unflatten(0, steps.shape) for x in flat)
        even = bool(inside.all())  # without lengths a kernel takes its faster way
        y, last = run(*taken, _before(pieces, group, state), None if even else pieces.lengths[group])
        outputs.append(y.flatten(0, 1))
        states.append(last)
        rows_of_output = torch.arange(used, used + steps.numel(), device=like.device).view(steps.shape)
        place[steps[inside]] = rows_of_output[inside]
        used += steps.numel()
    return _put_back(outputs, place).unflatten(0, like.shape[:2]), _final(states, pieces.closing, state)


def turned(function: str, resets: Tensor | None, like: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Marks for a reverse run over the same pieces: those of the first steps become those of the steps before them."""
    if resets is None:
        return None
    resets = _marks(function, resets, like).view(like.shape[:2])
    if lengths is not None:
        resets = resets & (torch.arange(resets.shape[1], device=resets.device) < lengths.unsqueeze(-1))
    return torch.cat((resets[:, 1:], torch.zeros_like(resets[:, :1])), 1)


def cleared(function: str, state: Tensor, resets: object) -> Tensor:
    """`state`, (batch, ...), with zeros in the rows that `resets`, bool (batch,), marks: for a single step."""
    marks = checks.tensor(function, "resets", resets, (torch.bool,))
    checks.shape(function, "resets", marks, state.shape[:1], "one for each row of the batch")
    checks.same_device(function, state=state, resets=marks)
    return torch.where(marks.view(-1, *(1,) * (state.ndim - 1)), state.new_zeros(()), state)


def _check_sequences(function: str, sequences: Mapping[str, Tensor]) -> Tensor:
    like: Tensor | None = None
    for name, x in sequences.items():
        if not isinstance(x, Tensor) or x.ndim < 2 or (like is not None and x.shape[:2] != like.shape[:2]):
            wanted = "batch, time" if like is None else ", ".join(map(str, like.shape[:2]))
            raise ShapeError(f"{function}: expected {name} of shape ({wanted}, ...), got {checks.describe(x)}")
        _check_dense(function, name, x)
        like = x if like is None else like
    assert like is not None
    return like


def _check_state(function: str, state: Tensor, count: int, like: Tensor) -> None:
    if not isinstance(state, Tensor) or state.ndim == 0 or len(state) != count:
        raise ShapeError(
            f"{function}: expected initial states of shape ({count}, ...), one for each sequence, got {checks.describe(state)}"
        )
    _check_dense(function, "the initial states", state)
    if state.device != like.device:
        raise ArgumentError(
            f"{function}: expected initial states on {like.device}, got {state.device}; move them with .to(device)"
        )


def _check_dense(function: str, name: str, x: Tensor) -> None:
    if x.layout is not torch.strided:
        raise DtypeError(f"{function}: expected {name} to be dense, got {x.layout}; call {name}.to_dense()")


def _marks(function: str, resets: Tensor, like: Tensor) -> Tensor:
    marks = checks.tensor(function, "resets", resets, (torch.bool,))
    checks.shape(function, "resets", marks, like.shape[:2], "one for each step of each row")
    _readable(function, "resets", marks, like)
    return marks.flatten()


def _readable(function: str, name: str, value: Tensor, like: Tensor) -> None:
    if value.device != like.device:
        raise ArgumentError(
            f"{function}: expected {name} on {like.device}, got {value.device}; move it with .to(device)"
        )
    if not checks.readable(value):
        raise ArgumentError(
            f"{function}: expected {name} to have values that can be read, got a tensor that is traced, mapped by vmap or on "
            "the meta device; leave it out there"
        )


def _sequences(function: str, like: Tensor, lengths: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where each sequence starts and ends in the flattened rows."""
    rows, time = like.shape[:2]
    if cu_seqlens is not None:
        if lengths is not None:
            raise ArgumentError(f"{function}: expected cu_seqlens or lengths, got both; leave lengths out")
        bounds = packed_bounds(function, cu_seqlens, like)
        return bounds[:-1], bounds[1:]
    starts = torch.arange(rows, device=like.device) * time
    if lengths is None:
        return starts, starts + time
    checks.lengths(function, lengths, (rows,), time, like.device)
    return starts, starts + lengths


def packed_bounds(function: str, cu_seqlens: object, like: Tensor) -> Tensor:
    """`cu_seqlens` in int64, after a check that it cuts the one row of `like`, (1, time, ...), into sequences."""
    bounds = checks.tensor(function, "cu_seqlens", cu_seqlens, (torch.int64, torch.int32))
    if like.shape[0] != 1:
        raise ShapeError(
            f"{function}: expected a batch of 1 with cu_seqlens (all sequences one after another), got a batch of "
            f"{like.shape[0]}; for a padded batch use lengths or resets instead"
        )
    if bounds.ndim != 1 or len(bounds) == 0:
        raise ShapeError(
            f"{function}: expected cu_seqlens of shape (sequences + 1,), from 0 to the time steps, "
            f"got {tuple(bounds.shape)}"
        )
    _readable(function, "cu_seqlens", bounds, like)
    first, last, least = int(bounds[0]), int(bounds[-1]), int(bounds.diff().min()) if len(bounds) > 1 else 0
    if first != 0 or last != like.shape[1] or least < 0:
        wrong = f"a step of {least}" if least < 0 else f"{first} to {last}"
        raise ArgumentError(
            f"{function}: expected cu_seqlens to run from 0 to {like.shape[1]} (the time steps) without decreasing, "
            f"got {wrong}; it is 0 followed by the cumulative sum of the sequences' lengths"
        )
    return bounds.long()


def _cut(starts: Tensor, ends: Tensor, marks: Tensor | None, total: int, reverse: bool) -> _Pieces:
    # all in a few operations on the device, however many pieces there are: only their lengths are read back, in _groups
    cut = torch.zeros(total, dtype=torch.bool, device=starts.device)
    # backwards, a reset before step t in the order of the run is a cut after it in memory
    if marks is not None and reverse:
        cut[1:] = marks[:-1]
    elif marks is not None:
        cut |= marks
    # sequences without steps have no piece, and would share their start with the next one
    filled = (ends > starts).nonzero().flatten()
    starts, ends, count = starts[filled], ends[filled], len(starts)
    cut[starts] = True
    first = cut.nonzero().flatten()
    owner = torch.searchsorted(starts, first, right=True) - 1
    kept = (owner >= 0) & (first < ends[owner]) if len(starts) else owner >= 0
    first, owner = first[kept], owner[kept]
    stop = torch.minimum(torch.cat((first[1:], first.new_full((min(1, len(first)),), total))), ends[owner])
    begins, stops = first == starts[owner], stop == ends[owner]
    opening, closes = (stops, begins) if reverse else (begins, stops)
    if marks is not None:
        opening = opening & ~marks[stop - 1 if reverse else first]
    # longest first, so that pieces of about one length stand together and share a batch with little padding
    order = torch.argsort(stop - first, descending=True, stable=True)
    closing = torch.full((count,), -1, device=first.device)
    closing[filled] = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))[closes]
    return _Pieces(first[order], (stop - first)[order], filled[owner[order]], opening[order], closing)


def _groups(pieces: _Pieces) -> Iterator[slice]:
    """Pieces that are run together: the longest first, as many as the padding allows."""
    values, counts = (x.tolist() for x in torch.unique_consecutive(pieces.lengths, return_counts=True))
    begin = end = longest = steps = 0
    for length, count in zip(values, counts, strict=True):
        # steps that the batch would have with these too, padding included
        room = longest * (end - begin + count)
        if end > begin and room - steps - length * count > max(_MAX_PADDING_SHARE * room, _FREE_PADDING_STEPS):
            yield slice(begin, end)
            begin, steps = end, 0
        longest = length if begin == end else longest
        end, steps = end + count, steps + length * count
    yield slice(begin, end)


def _steps(pieces: _Pieces, group: slice) -> tuple[Tensor, Tensor]:
    """Flat steps of a group's pieces (pieces, longest), the last one repeated after the end, and which are inside."""
    first, lengths = pieces.first[group].unsqueeze(-1), pieces.lengths[group].unsqueeze(-1)
    along = torch.arange(int(lengths[0]), device=first.device)
    # padding repeats a step of the same piece: finite where the piece is, and `lengths` keeps it out of the result
    return first + torch.minimum(along, lengths - 1), along < lengths


def _before(pieces: _Pieces, group: slice, state: Tensor | None) -> Tensor | None:
    opening = pieces.opening[group]
    if state is None or not bool(opening.any()):
        return None
    given = state.index_select(0, pieces.owner[group])
    return cleared("the state", given, ~opening)


def _put_back(outputs: list[Tensor], place: Tensor) -> Tensor:
    """Outputs in the order of the flattened rows; zeros at steps of no piece."""
    # one row of zeros at the end that all steps without a piece point to: no output is written twice
    if bool((place < 0).any()):
        outputs = [*outputs, outputs[0].new_zeros(1, *outputs[0].shape[1:])]
        place = torch.where(place < 0, sum(map(len, outputs)) - 1, place)
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).index_select(0, place)


def _final(states: list[Any], closing: Tensor, before: Tensor | None) -> Any:
    """The state of each sequence's last piece; a sequence without steps keeps its initial one."""
    if states[0] is None:
        return None
    empty = closing < 0
    if bool(empty.any()):
        shape = (len(closing), *states[0].shape[1:])
        own = states[0].new_zeros(shape) if before is None else before
        closing = torch.where(empty, sum(map(len, states)) + torch.arange(len(closing), device=closing.device), closing)
        states = [*states, own]
    return (states[0] if len(states) == 1 else torch.cat(states)).index_select(0, closing)
