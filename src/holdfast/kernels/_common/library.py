"""Finds and loads the compiled kernels: one C library for each instruction set, the best that the CPU can run."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # first, so that its OpenMP runtime is in the process when the kernels look for one

from holdfast.errors import BackendError, unknown_name

ABI = 3  # of csrc/common/library.cpp; goes up whenever a struct or a function of the C side changes its meaning
VARIANTS = ("v4", "v3", "portable")
ENVIRONMENT = "HOLDFAST_NATIVE"  # auto (default), off, or one of VARIANTS
ENVIRONMENT_FOLDER = "HOLDFAST_NATIVE_FOLDER"  # the only folder to look in, for work on the kernels themselves
# what a source build makes is set by HOLDFAST_VARIANTS: native (default), all, or a list of VARIANTS (CMakeLists.txt)
HOW_TO_BUILD = (
    "install a C++17 compiler (Debian: apt-get install g++; macOS: xcode-select --install) and run "
    "`pip install --force-reinstall --no-deps holdfast` (from a clone: `make clean install`)"
)


@dataclass(frozen=True)
class NativeStatus:
    """Which native library is in use, or why none is."""

    available: bool
    variant: str | None
    path: Path | None
    reason: str


def _folders() -> list[Path]:
    # an editable install keeps the libraries in site-packages while the Python files stay in the clone
    beside = Path(__file__).resolve().parents[2] / "_native"
    installed = Path(sysconfig.get_path("platlib")) / "holdfast" / "_native"
    chosen = os.environ.get(ENVIRONMENT_FOLDER)
    return [Path(chosen)] if chosen else [beside, installed]


def _find(variant: str) -> Path | None:
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    prefix = "" if sys.platform == "win32" else "lib"
    for folder in _folders():
        path = folder / f"{prefix}holdfast_{variant}{suffix}"
        if path.is_file():
            return path
    return None


def _open(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    if library.holdfast_abi() != ABI:
        raise BackendError(
            f"{path}: expected a library with ABI {ABI}, got {library.holdfast_abi()}, built from other sources; "
            "rebuild it with `make install`, or reinstall holdfast"
        )
    library.holdfast_variant.restype = ctypes.c_char_p
    return library


def runnable() -> tuple[str, ...]:
    """The variants that this CPU can run, best first, as torch found out for its own kernels."""
    level = torch.backends.cpu.get_cpu_capability()
    best = "v4" if level.startswith("AVX512") else "v3" if level == "AVX2" else "portable"
    return VARIANTS[VARIANTS.index(best) :]


def built() -> tuple[str, ...]:
    """The variants that are installed and that this CPU can run, best first."""
    return tuple(variant for variant in runnable() if _find(variant))


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, NativeStatus]:
    wanted = os.environ.get(ENVIRONMENT, "auto")
    if wanted not in ("auto", "off", *VARIANTS):
        raise unknown_name(f"value of {ENVIRONMENT}", wanted, ("auto", "off", *VARIANTS))
    if wanted == "off":
        return None, NativeStatus(False, None, None, f"switched off by {ENVIRONMENT}=off")
    if wanted != "auto" and wanted not in runnable():
        raise BackendError(
            f"{ENVIRONMENT} must be a variant that this CPU runs ({', '.join(runnable())}), got {wanted!r}; change or unset it"
        )
    variant = wanted if wanted != "auto" else next(iter(built()), None)
    path = None if variant is None else _find(variant)
    if variant is not None and path is not None:
        reason = "best for this CPU" if wanted == "auto" else f"asked for by {ENVIRONMENT}"
        return _open(path), NativeStatus(True, variant, path, reason)
    if wanted != "auto":
        raise BackendError(f"the {wanted!r} variant of the native library is not installed; to get it, {HOW_TO_BUILD}")
    others = [v for v in VARIANTS if _find(v)]
    why = f"built only as {', '.join(others)}, which this CPU cannot run" if others else "not built"
    return None, NativeStatus(False, None, None, f"{why}; to get it, {HOW_TO_BUILD}")


def status() -> NativeStatus:
    """Tells which native library is in use and why, or why none is."""
    return _load()[1]


def function(name: str, argtypes: Sequence[Any], restype: Any = None) -> Any:
    """Returns the C function `name` with its prototype set; raises where the native library is missing."""
    library, state = _load()
    if library is None:
        raise BackendError(f"the native kernels are {state.reason}")
    # set at every look-up, which callers cache: ctypes keeps prototypes on the function, and would guess int without
    called = getattr(library, name, None)
    if called is None:
        raise BackendError(
            f"{state.path} was built from older sources and lacks {name}; rebuild it with `make install`, or reinstall holdfast"
        )
    called.argtypes = list(argtypes)
    called.restype = restype
    return called


@functools.cache
def _number(name: str) -> int:
    return int(function(f"holdfast_{name}", [], ctypes.c_int64)())


def number(name: str) -> int:
    """A constant of the native library, such as the steps of a kernel's tile: `holdfast_<name>()`."""
    return _number(name)


def threads() -> int:
    """Threads that a kernel may use: what `torch.set_num_threads` says, and no more than a container's share of cores."""
    return min(torch.get_num_threads(), _QUOTA_THREADS)


def cpu_quota(control_groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Cores that this process may use by the limits of its control groups, as containers have them; inf without one.

    torch counts the machine's cores. Threads beyond the quota only use it up sooner, and then all of them stand still.

    Args:
        control_groups: where the file system of control groups is mounted.
        own: the file that names the groups of this process.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: one tree, whose every level may have a limit
            below = control_groups / path.lstrip("/")
            quotas += [_ratio(*_words(folder / "cpu.max")) for folder in (below, *below.parents)]
        elif "cpu" in controllers.split(","):
            folder = control_groups / controllers / path.lstrip("/")
            quotas.append(_ratio(*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")))
    return min(quotas)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _ratio(*words: str) -> float:
    """Cores that a quota and a period in microseconds give; "max", -1 or nothing is no limit."""
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return math.inf
    return int(words[0]) / int(words[1])


# read once: a kernel asks for its threads at every call
_QUOTA_THREADS = max(1, math.ceil(min(cpu_quota(), os.cpu_count() or 1)))


def missing() -> str:
    """Why there is no native library, or an empty text; a constant to `torch.compile`, which cannot trace the search."""
    state = status()
    return "" if state.available else state.reason


# what torch.compiler.assume_constant_result does; calling that imports all of dynamo, 3 s at `import holdfast`
missing._dynamo_marked_constant = True  # type: ignore[attr-defined]
number._dynamo_marked_constant = True  # type: ignore[attr-defined]
