"""transformers' Mamba on our kernels: the same answers, gradients, generations and files, and back again."""

import copy
import io
import re
import runpy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers_version

import holdfast
from holdfast.errors import ArgumentError, BackendError
from holdfast.nn import _acceleration

transformers = pytest.importorskip("transformers")
# float32 through two layers; the two sum over 30 steps in another order
CLOSE = {"rtol": 1e-4, "atol": 2e-6}


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 20, "pad_token_id": 0, "eos_token_id": 19}
HEADS = {"mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
ATTENTION = {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
TYPES = {"layers_block_type": ["mamba", "attention"]}
# every family with one of the known mixers: its options, and the paths of the mixers
FAMILIES = {
    "Mamba": ({"state_size": 4}, ("backbone.layers.0.mixer", "backbone.layers.1.mixer")),
    "FalconMamba": ({"state_size": 4}, ("backbone.layers.0.mixer", "backbone.layers.1.mixer")),
    "Jamba": (
        {**ATTENTION, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "num_experts": 1}
        | {"num_experts_per_tok": 1},
        ("model.layers.0.mamba",),
    ),
    "Zamba": (
        {**ATTENTION, "num_key_value_heads": 2, "attention_head_dim": 16, "n_mamba_heads": 2, "mamba_d_state": 4}
        | {"num_hidden_layers": 5, "attn_layer_period": 2, "attn_layer_offset": 1},
        tuple(f"model.layers.{path}mamba" for path in ("0.", "1.", "2.mamba_decoder.", "3.", "4.mamba_decoder.")),
    ),
    "Mamba2": (
        {"state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
        ("backbone.layers.0.mixer", "backbone.layers.1.mixer"),
    ),
    "Zamba2": (
        {"intermediate_size": 16, "num_attention_heads": 2, "mamba_d_state": 4, "n_mamba_heads": 4, "mamba_headdim": 8}
        | {"mamba_ngroups": 1, "chunk_size": 8, "layers_block_type": ["mamba", "hybrid"]},
        ("model.layers.0.mamba", "model.layers.1.mamba_decoder.mamba"),
    ),
    "Bamba": ({**ATTENTION, **HEADS, "attn_layer_indices": [1]}, ("model.layers.0.mamba",)),
    "FalconH1": (
        {**ATTENTION, **HEADS, "head_dim": 8, "mamba_d_ssm": 32}, ("model.layers.0.mamba", "model.layers.1.mamba"),
    ),
    "GraniteMoeHybrid": (
        {**ATTENTION, **HEADS, "shared_intermediate_size": 16, "layer_types": ["mamba", "attention"]}
        | {"num_local_experts": 0, "num_experts_per_tok": 0},
        ("model.layers.0.mamba",),
    ),
    "NemotronH": (
        {**ATTENTION, **TYPES, "head_dim": 8, "ssm_state_size": 4, "mamba_num_heads": 4, "mamba_head_dim": 8}
        | {"n_groups": 1, "chunk_size": 8, "num_hidden_layers": None},
        ("model.layers.0.mixer",),
    ),
}  # fmt: skip


def build(family, **more):
    torch.manual_seed(0)
    options = {k: v for k, v in {**SMALL, **FAMILIES[family][0], **more}.items() if v is not None}
    config = getattr(transformers, f"{family}Config")(**options)
    return getattr(transformers, f"{family}ForCausalLM")(config)


@pytest.fixture(scope="module")
def original():
    return build("Mamba")


@pytest.fixture
def models(original):
    """A model as it is, and a copy that is accelerated."""
    fast = copy.deepcopy(original)
    return original, fast, holdfast.accelerate(fast)


def tokens(batch=2, time=30):
    return torch.randint(1, 19, (batch, time), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_gradients_and_generations_stay_as_they_are(family):
    plain = build(family)
    fast = copy.deepcopy(plain)
    done = holdfast.accelerate(fast)
    assert done.replaced == FAMILIES[family][1]
    assert done.left == ()
    results = []
    for model in (plain, fast):
        model.train()
        out = model(tokens(), labels=tokens())
        grads = torch.autograd.grad(out.loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
        results.append([out.logits, out.loss, *grads])
        model.eval()
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, **CLOSE)
    mask = torch.ones(2, 30, dtype=torch.long)
    mask[1, :12] = 0
    with torch.no_grad():
        given = {"input_ids": tokens(), "attention_mask": mask}
        torch.testing.assert_close(fast(**given).logits, plain(**given).logits, **CLOSE)
    kept = {"max_new_tokens": 6, "do_sample": False}
    for prompt in (given, {"input_ids": tokens(1, 2)}):  # padded, and shorter than the convolution
        assert torch.equal(fast.generate(**prompt, **kept), plain.generate(**prompt, **kept))


@pytest.mark.parametrize("family", ["Mamba", "Mamba2", "Bamba"])
@pytest.mark.parametrize("given", ["seq_idx", "cu_seq_lens_q"])
def test_packed_sequences_are_kept_apart_with_their_gradients(family, given):
    model = build(family)
    mixer = holdfast.accelerate(model).modules[0].double()
    x = torch.randn(1, 40, 16, dtype=torch.float64, requires_grad=True)
    bounds = [0, 3, 20, 21, 40]
    index = torch.repeat_interleave(torch.arange(4), torch.tensor(bounds).diff())[None].int()
    named = {"seq_idx": index} if given == "seq_idx" else {"cu_seq_lens_q": torch.tensor(bounds, dtype=torch.int32)}
    together = mixer(x, **named)
    apart = torch.cat([mixer(x[:, a:b]) for a, b in pairwise(bounds)], 1)
    # Mamba computes A and D in float32
    torch.testing.assert_close(together, apart, rtol=1e-6, atol=1e-7)
    one, other = (torch.autograd.grad((y * y).sum(), x)[0] for y in (together, apart))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_packed_sequences_that_do_not_fit_are_refused(models):
    _, fast, _ = models
    mixer = fast.backbone.layers[0].mixer
    with pytest.raises(ArgumentError, match=r"seq_idx: expected one number for each of \(1, 5\) steps"):
        mixer(torch.zeros(1, 5, 16), seq_idx=torch.zeros(1, 4, dtype=torch.int32))
    with pytest.raises(ArgumentError, match="expected a batch of 1 and bounds from 0 to 5"):
        mixer(torch.zeros(1, 5, 16), cu_seq_lens_q=torch.tensor([0, 4]))


@pytest.mark.parametrize("family", ["Mamba", "Mamba2", "FalconMamba"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_and_beams_stay_as_they_are(family, side):
    plain = build(family).eval()
    fast = copy.deepcopy(plain)
    holdfast.accelerate(fast)
    mask = torch.ones(2, 30, dtype=torch.long)
    mask[1, :12] = 0
    mask = mask if side == "left" else mask.flip(1)
    given = {"input_ids": tokens(), "attention_mask": mask}
    with torch.no_grad():
        torch.testing.assert_close(fast(**given).logits, plain(**given).logits, **CLOSE)
    if side == "left":
        kept = {"max_new_tokens": 5, "num_beams": 3, "do_sample": False}
        assert torch.equal(fast.generate(**given, **kept), plain.generate(**given, **kept))


@pytest.mark.parametrize("family", ["Mamba", "Mamba2"])
def test_states_in_a_cache_carry_gradients_from_call_to_call(family):
    """Truth: one call over all steps. transformers' own step overwrites a state that its backward needs."""
    model = build(family)
    whole = torch.randn(2, 21, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
    expected = model(inputs_embeds=whole, use_cache=False).logits[:, -1]
    holdfast.accelerate(model)
    first = model(inputs_embeds=whole[:, :20], use_cache=True)
    second = model(inputs_embeds=whole[:, 20:], cache_params=first.cache_params, use_cache=True).logits[:, -1]
    torch.testing.assert_close(second, expected, **CLOSE)
    (grad,), (truth,) = (torch.autograd.grad(y.square().sum(), whole) for y in (second, expected))
    assert bool((truth[:, :15].abs() > 0).any())
    torch.testing.assert_close(grad, truth, rtol=1e-4, atol=1e-5)


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
    with pytest.warns(UserWarning, match="accelerate replaced nothing: backbone.layers.0.mixer: its activation"):
        done = holdfast.accelerate(build("Mamba2", hidden_act="gelu", num_hidden_layers=1))
    assert done.replaced == ()
    assert done.left == (("backbone.layers.0.mixer", "its activation is gelu, and the kernel supports silu only"),)
    with pytest.raises(ArgumentError, match="got Linear without"):
        holdfast.accelerate(torch.nn.Linear(2, 2))


def test_a_version_whose_mixer_calls_other_functions_is_refused(original, monkeypatch):
    from transformers.models.mamba import modeling_mamba

    class MambaMixer(modeling_mamba.MambaMixer):
        def forward(self, hidden_states, **_):
            return hidden_states

    model = copy.deepcopy(original)
    for layer in model.backbone.layers:
        layer.mixer.__class__ = MambaMixer
    monkeypatch.setattr(modeling_mamba, "MambaMixer", MambaMixer)
    with pytest.raises(
        BackendError, match=r"like those of transformers 5.22 .*, got .* does not call causal_conv1d_fn"
    ):
        holdfast.accelerate(model)
    from holdfast.diagnosis._reading import read_model

    # a measurement goes on without, and says so
    notes = " ".join(read_model(model, None, 0).notes)
    assert "not on our kernels" in notes and "does not call causal_conv1d_fn" in notes


def test_the_installed_version_is_accelerated_or_read_as_it_is():
    found = transformers_version.looked_at()
    version = tuple(int(part) for part in found["transformers"].split(".")[:2])
    first = tuple(int(part) for part in _acceleration.FIRST_VERSION.split("."))
    assert found["accelerated"] == (version >= first)
    assert bool(found["said"]) == (version < first)


def test_the_example_prints_equal_losses_and_both_times(monkeypatch, capsys):
    path = Path(__file__).parents[2] / "examples" / "mamba_on_cpu.py"
    text = ["--text", str(path), "--length", "20"]
    monkeypatch.setattr("sys.argv", [str(path), *text, "--steps", "2", "--hidden", "16"])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    losses = re.findall(r"loss ([0-9.]+) as it was, ([0-9.]+) accelerated", printed)
    assert len(losses) == 2
    assert all(abs(float(a) - float(b)) < 1e-4 for a, b in losses)  # float32, printed to five digits
    assert "times faster" in printed


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Mamba", "Mamba2"])
def test_an_accelerated_model_is_exported_as_it_is(family):
    model = build(family).eval()
    expected = model(tokens(1, 12), use_cache=False).logits
    holdfast.accelerate(model)
    program = torch.export.export(model, (), {"input_ids": tokens(1, 12), "use_cache": False})
    found = program.module()(input_ids=tokens(1, 12), use_cache=False).logits
    torch.testing.assert_close(found, expected, **CLOSE)
    assert not any("holdfast" in str(node.target) for node in program.graph.nodes)  # a runtime needs nothing of ours
