"""Compiles Triton kernels for GPUs that are not here, and reads what they take: registers, spills, shared memory.

Not for a process with TRITON_INTERPRET=1, where kernels are plain functions. `python ahead_of_time.py` prints the table
of docs/gpu.md.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from holdfast.kernels.causal_conv import _triton as conv_launches
from holdfast.kernels.causal_conv import _triton_kernels as conv
from holdfast.kernels.scan import _triton_kernels as scan
from holdfast.kernels.selective import _triton as selective_launches
from holdfast.kernels.selective import _triton_kernels as selective

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Use(NamedTuple):
    """What one thread of a kernel takes, in registers and in bytes (words on AMD) that did not fit into them."""

    registers: int
    spilled: int


def compiled(kernel, types: dict[str, str], constants: dict[str, object], target: str, warps: int, stages: int = 3):
    """`kernel` for `target`; pointers and strides are multiples of 16, as torch's allocator and usual sizes give them."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in constants}
    source = ASTSource(kernel, signature, values, aligned)
    return triton.compile(source, target=TARGETS[target], options={"num_warps": warps, "num_stages": stages})


def use(kernel, target: str) -> Use:
    """Registers and spills by the vendor's own reading of the binary."""
    if target.startswith("gfx"):
        text = kernel.asm["amdgcn"]
        numbers = {name: int(value) for name, value in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", text)}
        return Use(numbers["vgpr_count"], numbers["vgpr_spill_count"])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run([_CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return Use(found["REG"], found["STACK"] + found["LOCAL"])


def scan_case(backward: bool, parts: int, varying: bool, target: str) -> Use:
    """The scan at 128 channels a program, states in float64, as `plan` lays it out."""
    kernel = scan.scan_backward_kernel if backward else scan.scan_forward_kernel
    constants = {
        "SUMMARY": False, "PARTS": parts, "VARYING": varying, "REVERSE": False, "HAS_START": True,
        "HAS_LENGTHS": False, "HAS_RESETS": False, "ACC": tl.float64, "CHANNELS": 128, "UNROLL": 4 if parts == 2 else 8,
        "step": parts, "im": 1, "lengths": None, "resets": None, "product": None, "rest": None,
    }  # fmt: skip
    types = {name: "*fp32" for name in ("a", "b", "h", "last", "grad_h", "grad_b", "grad_h0")} | {"start": "*fp64"}
    if backward:
        constants |= {"HAS_H0": False, "HAS_GRAD": True, "WANT_A": True, "WANT_B": True, "h0": None}
        types["grad_a"] = "*fp32" if varying else "*fp64"
    return use(compiled(kernel, types, constants, target, 4), target)


def selective_case(kernel_name: str, element: str, target: str, shape: tuple[int, int, int] | None = None) -> Use:
    """Mamba's scan with 16 states a channel, in the layout that `_triton.py` launches."""
    kernel = getattr(selective, f"selective_{kernel_name}_kernel")
    warp = 64 if target.startswith("gfx") else 32
    width, steps, warps = shape or selective_launches.layout(kernel_name != "forward", 16, warp)
    constants = {
        "SUMMARY": False, "HAS_D": True, "HAS_Z": True, "HAS_BIAS": True, "HAS_START": True, "HAS_LENGTHS": False,
        "HAS_RESETS": False, "SOFTPLUS": True, "REVERSE": False, "SAVE": True, "STATES": 16, "N": 16,
        "ACC": tl.float32, "CHANNELS": width, "STEPS": steps, "KEEP": selective_launches.KEEP, "lengths": None,
        "resets": None, "group_blocks": 16,
    }  # fmt: skip
    if kernel_name == "forward":
        constants |= {"product": None, "rest": None}
    sequences = ("u", "dt", "B", "C", "z", "y", "grad_y", "grad_u", "grad_dt", "grad_z")
    states = (
        "A",
        "D",
        "bias",
        "start",
        "kept",
        "last",
        "product",
        "rest",
        "grad_A",
        "grad_B",
        "grad_C",
        "grad_D",
        "grad_bias",
        "grad_h0",
    )
    types = dict.fromkeys(sequences, element) | dict.fromkeys(states, "*fp32")
    used = {name: value for name, value in constants.items() if name in kernel.arg_names}
    return use(compiled(kernel, types, used, target, warps), target)


def conv_case(kernel_name: str, target: str) -> Use:
    """The causal convolution with 4 taps, bias and silu, as in Mamba."""
    kernel = getattr(conv, f"conv_{kernel_name}_kernel")
    constants = {
        "TAPS": 4, "HAS_BIAS": True, "HAS_STATE": False, "HAS_LENGTHS": False, "SILU": True, "ACC": tl.float32,
        "CHANNELS": conv_launches._CHANNELS, "STEPS": conv_launches._STEPS, "state": None, "lengths": None,
    }  # fmt: skip
    if kernel_name == "backward":
        constants["grad_state"] = None
    pointers = ("x", "weight", "bias", "y", "grad_y", "grad_x", "grad_weight", "grad_bias")
    return use(compiled(kernel, dict.fromkeys(pointers, "*fp32"), constants, target, 4), target)


def table() -> dict[tuple[str, str], Use]:
    """What the kernels of docs/gpu.md take on each target, by kernel and target."""
    rows = {}
    for target in TARGETS:
        for parts, kind in ((1, "real"), (2, "complex")):
            for varying in (True, False):
                for backward in (False, True):
                    name = f"scan, {kind}, {'varying' if varying else 'constant'} a, {'backward' if backward else 'forward'}"
                    rows[name, target] = scan_case(backward, parts, varying, target)
        for kernel in ("forward", "carry", "backward"):
            rows[f"selective, {kernel}", target] = selective_case(kernel, "*fp32", target)
            rows[f"selective, {kernel}, bfloat16", target] = selective_case(kernel, "*bf16", target)
        for kernel in ("forward", "backward"):
            rows[f"causal_conv, {kernel}", target] = conv_case(kernel, target)
    return rows


def markdown(rows: dict[tuple[str, str], Use]) -> str:
    """The table of docs/gpu.md."""
    names = list(dict.fromkeys(name for name, _ in rows))
    lines = [f"| kernel | {' | '.join(TARGETS)} |", f"|---{'|---:' * len(TARGETS)}|"]
    lines += [f"| {name} | {' | '.join(str(rows[name, target].registers) for target in TARGETS)} |" for name in names]
    return "\n".join(lines)


if __name__ == "__main__":
    found = table()
    print(markdown(found))  # noqa: T201
    print("spilled:", {key: use for key, use in found.items() if use.spilled})  # noqa: T201
