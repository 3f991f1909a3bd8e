"""Whether a small Mamba of the installed transformers is accelerated, and that it is read either way: one line of JSON.

For another version than the project's, in a folder of its own (with older tokenizers and huggingface_hub where it asks):

    pip install --no-deps --target FOLDER "transformers==5.15.*" "tokenizers==0.22.*" "huggingface_hub<2" httpx httpcore sniffio
    PYTHONPATH=FOLDER python tests/nn/transformers_version.py
"""

from __future__ import annotations

import json
from typing import Any

import torch
import transformers

import holdfast
from holdfast.diagnosis._reading import read_model
from holdfast.errors import BackendError


def looked_at() -> dict[str, Any]:
    """The version, whether `accelerate` takes it, and what a diagnosis says of it."""
    torch.manual_seed(0)
    config = transformers.MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=40, state_size=4)
    model = transformers.MambaForCausalLM(config)
    reading = read_model(model, None, 0)
    try:
        accelerated = len(holdfast.accelerate(model).replaced)
    except BackendError:
        accelerated = 0
    said = [note for note in reading.notes if "not on our kernels" in note]
    return {
        "transformers": transformers.__version__,
        "accelerated": accelerated == config.num_hidden_layers,
        "said": said,
    }


if __name__ == "__main__":
    print(json.dumps(looked_at()))  # noqa: T201
