"""transformers' Mamba on our kernels: the same answers, gradients, generations and files, and back again."""

import copy
import io
import re
import runpy
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.errors import ArgumentError, BackendError

transformers = pytest.importorskip("transformers")
# float32 through two layers; the two sum over 30 steps in another order
CLOSE = {"rtol": 1e-4, "atol": 2e-6}


@pytest.fixture(scope="module")
def original():
    torch.manual_seed(0)
    config = transformers.MambaConfig(
        hidden_size=16, state_size=4, num_hidden_layers=2, vocab_size=20, pad_token_id=0, eos_token_id=19
    )
    return transformers.MambaForCausalLM(config)


@pytest.fixture
def models(original):
    """A model as it is, and a copy that is accelerated."""
    fast = copy.deepcopy(original)
    return original, fast, holdfast.accelerate(fast)


def tokens(batch=2, time=30):
    return torch.randint(1, 19, (batch, time), generator=torch.Generator().manual_seed(1))


def test_losses_and_gradients_stay_as_they_are(models):
    plain, fast, done = models
    assert done.replaced == ("backbone.layers.0.mixer", "backbone.layers.1.mixer")
    assert done.left == ()
    results = []
    for model in (plain, fast):
        model.train()
        out = model(tokens(), labels=tokens())
        results.append([out.logits, out.loss, *torch.autograd.grad(out.loss, list(model.parameters()))])
        model.eval()
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, **CLOSE)


def test_padding_and_generation_with_a_cache_stay_as_they_are(models):
    plain, fast, _ = models
    mask = torch.ones(2, 30, dtype=torch.long)
    mask[1, :12] = 0
    with torch.no_grad():
        given = {"input_ids": tokens(), "attention_mask": mask}
        torch.testing.assert_close(fast(**given).logits, plain(**given).logits, **CLOSE)
    kept = {"max_new_tokens": 8, "do_sample": False}
    for prompt in (tokens(), tokens(1, 2)):  # one shorter than the convolution
        expected = plain.generate(prompt, **kept)
        assert torch.equal(fast.generate(prompt, **kept), expected)


def test_a_sequence_in_two_calls_with_a_cache_stays_as_it_is(models):
    plain, fast, _ = models
    ends = []
    with torch.no_grad():
        for model in (plain, fast):
            first = model(tokens()[:, :20], use_cache=True)
            ends.append(model(tokens()[:, 20:21], cache_params=first.cache_params, use_cache=True).logits)
    torch.testing.assert_close(ends[1], ends[0], **CLOSE)


def test_files_and_copies_stay_as_they_are_and_restore_gives_the_model_back(models, tmp_path):
    plain, fast, done = models
    assert list(fast.state_dict()) == list(plain.state_dict())
    file = io.BytesIO()
    torch.save(fast, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    fast.save_pretrained(tmp_path)
    loaded = transformers.MambaForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        expected = plain(tokens()).logits
        for model in (again, loaded, copy.deepcopy(fast)):
            torch.testing.assert_close(model(tokens()).logits, expected, **CLOSE)
    done.restore()
    assert type(fast.backbone.layers[0].mixer) is type(plain.backbone.layers[0].mixer)
    with torch.no_grad():
        assert torch.equal(fast(tokens()).logits, expected)


def test_what_is_left_is_named_with_its_reason(models):
    _, fast, _ = models
    again = holdfast.accelerate(fast)
    assert again.replaced == ()
    assert again.left[0] == ("backbone.layers.0.mixer", "it is accelerated already")
    config = transformers.Mamba2Config(
        hidden_size=16, state_size=4, num_hidden_layers=1, vocab_size=20, num_heads=4, head_dim=8, n_groups=1
    )
    done = holdfast.accelerate(transformers.Mamba2ForCausalLM(config))
    assert [reason for _, reason in done.left] == ["its scan has one rate for each head, which has no kernel here"]
    with pytest.raises(ArgumentError, match="expected a model with transformers' MambaMixer in it, came Linear"):
        holdfast.accelerate(torch.nn.Linear(2, 2))


def test_a_version_without_the_functions_is_refused(original, monkeypatch):
    from transformers.models.mamba import modeling_mamba

    monkeypatch.delattr(modeling_mamba, "mamba_selective_scan")
    with pytest.raises(BackendError, match=r"like that of transformers 5.22, came .* lacks mamba_selective_scan"):
        holdfast.accelerate(copy.deepcopy(original))


def test_the_example_prints_equal_losses_and_both_times(monkeypatch, capsys):
    path = Path(__file__).parents[2] / "examples" / "mamba_on_cpu.py"
    monkeypatch.setattr("sys.argv", [str(path), "--length", "20", "--steps", "2", "--hidden", "16"])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    losses = re.findall(r"loss ([0-9.]+) as it was, ([0-9.]+) accelerated", printed)
    assert len(losses) == 2
    assert all(abs(float(a) - float(b)) < 1e-4 for a, b in losses)  # float32, printed to five digits
    assert "times faster" in printed
