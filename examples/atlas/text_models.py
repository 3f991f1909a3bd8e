"""Models that read text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from specimen import LSTM_PARTS, MissingError, Specimen, difference, needed, own_methods, package
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT = 40  # characters that textgenrnn reads
TENSORFLOW = "ATLAS_TENSORFLOW"  # environment variable: the python of an environment with tensorflow-cpu 2.15.1


def plain_text() -> str:
    """Shakespeare, from the folder that HOLDFAST_DATA names."""
    root = os.environ.get("HOLDFAST_DATA")
    files = sorted(Path(root).glob("shakespeare/*.txt")) if root else []
    if not files:
        raise MissingError("a text is not here: name a folder with shakespeare/input.txt in HOLDFAST_DATA")
    return files[0].read_text(encoding="utf-8")


def long_words(letters: int, most: int = 64) -> list[str]:
    """Different words of that many letters."""
    words = re.findall(r"[a-z]+", plain_text().lower())
    return sorted({word for word in words if len(word) == letters})[:most]


class Letters(nn.Module):
    """State of the encoder after each letter; letters come as rows of its table."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gru = nn.GRU(size, 256, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


def g2p() -> Specimen:
    """g2p_en: the GRU 256 that reads the letters of a word."""
    folder = package("g2p_en", "pip install --no-deps g2p_en")
    arrays = np.load(folder / "checkpoint20.npz", allow_pickle=False)
    model = Letters(arrays["enc_emb"].shape[1])
    parts = {f"gru.{part}_l0": f"enc_{part.replace('weight', 'w').replace('bias', 'b')}" for part in LSTM_PARTS}
    model.load_state_dict({ours: torch.from_numpy(arrays[theirs]) for ours, theirs in parts.items()})
    words = long_words(14)
    ids = [[3 + ord(letter) - ord("a") for letter in word] for word in words]
    x = torch.from_numpy(arrays["enc_emb"])[torch.tensor(ids)]

    def check() -> tuple[float, str]:
        own = own_methods(folder / "g2p.py", "G2p", "sigmoid", "grucell", "gru")
        weights = [arrays[parts[f"gru.{part}_l0"]] for part in LSTM_PARTS]
        return difference(model, x, own.gru(x.numpy(), x.shape[1], *weights)), "its own numpy gru()"

    return Specimen("g2p_en", "letters to phonemes", "GRU 256", model, model.gru, x, "a letter", check)


