"""Large models: what a diagnosis runs is bounded, and what it leaves out is said before anything is measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.diagnosis import _diagnose, _reading
from holdfast.diagnosis._learning import adam
from holdfast.diagnosis._reading import read_model

transformers = pytest.importorskip("transformers")


@pytest.fixture
def mamba():
    torch.manual_seed(0)
    config = transformers.MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=40, state_size=4)
    return transformers.MambaForCausalLM(config)


@pytest.fixture
def counted(monkeypatch):
    """Steps of one row that models ran forward, without and with gradients."""
    steps = {False: 0, True: 0}
    own = holdfast.memory.huggingface.FromEmbeddings.forward

    def forward(self, x):
        steps[torch.is_grad_enabled()] += x.shape[0] * x.shape[1]
        return own(self, x)

    monkeypatch.setattr(holdfast.memory.huggingface.FromEmbeddings, "forward", forward)
    return steps


def as_large(monkeypatch, **limits):
    """Counts weights a million times over, so that every rule for a large model holds for a small one."""
    own = _reading.count_weights
    times = 1_000_000 if limits.get("huge") else 8_000
    for module in ("_reading", "_diagnose", "_learning", "_forgetting", "_weights", "_trial"):
        monkeypatch.setattr(f"holdfast.diagnosis.{module}.count_weights", lambda model: times * own(model))


def test_the_steps_that_a_large_model_runs_are_bounded(mamba, counted, monkeypatch):
    monkeypatch.setattr("holdfast.diagnosis._samples.STEP_WORK", 1)  # sequences of 32 steps, two at a time
    monkeypatch.setattr("holdfast.memory._subject.MAX_WORK", 1)
    as_large(monkeypatch)
    found = holdfast.diagnose(mamba)
    assert 2e7 < _reading.count_weights(mamba) < 5e8
    assert found.learning is not None
    assert found.learning.run_steps == 10
    assert not found.unseen
    assert any("2 random changes of the weights at each size instead of 8" in note for note in found.notes)
    # 129 million weights take 2.7 ms per step: 25 s forward; it ran 33,000 steps before
    assert counted[False] < 14_000
    assert counted[True] < 8_000


def test_what_a_huge_model_leaves_out_is_said_before_it_is_measured(mamba, counted, monkeypatch):
    as_large(monkeypatch, huge=True)
    told = []
    found = holdfast.diagnose(mamba.bfloat16(), progress=lambda text, done, total: told.append((text, counted[False])))
    assert "training and advice are left out" in told[0][0]
    assert told[0][1] < 400  # the short runs that show how it is read
    assert any("left out" in line for line in found.unseen)
    assert found.learning is None
    assert found.advice == ()
    assert counted[True] == 0
    assert found.memory
    assert found.survival is not None
    assert found.survival.half
    assert next(mamba.parameters()).dtype == torch.bfloat16


def test_large_weights_of_16_bits_are_measured_in_a_float32_copy(mamba, monkeypatch):
    half = mamba.bfloat16()
    assert not read_model(half, None, 0).half
    as_large(monkeypatch)
    reading = read_model(half, None, 0)
    assert reading.half
    assert {p.dtype for p in reading.model.parameters()} == {torch.float32}
    assert any("16 bits" in note for note in reading.notes)


def test_fused_adam_takes_the_steps_of_the_plain_one():
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(7)) for _ in range(2)]
    copies = [torch.nn.Parameter(w.detach().clone()) for w in weights]
    for optimizer, own in ((adam(weights, 0.1), weights), (torch.optim.Adam(copies, lr=0.1, foreach=False), copies)):
        for k in range(3):
            for w in own:
                w.grad = torch.cos(w.detach() + k)
            optimizer.step()
    for one, other in zip(weights, copies, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_shares_of_progress_add_up_to_all_of_it():
    assert sum(_diagnose.PART_SHARES.values()) == 100


@pytest.mark.slow
def test_a_mamba_of_129_million_weights_takes_less_than_4_gigabytes():
    script = Path(__file__).parent / "large_models.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=environment)
    numbers = json.loads(done.stdout.splitlines()[0])
    assert numbers["weights"] > 1.29e8
    assert numbers["unseen"] == []
    assert numbers["peak_gb"] < 4.0
