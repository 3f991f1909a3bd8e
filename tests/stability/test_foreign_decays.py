"""Recurrences of RWKV and Griffin in transformers: found by structure, with the margins of the modules' own steps."""

import math

import pytest
import torch

from holdfast import certify, diagnose, recurrences, stabilize
from holdfast.diagnosis._remedies import longer_memory
from holdfast.errors import ArgumentError

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns about optional kernels


def rwkv():
    torch.manual_seed(0)
    config = transformers.RwkvConfig(vocab_size=30, hidden_size=8, attention_hidden_size=8, num_hidden_layers=2)
    return transformers.RwkvForCausalLM(config)


def griffin():
    torch.manual_seed(0)
    config = transformers.RecurrentGemmaConfig(
        vocab_size=30, hidden_size=8, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, lru_width=8,
        attention_window_size=16,
    )  # fmt: skip
    model = transformers.RecurrentGemmaForCausalLM(config)
    with torch.no_grad():
        layer = model.model.layers[0].temporal_block.rg_lru
        layer.recurrent_gate_bias.uniform_(-1, 1)
    return model


def monitored(model):
    return recurrences(model)[0].margin()


def test_rwkvs_margin_is_that_of_its_own_loop():
    from transformers.models.rwkv.modeling_rwkv import rwkv_linear_attention_cpu

    model = rwkv()
    attention = model.rwkv.blocks[0].attention
    silent = torch.full((1, 1, 8), -1e4)  # a key so small that nothing is added
    state = [torch.ones(1, 8), torch.ones(1, 8), torch.zeros(1, 8)]
    _, (num, _, top) = rwkv_linear_attention_cpu(
        attention.time_decay, attention.time_first, silent, silent, state, True
    )
    factor = (num * torch.exp(top)).max().item()
    found = certify(model).parts[0]
    assert found.path == "rwkv.blocks.0.attention.time_decay"
    assert found.margin == pytest.approx(1 - factor, rel=1e-5)  # float32 of the loop
    assert monitored(model) == pytest.approx(found.margin, rel=1e-5)


def test_griffins_margin_is_that_of_its_own_step_on_zero_input():
    model = griffin()
    layer = model.model.layers[0].temporal_block.rg_lru
    layer.recurrent_states = torch.ones(1, 8)
    with torch.no_grad():
        after = layer(torch.zeros(1, 1, 8), torch.ones(1, 1, dtype=torch.long))
    layer.recurrent_states = None
    found = certify(model)
    assert found.path == "model.layers.0.temporal_block.rg_lru.recurrent_param"
    assert found.status == "stable"
    assert found.margin == pytest.approx(1 - after.max().item(), rel=1e-5)
    assert monitored(model) == pytest.approx(found.margin, rel=1e-5)


def test_stabilize_keeps_rwkvs_outputs_and_leaves_griffin_alone():
    model, tokens = rwkv().eval(), torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        before = model(tokens).logits
        done = stabilize(model)
        assert torch.allclose(model(tokens).logits, before, atol=1e-5)
    assert "below 1 by construction" in done.notes[0]
    with pytest.raises(ArgumentError, match="left as it is"):
        stabilize(griffin())


@pytest.mark.parametrize(("make", "name"), [(rwkv, "time_decay"), (griffin, "recurrent_param")])
def test_the_call_for_a_longer_memory_slows_every_channel(make, name):
    model = make()
    before = certify(model).time_constant
    ((call, effect),) = longer_memory(model, 10, 100)
    exec(call, {"model": model, "torch": torch})
    assert name in call
    assert "10 times slower" in effect
    assert certify(model).time_constant == pytest.approx(10 * before, rel=0.05)  # softplus is exp up to that here


def test_a_model_of_attention_alone_is_told_so_in_few_words():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=2, n_positions=64)
    report = diagnose(transformers.GPT2LMHeadModel(config), horizon=16)
    assert not recurrences(transformers.GPT2LMHeadModel(config))
    assert all(len(line) < 200 for line in report.unseen)
    assert "attention and convolutions have none" in report.unseen[0]
    assert "saturation" not in str(report)


def test_a_model_of_tokens_that_reads_both_ways_is_followed_within_its_positions():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=64,
    )  # fmt: skip
    report = diagnose(transformers.BertModel(config))
    assert len(report.memory) == 4
    assert math.isfinite(report.memory[0].left)


def test_an_encoder_with_a_decoder_is_asked_for_one_half_and_told_nothing_else():
    config = transformers.T5Config(vocab_size=30, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    report = diagnose(transformers.T5ForConditionalGeneration(config))
    assert "model.get_encoder()" in report.unseen[0]
    assert "nothing to fix" not in str(report) + report.summary()
