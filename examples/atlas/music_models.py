"""Models that read music."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import sound
import torch
from specimen import SECONDS, Specimen, bare_package, difference, package
from torch import Tensor, nn
from torch.nn import functional as F


class BeatTracker(nn.Module):
    """Logits of beat, downbeat and neither, for each frame of 20 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, 2, 10)
        self.linear0 = nn.Linear(262, 150)
        self.lstm = nn.LSTM(150, 150, 2, batch_first=True)
        self.linear = nn.Linear(150, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows, steps, size = x.shape
        read = F.max_pool1d(torch.relu(self.conv1(x.reshape(rows * steps, 1, size))), 2)
        read = self.linear0(read.reshape(rows * steps, -1)).reshape(rows, steps, -1)
        return self.linear(self.lstm(read)[0])


def beatnet() -> Specimen:
    """BeatNet: LSTM 150 x 2 over spectral frames of 20 ms."""
    folder = package("BeatNet", "pip install --no-deps BeatNet")
    model = BeatTracker()
    model.load_state_dict(torch.load(folder / "models" / "model_1_weights.pt", map_location="cpu", weights_only=True))
    frames = sound.log_spectrogram(sound.music(22050, SECONDS), 22050, 1411, 441, 24)
    x = torch.from_numpy(frames)[None]

    def check() -> tuple[float, str]:
        bare_package("BeatNet", folder)
        from BeatNet.model import BDA

        theirs = BDA(272, 150, 2, "cpu")
        theirs.load_state_dict(model.state_dict(), strict=False)
        with torch.no_grad():
            answer = theirs(x).transpose(1, 2).numpy()
        return difference(model, x, answer), "its own BDA module"

    return Specimen("BeatNet", "beats and downbeats", "LSTM 150 x 2", model, model.lstm, x, "20 ms", check)


class Bare:
    """Stands for a class of a pickle: keeps its state and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


class ArraysOnly(pickle.Unpickler):
    """Reads the arrays of madmom's model files: numpy's own constructors run, every other class is a `Bare` one."""

    NUMPY: ClassVar[dict[str, Any]] = {
        "_reconstruct": np._core.multiarray._reconstruct,
        "ndarray": np.ndarray,
        "dtype": np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in self.NUMPY:
            return self.NUMPY[name]
        if module.startswith("madmom.ml.nn"):
            return type(name, (Bare,), {})
        raise pickle.UnpicklingError(f"expected numpy arrays and madmom's layers, got {module}.{name}")


def layers_of(file: Path) -> list[Any]:
    """The layers of a model file of madmom."""
    with file.open("rb") as stream:
        return list(ArraysOnly(stream, encoding="latin1").load().layers)


def dense(layer: Any) -> nn.Linear:
    """A feed-forward layer of madmom's."""
    linear = nn.Linear(*layer.weights.shape)
    linear.load_state_dict(
        {"weight": torch.from_numpy(layer.weights.T.copy()), "bias": torch.from_numpy(layer.bias.ravel().copy())}
    )
    return linear


class Onsets(nn.Module):
    """Probability of an onset in each frame of 10 ms, by tanh layers."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__()
        *recurrent, last = layers
        sizes = [layer.weights.shape for layer in recurrent]
        assert len({hidden for _, hidden in sizes}) == 1
        self.rnn = nn.RNN(sizes[0][0], sizes[0][1], len(sizes), batch_first=True)
        state = {}
        for k, layer in enumerate(recurrent):
            state[f"weight_ih_l{k}"] = torch.from_numpy(layer.weights.T.copy())
            state[f"weight_hh_l{k}"] = torch.from_numpy(layer.recurrent_weights.T.copy())
            state[f"bias_ih_l{k}"] = torch.from_numpy(layer.bias.ravel().copy())
            state[f"bias_hh_l{k}"] = torch.zeros(layer.bias.size)
        self.rnn.load_state_dict(state)
        self.head = dense(last)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.head(self.rnn(x)[0]))


GATES = ("input_gate", "forget_gate", "cell", "output_gate")


class PeepholeLSTM(nn.Module):
    """An LSTM whose gates also read its cells: input and forget gate those before the step, the output gate those after."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        gates = [getattr(layer, name) for name in GATES]
        join = torch.from_numpy
        self.weight = nn.Parameter(join(np.concatenate([gate.weights for gate in gates], 1)))
        self.recurrent = nn.Parameter(join(np.concatenate([gate.recurrent_weights for gate in gates], 1)))
        self.bias = nn.Parameter(join(np.concatenate([gate.bias.ravel() for gate in gates])))
        zeros = np.zeros(gates[0].bias.size, np.float32)
        peepholes = [getattr(gate, "peephole_weights", None) for gate in gates]
        self.peephole = nn.Parameter(join(np.stack([zeros if p is None else p.ravel() for p in peepholes])))

    def forward(self, x: Tensor) -> Tensor:
        fed = x @ self.weight + self.bias
        hidden = cell = fed.new_zeros(len(x), self.peephole.shape[1])
        outputs = []
        for now in fed.unbind(1):
            i, f, c, o = (now + hidden @ self.recurrent).chunk(4, -1)
            i, f = torch.sigmoid(i + cell * self.peephole[0]), torch.sigmoid(f + cell * self.peephole[1])
            cell = f * cell + i * torch.tanh(c)
            hidden = torch.sigmoid(o + cell * self.peephole[3]) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, 1)


