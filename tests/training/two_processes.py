"""Run as a script: the same training on two gloo processes, stopped on the way and continued.

python two_processes.py FOLDER STRATEGY...   copied to both (ddp), shared out among them (fsdp)
"""

import sys
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parent))
from small_training import CONFIG, new_model, new_task

from holdfast.data import ArrayTask
from holdfast.training import fit

torch.set_num_threads(1)
STOP = 19  # parts of batches that a process has taken when it stops: in the tenth step, after three checkpoints


class Stopped(BaseException):
    """Both processes stop at the same place, so that they can go on in the same group."""


def main(folder, strategies):
    real = ArrayTask.batch
    for strategy in strategies:
        # no dropout: each process draws its own
        settings = CONFIG | {"strategy": strategy, "devices": 2, "accelerator": "cpu", "accumulate": 2}
        calls = []

        def stopping(self, split, indices, calls=calls):
            calls.append(split)
            if calls.count("train") == STOP:
                raise Stopped
            return real(self, split, indices)

        try:
            with mock.patch.object(ArrayTask, "batch", stopping):
                fit(new_model(dropout=0.0), new_task(), settings, folder=folder / strategy)
        except Stopped:
            pass
        else:
            raise AssertionError("it was to stop")
        fit(new_model(seed=5, dropout=0.0), new_task(), settings, folder=folder / strategy, resume=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
