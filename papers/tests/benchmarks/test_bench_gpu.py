import pytest
import torch

from holdfast import kernels
from holdfast.errors import BackendError
from holdfast_papers.benchmarks import gpu


def test_kernels_are_checked_then_timed_against_triad_and_torch():
    # the CPU stands for a card: what is measured is the same, the kernels are others
    rows = gpu.run_on_gpu(torch.device("cpu"), (1, 32, 16), rounds=1)
    assert all("right by" in row.note for row in rows if row.against == "float64 reference")
    timed = [row for row in rows if row.ratio is not None]
    assert {(row.kernel, row.against) for row in timed} >= {
        (kernel, against)
        for kernel in ("causal_conv", "gate", "gru", "lru", "lstm", "rnn", "s4d", "scan", "selective")
        for against in ("triad of the same bytes", "torch's path (chunked)")
    }
    assert all(row.ratio > 0 for row in timed)
    assert {row.kernel for row in rows} == {*kernels.__all__} - {"reuse_memory"}
    # torch's own LSTM and GRU were found to give the same, so that they were timed
    assert {"torch.nn.LSTM", "torch.nn.GRU"} <= {row.against for row in timed}


def test_a_wrong_result_is_told_and_not_timed(monkeypatch):
    monkeypatch.setattr(gpu, "MAX_ERROR", -1.0)
    rows = gpu.run_on_gpu(torch.device("cpu"), (1, 32, 16), rounds=1)
    assert [row.note[:6] for row in rows] == ["wrong:"] * len(gpu.CASES)


def test_a_peer_that_differs_is_not_timed(monkeypatch):
    def doubled(inputs):
        return lambda: tuple(2 * x for x in gpu._step(gpu.CASES["scan"], inputs, "chunked")())

    monkeypatch.setitem(gpu.PEERS, "scan", {"doubled": ("torch", doubled)})
    rows = gpu.run_on_gpu(torch.device("cpu"), (1, 32, 16), rounds=1)
    (row,) = (row for row in rows if row.against == "doubled")
    assert row.ratio is None and row.note.startswith("not timed: differs")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    with pytest.raises(BackendError, match="got none on this machine"):
        gpu.check_device(torch.device("cuda"))
