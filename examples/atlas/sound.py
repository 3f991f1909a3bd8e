"""Speech and music to measure on, and the features that the packages compute from them."""

from __future__ import annotations

import io
import shutil
import subprocess
import wave
from itertools import pairwise

import numpy as np
from scipy.signal import resample_poly

SENTENCES = (
    "The quick brown fox jumps over the lazy dog, and nobody in the village was surprised.",
    "Please call Stella, and ask her to bring these things with her from the store.",
    "When the sunlight strikes raindrops in the air, they act as a prism and form a rainbow.",
    "We were away a year ago, and I do not know how many letters she wrote in the meantime.",
)
VOICES = ("en-us", "en-gb", "en-us+f3", "en-gb+m3")
PAUSE = 0.4  # seconds of silence between sentences
NOISE = 1e-3  # of a room, against a loudest sample of 0.5: real silence is never exactly 0


def speech(rate: int, seconds: float) -> np.ndarray:
    """Sentences said by espeak-ng with several voices, with pauses, in the noise of a room."""
    if shutil.which("espeak-ng") is None:
        raise FileNotFoundError("espeak-ng, which says the sentences: apt-get install espeak-ng")
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < seconds * rate:
        for sentence, voice in zip(SENTENCES, VOICES, strict=True):
            said = subprocess.run(["espeak-ng", "-v", voice, "--stdout", sentence], capture_output=True, check=True)
            parts += [_samples(said.stdout, rate), np.zeros(int(PAUSE * rate))]
    whole = np.concatenate(parts)[: int(seconds * rate)]
    noise = NOISE * np.random.default_rng(0).standard_normal(len(whole))
    return (0.5 * whole / np.abs(whole).max() + noise).astype(np.float32)


def _samples(data: bytes, rate: int) -> np.ndarray:
    # the length in the header of a stream is not set: the bytes are read as they are
    with wave.open(io.BytesIO(data)) as file:
        own = file.getframerate()
    return resample_poly(np.frombuffer(data[44:], "<i2") / 32768, rate, own)


def music(rate: int, seconds: float, beats_per_minute: float = 120.0) -> np.ndarray:
    """Kick, snare, hi-hat and a bass line with chords, with small changes of loudness, in the noise of a room."""
    rng = np.random.default_rng(0)
    beat = 60 / beats_per_minute
    whole = NOISE * rng.standard_normal(int(seconds * rate))
    notes = (110.0, 130.8, 98.0, 146.8)
    for k in range(int(seconds / beat * 2)):
        start, loud = k * beat / 2, rng.uniform(0.7, 1.0)
        if k % 4 == 0:
            _add(whole, rate, start, loud * _tone(rate, 55 + 60 * np.exp(-np.arange(0.2 * rate) / 0.02 / rate), 0.07))
        if k % 4 == 2:
            _add(whole, rate, start, 0.5 * loud * _burst(rng, rate, 0.06))
        _add(whole, rate, start, 0.15 * loud * _burst(rng, rate, 0.015))
        note = notes[k // 8 % 4]
        if k % 2 == 0:
            chord = sum(_tone(rate, np.full(int(0.4 * rate), note * r), 0.15) for r in (1, 2, 2.52, 3))
            _add(whole, rate, start, 0.1 * loud * chord)
    return (0.5 * whole / np.abs(whole).max()).astype(np.float32)


def _tone(rate: int, frequency: np.ndarray, fall: float) -> np.ndarray:
    return np.sin(2 * np.pi * np.cumsum(frequency) / rate) * np.exp(-np.arange(len(frequency)) / fall / rate)


def _burst(rng: np.random.Generator, rate: int, fall: float) -> np.ndarray:
    steps = np.arange(int(6 * fall * rate))
    return rng.standard_normal(len(steps)) * np.exp(-steps / fall / rate)


def _add(whole: np.ndarray, rate: int, start: float, part: np.ndarray) -> None:
    first = int(start * rate)
    part = part[: max(len(whole) - first, 0)]
    whole[first : first + len(part)] += part


def mel_spectrogram(wave: np.ndarray, rate: int, size: int, hop: int, bands: int) -> np.ndarray:
    """Power in mel bands (frames, bands): Slaney's scale, triangles of area 1, centred frames with zeros around."""
    padded = np.pad(wave, size // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    window = np.hanning(size + 1)[:-1]
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    bins = np.fft.rfftfreq(size, 1 / rate)
    edges = _hertz(np.linspace(0, _mel(rate / 2), bands + 2))
    weights = np.zeros((bands, len(bins)))
    for k, (low, mid, high) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        rise, fall = (bins - low) / (mid - low), (high - bins) / (high - mid)
        weights[k] = np.maximum(0, np.minimum(rise, fall)) * 2 / (high - low)
    return (power @ weights.T).astype(np.float32)


def _mel(hertz: float) -> float:
    """Linear below 1000 Hz, 200/3 Hz a mel; above it 27 mels for a factor of 6.4."""
    return hertz * 3 / 200 if hertz < 1000 else 15 + 27 * np.log(hertz / 1000) / np.log(6.4)


def _hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))


def log_spectrogram(
    wave: np.ndarray, rate: int, size: int, hop: int, bands: int, *, scale: float = 1.0, overlap: float = 0.5
) -> np.ndarray:
    """madmom's features (frames, 2 x filters): log of magnitudes in `bands` triangles an octave, and what rose since.

    Frames are centred at multiples of `hop`; what rose is taken against the frame whose window overlaps by `overlap`.
    """
    count = int(np.ceil(len(wave) / hop))
    padded = np.pad(wave, size)
    starts = np.arange(count) * hop + size - size // 2
    frames = np.stack([padded[s : s + size] for s in starts])
    magnitude = np.abs(np.fft.fft(frames * np.hanning(size))[:, : size // 2])
    spectrum = np.log10(1 + scale * magnitude @ _triangles(rate, size, bands))
    lag = _lag(size, hop, overlap)
    rise = np.zeros_like(spectrum)
    rise[lag:] = np.maximum(spectrum[lag:] - spectrum[:-lag], 0)
    return np.hstack([spectrum, rise]).astype(np.float32)


def _lag(size: int, hop: int, overlap: float) -> int:
    """Frames back to the one against which the rise is taken."""
    window = np.hanning(size)
    sample = int(np.argmax(window > overlap * window.max()))
    return max(1, round((size / 2 - sample) / hop))


def _triangles(rate: int, size: int, bands: int) -> np.ndarray:
    """Overlapping triangles of area 1 (bins, filters) at frequencies of `bands` an octave from 30 to 17000 Hz."""
    steps = np.arange(np.floor(np.log2(30 / 440) * bands), np.ceil(np.log2(17000 / 440) * bands))
    wanted = 440 * 2 ** (steps / bands)
    wanted = wanted[(wanted >= 30) & (wanted <= 17000)]
    # of an odd size madmom takes the frequencies of the even one below it
    bins = np.fft.fftfreq(2 * (size // 2), 1 / rate)[: size // 2]
    after = np.clip(np.searchsorted(bins, wanted), 1, len(bins) - 1)
    nearer = wanted - bins[after - 1] < bins[after] - wanted
    centres = np.unique(after - nearer)
    columns = []
    for (start, mid), (_, stop) in pairwise(pairwise(centres)):
        if stop - start < 2:
            mid, stop = start, start + 1
        column = np.zeros(len(bins))
        column[start:mid] = np.linspace(0, 1, mid - start, endpoint=False)
        column[mid:stop] = np.linspace(1, 0, stop - mid, endpoint=False)
        columns.append(column / column.sum())
    return np.stack(columns, 1)
