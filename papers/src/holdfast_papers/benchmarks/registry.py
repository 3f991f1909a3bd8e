"""Everything that can be measured, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.errors import unknown_name
from holdfast_papers.benchmarks.case import Case, OwnKernel
from holdfast_papers.benchmarks.cases import (
    busy,
    data,
    gated,
    lru,
    mamba,
    memory,
    monitor,
    packed,
    perturbation,
    products,
    recurrent,
    rnn,
    s4d,
    scan,
    selective,
    stack,
    training,
)

KERNELS = (scan, s4d, lru, rnn, selective)
OTHERS = (products, gated, mamba, recurrent, packed, stack, memory, perturbation, monitor, data, training, busy)
MODULES = (*KERNELS, *OTHERS)
GROWTH, MEMORY = "growth", "memory"


@dataclass(frozen=True)
class Plan:
    """What a run will measure.

    Args:
        cases: shapes at which our kernels are timed against others.
        growth: kernels whose time is measured over their sizes.
        memory: kernels whose peak memory is measured.
    """

    cases: tuple[Case, ...]
    growth: tuple[OwnKernel, ...]
    memory: tuple[OwnKernel, ...]


def cases() -> list[Case]:
    """Every case of every kernel, in the order of the speed table."""
    return [case for module in MODULES for case in module.cases()]


def kernels() -> list[OwnKernel]:
    """Our kernels, for growth and memory."""
    return [module.KERNEL for module in KERNELS]


def remembered() -> list[OwnKernel]:
    """What peak memory is measured of: our kernels, layers and models of transformers, and a whole training step."""
    return [*kernels(), *mamba.KERNELS, training.KERNEL]


def names() -> list[str]:
    """What `select` knows: kernels, the stack, growth and memory (each also of one kernel), and single cases."""
    groups = [kernel.name for kernel in kernels()]
    own = [f"{GROWTH}-{group}" for group in groups] + [f"{MEMORY}-{kernel.name}" for kernel in remembered()]
    return [*groups, *(module.GROUP for module in OTHERS), GROWTH, MEMORY, *own, *(case.name for case in cases())]


def select(only: Sequence[str] = (), *, peers: bool = False, quick: bool = False) -> Plan:
    """The plan for the given names; raises UnknownNameError, nearest names first.

    Args:
        only: some of `names()`; none are all.
        peers: measure against other libraries too, not only against rooflines and what torch itself can do.
        quick: keep the small shapes, and leave growth and memory out unless they are asked for.
    """
    known = names()
    for name in only:
        if name not in known:
            raise unknown_name("benchmark", name, known)
    small = {(module.GROUP, shape) for module in MODULES for shape in module.QUICK}
    chosen = [
        case
        for case in cases()
        if (case.name in only)
        or (
            (not only or case.group in only or case.group.split("-")[0] in only)
            and (not quick or (case.group, case.shape) in small)
        )
    ]
    extra = not only and not quick
    return Plan(
        cases=tuple(case if peers else _without_peers(case) for case in chosen),
        growth=tuple(k for k in kernels() if extra or GROWTH in only or f"{GROWTH}-{k.name}" in only),
        memory=tuple(k for k in remembered() if extra or MEMORY in only or f"{MEMORY}-{k.name}" in only),
    )


def _without_peers(case: Case) -> Case:
    return replace(case, matches=tuple(m for m in case.matches if m.against.kind != "peer"))