class OnlineBeats(nn.Module):
    """Probability of a beat in each frame of 10 ms."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__()
        *recurrent, last = layers
        self.layers = nn.Sequential(*map(PeepholeLSTM, recurrent))
        self.head = dense(last)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.head(self.layers(x)))


MADMOM = "unpack its source archive (madmom 0.16) into a folder, and name that in ATLAS_PACKAGES"


def own_network(folder: Path, file: Path) -> Any:
    """madmom's own layers, in order, from its own file."""
    for name in ("madmom", "madmom.ml", "madmom.ml.nn"):
        bare_package(name, folder.joinpath(*name.split(".")[1:]))
    from madmom.ml.nn import activations, layers

    class Own(ArraysOnly):
        def find_class(self, module: str, name: str) -> Any:
            for known in (layers, activations):
                if module == known.__name__:
                    return getattr(known, name)
            return super().find_class(module, name)

    with file.open("rb") as stream:
        return Own(stream, encoding="latin1").load().layers


def own_answer(layers: Any, x: Tensor) -> np.ndarray:
    """What madmom's own layers answer."""
    data = x[0].numpy()
    for layer in layers:
        data = layer(data)
    return np.asarray(data)[None]


def madmom_onsets() -> Specimen:
    """madmom: tanh layers that find onsets."""
    folder = package("madmom", MADMOM)
    file = folder / "models" / "onsets" / "2013" / "onsets_rnn_1.pkl"
    model = Onsets(layers_of(file))
    wave = sound.music(44100, SECONDS)
    parts = [sound.log_spectrogram(wave, 44100, size, 441, 6, scale=5, overlap=0.25) for size in (512, 1024, 2048)]
    x = torch.from_numpy(np.hstack(parts))[None, :800]

    def check() -> tuple[float, str]:
        return difference(model, x, own_answer(own_network(folder, file), x)), "its own numpy layers"

    kind = f"tanh {model.rnn.hidden_size} x {model.rnn.num_layers}"
    return Specimen("madmom onsets", "note onsets", kind, model, model.rnn, x, "10 ms", check)


def madmom_beats() -> Specimen:
    """madmom: LSTM layers with peepholes that find beats."""
    folder = package("madmom", MADMOM)
    file = folder / "models" / "beats" / "2016" / "beats_lstm_1.pkl"
    layers = layers_of(file)
    model = OnlineBeats(layers)
    x = torch.from_numpy(sound.log_spectrogram(sound.music(44100, SECONDS), 44100, 2048, 441, 12))[None, :800]

    def check() -> tuple[float, str]:
        return difference(model, x, own_answer(own_network(folder, file), x)), "its own numpy layers"

    kind = f"LSTM {layers[0].cell.bias.size} x {len(layers) - 1}, peepholes"
    return Specimen("madmom beats", "beats", kind, model, None, x, "10 ms", check)
