"""iat-fig5 and iat-fig6: what they say of made-up curves, and tiny runs on made-up sentences."""

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from holdfast_papers.experiments.base import Unit
from holdfast_papers.experiments.iat import _sentiment, fig5, fig6


def _unit(model, left, accuracy=0.75, seeds=(0,), sentences="polarity"):
    """Memory of every word falls to the share `left` from 2 to 20 copies."""
    curve = np.geomspace(1.0, left, 19)
    curve = np.concatenate([[1.0], curve, [left]])[None].repeat(len(seeds), 0)
    arrays = {"accuracy": np.full(len(seeds), accuracy), **{f"memory.{word}": curve for word in _sentiment.WORDS}}
    seed = {"seed": seeds[0]} if model != _sentiment.ENCODER else {}
    return Unit({"model": model, "sentences": sentences, **seed}, arrays)


def _units(lstm, encoder=None, **changes):
    made = [_unit(model, lstm, seeds=(seed,), **changes) for model in _sentiment.LSTMS for seed in range(3)]
    return made + ([] if encoder is None else [_unit(_sentiment.ENCODER, encoder, seeds=(0, 1, 2), **changes)])


def _status(module, units):
    return {claim.name: claim.status for claim in module.conclude({}, units).claims}


def test_an_lstm_has_to_keep_less_than_the_encoder_in_every_seed():
    assert set(_status(fig6, _units(0.01, 0.05)).values()) == {"met"}
    assert set(_status(fig6, _units(0.05, 0.01)).values()) == {"not met"}
    one = [*_units(0.01, 0.05)[1:], _unit("bidirectional LSTM", 0.5)]
    assert _status(fig6, one) == {"bidirectional LSTM": "not met", "stacked bidirectional LSTM": "met"}


def test_what_is_left_after_39_copies_is_told_beside_a_claim_that_is_not_met():
    units = _units(0.05, 0.01)
    for unit in units:
        last = 0.5 if unit.config["model"] == _sentiment.ENCODER else 0.01  # of the memory at 20 copies
        tail = unit.arrays["memory.good"][:, 19:20] * np.geomspace(1, last, 20)[1:]
        for word in _sentiment.WORDS:
            unit.arrays[f"memory.{word}"] = np.concatenate([unit.arrays[f"memory.{word}"][:, :20], tail], 1)
    said = fig6.conclude({}, units).claims[0].explanation
    assert "bidirectional LSTM 0.01 to 0.01" in said and "transformer encoder 0.5 to 0.5" in said


def test_a_weak_model_made_up_sentences_or_no_encoder_decide_nothing():
    for units in (_units(0.01, 0.05, accuracy=0.69), _units(0.01, 0.05, sentences="made up"), _units(0.01)):
        assert set(_status(fig6, units).values()) == {"undecided"}
    assert "pip install" in fig6.conclude({}, _units(0.01)).claims[0].explanation


def test_plain_words_decay_and_ha_has_to_decay_more_slowly():
    found = _status(fig5, _units(0.05))
    assert found["bidirectional LSTM"] == "met" and found["ha, bidirectional LSTM"] == "not met"
    assert _status(fig5, _units(0.2))["bidirectional LSTM"] == "not met"


def test_the_reader_is_a_bidirectional_lstm_over_packed_sequences():
    torch.manual_seed(0)
    model = _sentiment.Reader(9, 4, 1).eval()
    both = torch.nn.LSTM(4, 4, bidirectional=True, batch_first=True)
    ahead, back = model.ahead[0].state_dict(), model.back[0].state_dict()
    both.load_state_dict({**ahead, **{f"{name}_reverse": value for name, value in back.items()}})
    tokens, lengths = torch.tensor([[3, 4, 5], [6, 0, 0]]), torch.tensor([3, 1])
    with torch.no_grad():
        packed = pack_padded_sequence(model.embedding(tokens), lengths, batch_first=True)
        _, (h, _) = both(packed)
        torch.testing.assert_close(model(tokens, lengths), model.head(torch.cat([h[0], h[1]], -1)))


def _letters(texts):
    """A stand-in for the encoder: shares of the letters a to h."""
    return torch.tensor([[text.count(letter) / (len(text) + 1) for letter in "abcdefgh"] for text in texts])


def test_tiny_runs_on_made_up_sentences(claims, monkeypatch, tmp_path):
    pytest.importorskip("lightning_fabric")
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    monkeypatch.setattr(_sentiment, "_encoder_is_there", lambda: True)
    monkeypatch.setattr(_sentiment, "_pretrained", lambda reading: _letters)
    found = claims("iat-fig6", width=4, read=96, head_steps=3)
    assert found["bidirectional LSTM"].status == "undecided"
    assert "smallest, encoder, good" in found["bidirectional LSTM"].numbers
    assert claims("iat-fig5", width=4)["bidirectional LSTM"].numbers["smallest test accuracy"] > 0