class Characters(nn.Module):
    """Probabilities of the next character; characters come as rows of its table.

    The package starts again for each character, on the last 40; here the state goes on, and attention reads the last 40
    steps. Both are the same for the first 40.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.lstm2 = nn.LSTM(100, 128, batch_first=True), nn.LSTM(128, 128, batch_first=True)
        self.scores, self.output = nn.Linear(356, 1, bias=False), nn.Linear(356, 465)

    def forward(self, x: Tensor) -> Tensor:
        first = self.lstm1(x)[0]
        seen = torch.cat([x, first, self.lstm2(first)[0]], -1)
        scores = self.scores(seen)
        weights = torch.exp(scores - scores.amax(1, keepdim=True))
        both = F.pad(torch.cat([weights * seen, weights], -1).transpose(1, 2), (CONTEXT - 1, 0))
        sums = F.avg_pool1d(both, CONTEXT, 1).transpose(1, 2)
        return torch.softmax(self.output(sums[..., :-1] / sums[..., -1:]), -1)


def textgenrnn() -> Specimen:
    """textgenrnn: LSTM 128 x 2 with attention over characters."""
    folder = package("textgenrnn", "unpack its source archive into a folder, and name that in ATLAS_PACKAGES")
    h5py = needed("h5py")
    with h5py.File(folder / "textgenrnn_weights.hdf5") as file:
        arrays = {name: file[name][()] for name in H5_NAMES}
    model = Characters()
    for k in (1, 2):
        getattr(model, f"lstm{k}").load_state_dict(from_cudnn(*(arrays[f"rnn_{k}/rnn_{k}/{p}:0"] for p in H5_PARTS)))
    named = {"scores.weight": "attention/attention/attention_W:0", "output.weight": "output/output/kernel:0"}
    state = {ours: torch.from_numpy(arrays[theirs].T.copy()) for ours, theirs in named.items()}
    model.load_state_dict(state | {"output.bias": torch.from_numpy(arrays["output/output/bias:0"])}, strict=False)
    vocabulary = json.loads((folder / "textgenrnn_vocab.json").read_text(encoding="utf-8"))
    text = plain_text()
    ids = torch.tensor([vocabulary.get(letter, 0) for letter in text[: 2 * 300]]).reshape(2, 300)
    table = torch.from_numpy(arrays["embedding/embedding/embeddings:0"])
    x = table[ids]
    core = nn.LSTM(100, 128, 2, batch_first=True)
    layers = zip((0, 1), (model.lstm1, model.lstm2), strict=True)
    core.load_state_dict({f"{p}_l{k}": getattr(one, f"{p}_l0") for k, one in layers for p in LSTM_PARTS})

    def check() -> tuple[float, str]:
        if python := os.environ.get(TENSORFLOW):
            theirs = own_answers(python, folder, ids[:, :CONTEXT])
            return last_difference(model, x[:, :CONTEXT], theirs), "its own model under TensorFlow, 40 steps"
        theirs = keras_answers(model, x[:, :CONTEXT])
        against = "Keras's LSTM layers with the package's attention, 40 steps"
        return last_difference(model, x[:, :CONTEXT], theirs), against

    return Specimen("textgenrnn", "next character", "LSTM 128 x 2", model, core, x, "a character", check)


H5_PARTS = ("kernel", "recurrent_kernel", "bias")
H5_NAMES = (
    *(f"rnn_{k}/rnn_{k}/{part}:0" for k in (1, 2) for part in H5_PARTS),
    *("attention/attention/attention_W:0", "output/output/kernel:0", "output/output/bias:0"),
    "embedding/embedding/embeddings:0",
)


def from_cudnn(kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray) -> dict[str, Tensor]:
    """Weights as cuDNN keeps them in Keras's files: each gate's block is stored transposed."""
    gates = [block.T.reshape(block.shape, order="F") for block in np.split(kernel, 4, 1)]
    back = [block.T for block in np.split(recurrent, 4, 1)]
    arrays = (np.hstack(gates).T, np.hstack(back).T, *np.split(bias, 2))
    named = zip(LSTM_PARTS, arrays, strict=True)
    return {f"{part}_l0": torch.from_numpy(np.ascontiguousarray(array)) for part, array in named}


@torch.no_grad()
def last_difference(model: Characters, x: Tensor, theirs: np.ndarray) -> float:
    """The largest difference of the last answer."""
    return float(np.abs(model(x)[:, -1].numpy() - theirs).max())


def own_answers(python: str, folder: Path, ids: Tensor) -> np.ndarray:
    """What the package's own network answers, run by another Python: its TensorFlow asks for an older numpy than torch."""
    script = Path(__file__).with_name("textgenrnn_own.py")
    with tempfile.TemporaryDirectory() as scratch:
        given, answers = Path(scratch) / "ids.npy", Path(scratch) / "answers.npy"
        np.save(given, ids.numpy())
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [python, str(script), str(folder), str(given), str(answers)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingError(f"{TENSORFLOW}={python} does not run it: {done.stderr.strip().splitlines()[-1]}")
        return np.load(answers)


@torch.no_grad()
def keras_answers(model: Characters, x: Tensor) -> np.ndarray:
    """The last answer of Keras's LSTM layers and the package's attention, in numpy."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = needed("keras")
    seen, now = [x.numpy()], x.numpy()
    for lstm in (model.lstm1, model.lstm2):
        layer = keras.layers.LSTM(128, return_sequences=True)
        layer.build(now.shape)
        w, u, b, c = (getattr(lstm, f"{part}_l0").numpy() for part in LSTM_PARTS)
        layer.set_weights([w.T, u.T, b + c])
        now = keras.ops.convert_to_numpy(layer(now))
        seen.append(now)
    together = np.concatenate(seen, -1)
    logits = (together @ model.scores.weight.numpy().T)[..., 0]
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(1, keepdims=True) + 1e-7
    out = (together * weights[..., None]).sum(1) @ model.output.weight.numpy().T + model.output.bias.numpy()
    chances = np.exp(out - out.max(-1, keepdims=True))
    return chances / chances.sum(-1, keepdims=True)
