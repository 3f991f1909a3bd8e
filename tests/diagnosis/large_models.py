# ruff: noqa: T201
"""Diagnoses a Mamba of 129 million weights, or one of a billion in bfloat16: processor time, peak memory, what was said first.

    OMP_NUM_THREADS=1 python tests/diagnosis/large_models.py
    OMP_NUM_THREADS=1 python tests/diagnosis/large_models.py --huge

Random weights; prints one line of JSON, then the diagnosis.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import torch
from transformers import MambaConfig, MambaForCausalLM

import holdfast


def main() -> None:
    huge = "--huge" in sys.argv
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if huge else torch.float32)
    size = {"hidden_size": 2048, "num_hidden_layers": 34} if huge else {"hidden_size": 768, "num_hidden_layers": 24}
    model = MambaForCausalLM(MambaConfig(vocab_size=50280, **size))
    torch.set_default_dtype(torch.float32)
    told: list[str] = []
    start = time.process_time()
    found = holdfast.diagnose(model, progress=lambda text, done, total: told.append(text))
    numbers = {
        "weights": sum(p.numel() for p in model.parameters()),
        "cpu_seconds": round(time.process_time() - start, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "parts": {name: round(seconds, 1) for name, seconds in found.seconds.items()},
        "first": told[0],
        "unseen": list(found.unseen),
    }
    print(json.dumps(numbers), flush=True)
    print(found)


if __name__ == "__main__":
    main()
