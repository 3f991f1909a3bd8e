"""Models that read speech."""

from __future__ import annotations

import itertools
import sys
import types

import numpy as np
import sound
import torch
from specimen import LSTM_PARTS, SECONDS, Specimen, bare_package, difference, needed, package
from torch import Tensor, nn
from torch.nn import functional as F


class SileroVad(nn.Module):
    """Speech probability of each chunk of 512 samples at 16 kHz."""

    def __init__(self) -> None:
        super().__init__()
        self.stft = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        sizes = ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))
        self.encoder = nn.ModuleList(nn.Conv1d(a, b, 3, stride=s, padding=1) for a, b, s in sizes)
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.head = nn.Linear(128, 1)

    def encode(self, chunks: Tensor) -> Tensor:
        """128 features of each chunk."""
        rows, steps, _ = chunks.shape
        # each chunk is read behind the last 64 samples of the one before, and reflected at its end
        before = F.pad(chunks, (0, 0, 1, 0))[:, :-1, -64:]
        x = F.pad(torch.cat([before, chunks], -1).reshape(rows * steps, 1, -1), (0, 64), "reflect")
        real, imaginary = self.stft(x).chunk(2, 1)
        x = torch.sqrt(real**2 + imaginary**2)
        for layer in self.encoder:
            x = torch.relu(layer(x))
        return x.reshape(rows, steps, 128)

    def forward(self, chunks: Tensor) -> Tensor:
        return torch.sigmoid(self.head(torch.relu(self.lstm(self.encode(chunks))[0])))


class Decoder(nn.Module):
    """The part of silero-vad that remembers, from the features of a chunk less those of silence: zeros are silence."""

    def __init__(self, whole: SileroVad) -> None:
        super().__init__()
        self.lstm, self.head = whole.lstm, whole.head
        with torch.no_grad():
            self.register_buffer("silence", whole.encode(torch.zeros(1, 2, 512))[:, 1:])

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.head(torch.relu(self.lstm(x + self.silence)[0])))


def silero_vad() -> Specimen:
    """silero-vad: LSTM 128 over chunks of 32 ms."""
    onnx = needed("onnx")
    folder = package("silero_vad", "pip install --no-deps silero-vad")
    # the .safetensors file beside it is of an earlier training: its weights are not those that the package runs
    graph = onnx.load(folder / "data" / "silero_vad_16k_op15.onnx").graph
    weights = {one.name: torch.from_numpy(onnx.numpy_helper.to_array(one).copy()) for one in graph.initializer}
    named = {"stft.weight": weights["model.stft.forward_basis_buffer"]}
    for k, part in itertools.product(range(4), ("weight", "bias")):
        named[f"encoder.{k}.{part}"] = weights[f"model.encoder.{k}.reparam_conv.{part}"]
    named |= {f"lstm.{part}_l0": weights[f"model.decoder.rnn.{part}"] for part in LSTM_PARTS}
    head = "model.decoder.decoder.2"
    named |= {"head.weight": weights[f"{head}.weight"][..., 0], "head.bias": weights[f"{head}.bias"]}
    model = SileroVad()
    model.load_state_dict(named)
    wave = torch.from_numpy(sound.speech(16000, SECONDS))
    x = wave[: len(wave) // 512 * 512].reshape(1, -1, 512)

    def check() -> tuple[float, str]:
        onnxruntime = needed("onnxruntime")
        session = onnxruntime.InferenceSession(str(folder / "data" / "silero_vad.onnx"))
        state, before, answers = np.zeros((2, 1, 128), np.float32), np.zeros((1, 64), np.float32), []
        for chunk in x[0].numpy():
            inputs = {"input": np.concatenate([before, chunk[None]], 1), "state": state, "sr": np.array(16000)}
            answer, state = session.run(None, inputs)
            answers.append(float(answer[0, 0]))
            before = chunk[None, -64:]
        theirs = np.array(answers)[None, :, None]
        largest = max(difference(model, x, theirs), difference(decoder, features, theirs))
        return largest, "its own ONNX file, chunk by chunk"

    decoder = Decoder(model)
    with torch.no_grad():
        features = model.encode(x) - decoder.silence
    return Specimen("silero-vad", "voice activity", "LSTM 128", decoder, decoder.lstm, features, "32 ms", check)


class Speaker(nn.Module):
    """Embedding of a voice, as it stands after each frame of 10 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        raw = torch.relu(self.linear(self.lstm(mels)[0]))
        return raw / raw.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def resemblyzer() -> Specimen:
    """Resemblyzer: LSTM 256 x 3 over mel frames of 10 ms."""
    folder = package("resemblyzer", "pip install --no-deps Resemblyzer")
    state = torch.load(folder / "pretrained.pt", map_location="cpu", weights_only=True)["model_state"]
    model = Speaker()
    model.load_state_dict({name: value for name, value in state.items() if name in model.state_dict()})
    mels = sound.mel_spectrogram(sound.speech(16000, SECONDS), 16000, 400, 160, 40)
    x = torch.from_numpy(mels)[None, :800]

    def check() -> tuple[float, str]:
        # its audio module needs librosa, which the encoder itself does not
        bare_package("resemblyzer", folder)
        sys.modules.setdefault("resemblyzer.audio", types.ModuleType("resemblyzer.audio"))
        from resemblyzer.voice_encoder import VoiceEncoder

        encoder = VoiceEncoder("cpu", verbose=False)
        with torch.no_grad():
            theirs = encoder(x[:, :160]).numpy()
            ours = model(x[:, :160])[:, -1].numpy()
        return float(np.abs(theirs - ours).max()), "its own VoiceEncoder on 160 frames"

    return Specimen("Resemblyzer", "speaker embedding", "LSTM 256 x 3", model, model.lstm, x, "10 ms", check)
