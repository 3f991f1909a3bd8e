"""What threads cost beside other processes: a training step on 2 threads over the same step on 1, three busy loops beside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, Runner, Shape
from holdfast_papers.benchmarks.cases import gated, lru, recurrent, rnn, s4d, scan, selective

GROUP = "busy"
QUICK: tuple[Shape, ...] = ()
LOOPS = 3
GOAL = 1.3
# looks every 10 ms whether the process that started it still lives
LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(300000): pass"
CASES = (
    scan._case((128, 32, 64)),
    s4d._case((128, 32, 1, 64)),
    lru._case((128, 32, 1, 64)),
    rnn._case((128, 32, 1, 64)),
    selective._case((8, 64, 64, 16)),
    gated._case("lstm", (128, 32, 64, 64)),
    gated._case("gru", (128, 32, 64, 64)),
    recurrent.rule_case((4, 64, 4, 64)),
)


def cases() -> list[Case]:
    """A small training step of each kernel: there a team has most to lose."""
    return [_case(case) for case in CASES]


@contextmanager
def busy_loops(count: int = LOOPS) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keeps `count` processes busy, each in a session of its own, which is a scheduling group as containers are one."""
    threads, command = torch.get_num_threads(), [sys.executable, "-c", LOOP, str(os.getpid())]
    loops = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield loops
    finally:
        torch.set_num_threads(threads)
        for loop in loops:
            loop.kill()
            loop.wait()


def _case(case: Case) -> Case:
    kernel = case.group.split("-")[-1]
    row = f"{kernel} on 2 threads beside {LOOPS} busy processes over 1 thread"
    alone = Contender("1 thread", "roofline", _on_threads(1, case.ours.build))
    return Case(
        group=f"{GROUP}-{kernel}",
        shape=case.shape,
        inputs=case.inputs,
        truth=case.truth,
        ours=Contender("2 threads", "ours", _on_threads(2, case.ours.build)),
        matches=(Match(alone, row, GOAL, "at most"),),
        memory=case.memory,
        beside=busy_loops,
    )


def _on_threads(count: int, build: Callable[[Inputs], Runner]) -> Callable[[Inputs], Runner]:
    def built(inputs: Inputs) -> Runner:
        runner = build(inputs)

        def step() -> object:
            torch.set_num_threads(count)
            return runner.step()

        return Runner(step, runner.read)

    return built
