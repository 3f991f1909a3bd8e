import sys
from dataclasses import replace

import pytest

from holdfast.errors import UnknownNameError
from holdfast_papers.benchmarks import memory, registry

KERNELS = {kernel.name: kernel for kernel in registry.kernels()}
linux = pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is read from /proc")


@pytest.mark.slow
@linux
def test_peak_of_a_training_step_is_inputs_outputs_gradients_and_saved_states():
    peak = memory.measure(KERNELS["scan"])
    assert peak.note == ""
    # 400 MB are stated; a tenth is room for threads, autograd and the allocator
    assert 0.9 * peak.stated < peak.measured < 1.1 * peak.stated


@pytest.mark.slow
@linux
def test_a_process_that_fails_says_so():
    broken = replace(KERNELS["scan"], name="nothing")
    peak = memory.measure(broken)
    assert peak.measured is None
    assert "unknown kernel 'nothing'" in peak.note


def test_without_proc_the_note_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "PROC", tmp_path)
    peak = memory.measure(KERNELS["lru"])
    assert peak.measured is None
    assert peak.note.startswith("not measured: the high-water mark of a process is read from Linux")


def test_unknown_kernel_is_refused():
    with pytest.raises(UnknownNameError, match="unknown kernel 'scam'"):
        memory.print_peak("scam")
