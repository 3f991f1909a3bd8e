"""textgenrnn's own inference: the network that its model.py builds and loads, on characters given as a file of numpy.

    python examples/atlas/textgenrnn_own.py FOLDER_OF_THE_PACKAGE ids.npy probabilities.npy

Its code is of TensorFlow 2 before Keras 3 (tensorflow-cpu 2.15.1 runs it), which asks for an older numpy than torch does: so it
runs in an environment of its own, which ATLAS_TENSORFLOW names.
"""

import importlib
import json
import sys
import types
from pathlib import Path

import numpy as np

# as the class textgenrnn has them beside the weights that come with it
CONFIG = {"rnn_layers": 2, "rnn_size": 128, "rnn_bidirectional": False, "max_length": 40, "dim_embeddings": 100}


def main(folder: str, ids: str, answers: str) -> None:
    package = types.ModuleType("textgenrnn")  # without its __init__, which needs scikit-learn and more
    package.__path__ = [folder]
    sys.modules["textgenrnn"] = package
    vocabulary = json.loads((Path(folder) / "textgenrnn_vocab.json").read_text(encoding="utf-8"))
    build = importlib.import_module("textgenrnn.model").textgenrnn_model
    weights = str(Path(folder) / "textgenrnn_weights.hdf5")
    model = build(len(vocabulary) + 1, CONFIG, weights_path=weights)
    np.save(answers, model.predict(np.load(ids), verbose=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
