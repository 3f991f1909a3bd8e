import math

import numpy as np
import pytest
import torch
from models import random_linear
from torch import nn

from holdfast.errors import ArgumentError, BackendError, UnknownNameError
from holdfast.memory import (
    InputSearch,
    ModelError,
    check_properties,
    huggingface,
    memory_function,
    repeated_input_memory,
)
from holdfast.memory._repeated import repeat


def test_for_a_recurrent_model_it_is_the_heaviside_memory_of_the_item():
    model = random_linear(1)
    item = torch.tensor([[0.5]], dtype=torch.float64)
    repeated = repeated_input_memory(lambda x: model(x.unsqueeze(0))[0][0, -1], item, 30)
    direct = memory_function(model, horizon=30, search=InputSearch(candidates=torch.tensor([[0.5]])))
    # n copies end at lag n - 1; the difference from n to n + 1 copies is rho(n) x
    np.testing.assert_allclose(repeated.values, 0.5 * direct.values[1:30], rtol=0, atol=1e-13)
    assert repeated.time.tolist() == list(range(1, 30))
    assert repeated.probe == "repeated"


def test_items_are_repeated_by_their_kind():
    assert repeat("ha", 3) == "ha ha ha"
    assert repeat(7, 2) == [7, 7]
    assert repeat((1, 2), 2) == [1, 2, 1, 2]
    assert repeat(torch.tensor([1, 2]), 2).tolist() == [1, 2, 1, 2]
    assert repeat(torch.ones(1, 3), 4).shape == (4, 3)


def test_batched_scores_and_uneven_lengths():
    calls = []

    def score(texts):
        calls.append(len(texts))
        return torch.tensor([[math.log(len(text.split())), 1.0] for text in texts])

    score.batched = True
    curve = repeated_input_memory(score, "good", (1, 2, 4, 8, 16), batch_size=2)
    # log 2 for each doubling, over a gap of n
    np.testing.assert_allclose(curve.values, math.log(2) / np.array([1, 2, 4, 8]), rtol=1e-6)
    assert max(calls) == 2


def test_random_and_infinite_scores_are_caught():
    with pytest.raises(ModelError, match="scores that differ"):
        repeated_input_memory(lambda text: torch.rand(1), "good", 5)
    curve = repeated_input_memory(lambda text: math.nan if len(text) > 9 else 1.0, "good", 5)
    assert curve.status == "not finite"
    assert np.isinf(curve.values[-1])
    for lengths in (1, (3, 2), (-1, 2)):
        with pytest.raises(ArgumentError, match="lengths"):
            repeated_input_memory(len, "good", lengths)


def test_without_transformers_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(BackendError, match=r"holdfast\[hf\]"):
        huggingface.load("anything")


class Config:
    max_position_embeddings, pad_token_id = 12, None


class Toy(nn.Module):
    """Looks like a transformers model: embeddings summed over the past."""

    def __init__(self):
        super().__init__()
        self.config, self.embed = Config(), nn.Embedding(20, 4)

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids=None, inputs_embeds=None, attention_mask=None):
        x = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        out = nn.Module()
        out.last_hidden_state = x.cumsum(1)
        return out


def test_token_scores_read_the_real_positions_only():
    torch.manual_seed(0)
    model = Toy()
    inputs = [[3], [3, 4, 5], [3, 4]]
    for output in ("pooled", "first", "last"):
        score = huggingface.TokenScore(model, output=output)
        together = score(inputs)
        alone = torch.cat([score([row]) for row in inputs])
        torch.testing.assert_close(together, alone)
    sizes = huggingface.TokenScore(model, normalize=True)(inputs).detach().norm(dim=-1)
    assert float((sizes - 1).abs().max()) < 1e-6  # rounding of a float32 norm
    curve = repeated_input_memory(huggingface.TokenScore(model, output="last"), 7, 10)
    # the sum grows by the same embedding each time
    expected = float(model.embed.weight[7].detach().abs().max())
    np.testing.assert_allclose(curve.values, expected, rtol=1e-5)


def test_token_scores_name_mistakes(user_mistakes):
    model = Toy()
    with pytest.raises(UnknownNameError):
        huggingface.TokenScore(model, output="middle")
    with pytest.raises(ArgumentError, match="needs a tokenizer"):
        huggingface.TokenScore(model)(["good"])
    with pytest.raises(ArgumentError, match="12 positions"):
        huggingface.TokenScore(model)([[1] * 13])
    with pytest.raises(ArgumentError, match="a model with logits"):
        huggingface.TokenScore(model, output="logits")([[1]])


def test_embeddings_adapter_makes_a_measurable_model():
    adapter = huggingface.FromEmbeddings(Toy())
    assert adapter.input_size == 4
    curve = memory_function(adapter, input_size=4, horizon=3)
    np.testing.assert_allclose(curve.values, 1.0, rtol=1e-4)


def test_a_horizon_beyond_the_positions_of_a_model_is_refused_with_the_longest_that_fits():
    adapter = huggingface.FromEmbeddings(Toy())
    with pytest.raises(ArgumentError, match="must be at most 3"):
        memory_function(adapter, input_size=4, horizon=20)
    adapter.model.config.max_position_embeddings = 60
    with pytest.raises(ArgumentError, match=r"horizon must be at most 20.*got 40"):
        check_properties(adapter, 4, 40)
    assert check_properties(adapter, 4, 20).linear
