"""Counts the instructions of every kernel at one small shape, by callgrind: repeatable on a noisy machine.

`python tests/kernels/count_instructions.py` writes the counts of the installed library into `instructions.json`; needs
valgrind and the variant v3 (`HOLDFAST_VARIANTS=all make install`), since valgrind does not know AVX-512.

A training step of each kernel is recorded in a process with torch, the arguments of its C functions with their contents;
a second process without torch calls them again under valgrind. `record FILE` and `replay FILE LIBRARY` are the two.
"""

import ctypes
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

VARIANT = "v3"
STORED = Path(__file__).with_name("instructions.json")


def record(path):
    """Writes the C calls of a training step of each kernel: [(label, function, letters of the fields, values by name)]."""
    import importlib

    import torch
    from instruction_cases import CASES

    common = importlib.import_module("holdfast.kernels._common.calls")
    own, calls, label = common.call, [], ""

    def seen(value):
        return value.detach().contiguous().numpy().tobytes() if isinstance(value, torch.Tensor) else value

    def recorder(kernel, function, dtype, /, **arguments):
        given = {name: seen(value) for name, value in arguments.items() if value is not None}
        values = {**common._layout(kernel).zeros, "wide": dtype is torch.float64, "threads": 1, **given}
        calls.append((f"{label}: {function}", function, common._layout(kernel).pack.__self__.format, values))
        return own(kernel, function, dtype, **arguments)

    for module in [module for name, module in sys.modules.items() if name.startswith("holdfast.kernels.")]:
        if getattr(module, "call", None) is own:
            module.call = recorder
    torch.set_num_threads(1)
    for label, step in CASES.items():  # noqa: B007  read by the recorder
        torch.manual_seed(0)
        step(recorder)
    Path(path).write_bytes(pickle.dumps(calls))


def replay(path, library):
    """Makes the recorded calls, and prints how many calls in C each took; runs under valgrind, so without torch."""
    c, calls = ctypes.CDLL(library), []
    for _, function, letters, arguments in pickle.loads(Path(path).read_bytes()):
        kept = {name: _aligned(value) for name, value in arguments.items() if isinstance(value, bytes)}
        values = arguments | {name: address for name, (_, address) in kept.items()}
        run, pack = getattr(c, f"holdfast_{function}"), struct.Struct(letters).pack
        run.restype, run.argtypes = ctypes.c_int64, [ctypes.c_char_p]
        needed = run(pack(*values.values()))
        calls.append(2 if needed else 1)
        if needed:
            workspace = _aligned(bytes(needed))
            run(pack(*(values | {"workspace": workspace[1]}).values()))
    sys.stdout.write(json.dumps(calls))


def _aligned(content):
    """A buffer that begins on a cache line, as torch's do, and its address."""
    buffer = ctypes.create_string_buffer(len(content) + 64)
    address = -(-ctypes.addressof(buffer) // 64) * 64
    (ctypes.c_char * len(content)).from_address(address).raw = content  # ctypes.memmove would be a call in C too
    return buffer, address


def installed():
    """The library of the variant, None where it is not built."""
    from holdfast.kernels._common import library

    return library._find(VARIANT) if VARIANT in library.runnable() else None


def compiler(library):
    """What the library was compiled with, as the compiler wrote it there."""
    found = re.search(rb"GCC: \([^)]*\) ([0-9]+)\.", Path(library).read_bytes())
    return f"gcc {found[1].decode()}" if found else "unknown"


def count(library):
    """Instructions by label, of both processes in a folder that is gone afterwards."""
    here = Path(__file__)
    with tempfile.TemporaryDirectory() as folder:
        calls = str(Path(folder, "calls"))
        environment = {**os.environ, "HOLDFAST_NATIVE": VARIANT, "PYTHONPATH": str(here.parent)}
        subprocess.run([sys.executable, str(here), "record", calls], check=True, env=environment)
        recorded = pickle.loads(Path(calls).read_bytes())
        # every call of ctypes is a kernel's, and has a dump of its own
        options = ["--tool=callgrind", f"--callgrind-out-file={folder}/out", "--collect-atstart=no"]
        options += ["--toggle-collect=ffi_call", "--dump-after=ffi_call"]
        command = ["valgrind", *options, sys.executable, "-I", "-S", str(here), "replay", calls, str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        dumps = sorted(Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:]))
        totals = [_total(path) for path in dumps]
    return _by_label(recorded, json.loads(done.stdout), [total for total in totals if total is not None])


def _total(path):
    """Instructions of one dump, None of the last one, which no kernel ended."""
    text = path.read_text()
    if "Trigger: Program termination" in text:
        return None
    return int(re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)[1])


def _by_label(recorded, calls, totals):
    """Sums the calls of a label: where a workspace is needed, the first only asks for its size."""
    counts, rest = {}, iter(totals)
    for (label, *_), times in zip(recorded, calls, strict=True):
        counts[label] = counts.get(label, 0) + sum(next(rest) for _ in range(times))
    if list(rest):
        raise RuntimeError("expected a count for each call, got more")
    return counts


def main():
    """Measures, and writes the counts."""
    library = installed()
    if library is None or shutil.which("valgrind") is None:
        sys.exit(
            "expected valgrind and the variant v3; apt-get install valgrind, and HOLDFAST_VARIANTS=all make install"
        )
    found = {"variant": VARIANT, "compiler": compiler(library), "counts": count(library)}
    STORED.write_text(json.dumps(found, indent=2) + "\n")
    sys.stdout.write(STORED.read_text())


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        {"record": record, "replay": replay}[sys.argv[1]](*sys.argv[2:])
