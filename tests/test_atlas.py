"""The atlas reads trained models as their packages run them, and its numbers hold in experiments made by hand.

Needs `pip install --no-deps g2p_en Resemblyzer`; skipped elsewhere.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.memory import memory_on_data

FOLDER = Path(__file__).parent.parent / "examples" / "atlas"
WORDS = ["acknowledgment", "administration", "accomplishment", "responsibility"]


@pytest.fixture(autouse=True)
def atlas_modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")) or name.startswith("resemblyzer"):
            del sys.modules[name]


def installed(name):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


@pytest.fixture
def words(monkeypatch, tmp_path):
    """A text of long words, so that nothing has to be downloaded."""
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "input.txt").write_text(" ".join(WORDS))
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))


@installed("g2p_en")
def test_letters_are_read_as_the_package_reads_them_and_a_word_is_kept_to_its_end(words):
    import confirm
    import text_models

    specimen = text_models.g2p()
    assert specimen.inputs.shape == (4, 14, 256)
    # float32, 14 steps of weights up to 10: rounding grows to 1e-5
    assert specimen.check()[0] < 5e-5
    tool = memory_on_data(specimen.model, specimen.inputs, places=16, double=True)
    assert tool.steps == confirm.median(confirm.exchanged(specimen)) == np.inf


@installed("resemblyzer")
def test_a_voice_is_embedded_as_the_package_does_and_holdfast_finds_what_an_exchange_shows(monkeypatch):
    import confirm
    import sound
    import speech_models

    # loud and silent stretches of noise stand for speech: the check needs no voice
    rng = np.random.default_rng(0)
    wave = rng.standard_normal(16000 * 3) * (rng.random(30) < 0.7).repeat(1600) * 0.1
    monkeypatch.setattr(sound, "speech", lambda rate, seconds: wave.astype(np.float32))
    specimen = speech_models.resemblyzer()
    # the same torch modules with the same weights, on one batch: rounding alone
    assert specimen.check()[0] < 1e-6
    tool = memory_on_data(specimen.model, specimen.inputs[:, :240], places=6, double=True)
    hand = confirm.exchanged(_shorter(specimen), places=6)
    # medians over other places of the same data
    assert 0.4 < min(tool.steps, 180) / min(confirm.median(hand), 180) < 2.5


def _shorter(specimen):
    from dataclasses import replace

    return replace(specimen, inputs=specimen.inputs[:, :240])


def test_features_of_silence_are_none_and_a_tone_is_in_its_band():
    import sound

    assert np.abs(sound.log_spectrogram(np.zeros(8000, np.float32), 22050, 1411, 441, 24)).max() == 0
    tone = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000).astype(np.float32)
    mel = sound.mel_spectrogram(tone, 16000, 400, 160, 40)
    # 440 Hz are 6.6 mel of the 45.2 below 8000 Hz, in 41 steps: the sixth triangle, counted from 0 the fifth
    assert mel[50].argmax() == round(6.6 / 45.2 * 41) - 1


def test_a_package_that_is_missing_is_said_with_how_to_get_it(monkeypatch):
    import specimen

    monkeypatch.setenv("ATLAS_PACKAGES", "")
    with pytest.raises(specimen.MissingError, match="pip install --no-deps nothing"):
        specimen.package("no_such_package_here", "pip install --no-deps nothing")


def test_the_hand_made_growth_finds_the_rate_of_a_known_recurrence():
    import confirm
    import specimen

    torch.manual_seed(0)
    model = torch.nn.RNN(1, 4, batch_first=True)
    with torch.no_grad():
        model.weight_hh_l0.copy_(torch.diag(torch.tensor([0.9, 0.5, 0.3, 0.1])))
        model.weight_ih_l0.zero_()
        model.bias_ih_l0.zero_()
        model.bias_hh_l0.zero_()
    known = specimen.Specimen("", "", "", model, model, torch.randn(1, 400, 1), "", lambda: (0.0, ""))
    # tanh at 0 has slope 1, so that the slowest factor is 0.9
    assert confirm.time_constant_at_rest(known) == pytest.approx(-1 / np.log(0.9), rel=1e-3)
    assert confirm.exponent_along(known) == pytest.approx(np.log(0.9), rel=1e-3)
