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
from holdfast.kernels.gate import _triton as gate_launches
from holdfast.kernels.gate import _triton_kernels as gate
from holdfast.kernels.gated import _triton as gated_launches
from holdfast.kernels.gated import _triton_kernels as gated
from holdfast.kernels.lru import _triton as lru_launches
from holdfast.kernels.lru import _triton_kernels as lru
from holdfast.kernels.rnn import _triton_kernels as rnn
from holdfast.kernels.s4d import _triton_kernels as s4d
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


def compiled(kernel, types: dict[str, str], constants: dict[str, object], target: str, warps: int, **options: int):
    """`kernel` for `target`; pointers and strides are multiples of 16, as torch's allocator and usual sizes give them."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in constants}
    source = ASTSource(kernel, signature, values, aligned)
    return triton.compile(source, target=TARGETS[target], options={"num_warps": warps, **options})


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
    """Mamba's scan with 16 states per channel, in the layout that `_triton.py` launches."""
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


def conv_case(kernel_name: str, target: str, taps: int = 4, silu: bool = True, resets: bool = False) -> Use:
    """The causal convolution with 4 taps, bias and silu, as in Mamba; with 8 and neither, as in S4D with resets."""
    kernel = getattr(conv, f"conv_{kernel_name}_kernel")
    constants = {
        "TAPS": taps, "HAS_BIAS": silu, "HAS_STATE": False, "HAS_LENGTHS": False, "HAS_REACH": resets, "SILU": silu,
        "ACC": tl.float32, "CHANNELS": conv_launches._CHANNELS, "STEPS": conv_launches._STEPS, "state": None,
        "lengths": None,
    }  # fmt: skip
    constants |= {"grad_state": None} if kernel_name == "backward" else {}
    constants |= {} if resets else {"reach": None}
    constants |= {} if silu else dict.fromkeys(("bias", "grad_bias")[: 2 if kernel_name == "backward" else 1])
    pointers = ("x", "weight", "bias", "y", "grad_y", "grad_x", "grad_weight", "grad_bias")
    types = dict.fromkeys(pointers, "*fp32") | {"reach": "*i64"}
    return use(compiled(kernel, types, constants, target, 4), target)


def recurrent_case(kernel, constants: dict[str, object], target: str, **options: int) -> Use:
    """A persistent recurrence over blocks of 16 rows with all optional arguments but lengths."""
    flags = {name: True for name in kernel.arg_names if name.startswith("HAS_")} | {"HAS_LENGTHS": False}
    precision = "ieee" if target.startswith("gfx") else "tf32x3"
    made = {**flags, "REVERSE": False, "PRECISION": precision, "ROWS": 16, "lengths": None, **constants}
    types = {name: "*fp32" for name in kernel.arg_names} | dict.fromkeys(("rows", "time", "states"), "i32")
    types |= dict.fromkeys(("dt", "step"), "fp32")
    used = {name: value for name, value in made.items() if name in kernel.arg_names}
    return use(compiled(kernel, types, used, target, options.pop("num_warps"), num_stages=1, **options), target)


def rnn_case(way: str, states: int, target: str) -> Use:
    """The RNN with tanh and Euler steps of many sizes."""
    constants = {"EULER": True, "KEEP": True, "ACTIVATION": "tanh", "STATES": states}
    return recurrent_case(getattr(rnn, f"rnn_{way}_kernel"), constants, target, num_warps=4 if states <= 64 else 8)


def gated_case(cell: str, way: str, target: str) -> Use:
    """A gated recurrence with as many states as fit."""
    constants = {"CELL": cell, "GATES": gated_launches.GATES[cell], "PARTS": gated_launches.PARTS[cell]}
    absent = () if cell == "lstm" else ("c0", "c_last", "cells", "cells_before", "grad_c", "grad_c0")
    absent += () if cell == "gru" else ("bias",)
    absent += () if cell == "continuous" else ("steps", "grad_steps")
    constants |= {"HAS_C0": cell == "lstm", "HAS_C": cell == "lstm", "HAS_STEPS": cell == "continuous"}
    launch = gated_launches.LAUNCH["hip" if target.startswith("gfx") else "cuda"]
    constants |= {"STATES": gated_launches.MAX_STATES} | dict.fromkeys(absent)
    return recurrent_case(getattr(gated, f"gated_{way}_kernel"), constants, target, **launch)


def lru_case(backward: bool, parts: int, element: str, target: str) -> Use:
    """The product and scan of the LRU with lengths, resets and an initial state."""
    kernel = lru.product_scan_kernel
    absent = ("product", "rest") if backward else ("product", "rest", "h", "h0", "grad_lam")
    constants = {
        "BACKWARD": backward, "SUMMARY": False, "REVERSE": backward, "PARTS": parts, "HAS_START": True,
        "HAS_H0": backward, "HAS_LENGTHS": True, "HAS_RESETS": True, "ACC": tl.float64, "WIDE": False,
        "PRECISION": "ieee" if target.startswith("gfx") else "tf32x3", "w_state" if backward else "w_input": 1,
        "BITS": lru_launches.SCAN_TILE["STEPS"].bit_length(), **lru_launches.SCAN_TILE, **dict.fromkeys(absent),
    }  # fmt: skip
    types = dict.fromkeys(("x", "weight", "h", "out"), element) | dict.fromkeys(("lam", "last", "h0"), "*fp32")
    types |= {"start": "*fp64", "grad_lam": "*fp64", "lengths": "*i64", "resets": "*i1"}
    options = {key: value for key, value in lru_launches.SCAN_LAUNCH.items() if key != "num_warps"}
    return use(compiled(kernel, types, constants, target, lru_launches.SCAN_LAUNCH["num_warps"], **options), target)


def direct_case(element: str, target: str) -> Use:
    """A product of the LRU with its direct path, and the direct path's gradient."""
    kernel = lru.product_direct_kernel
    constants = {
        "HAS_LENGTHS": False, "SUMS": True, "WIDE": False, "lengths": None, "w_out": 1,
        "PRECISION": "ieee" if target.startswith("gfx") else "tf32x3", **lru_launches.DIRECT_TILE,
    }  # fmt: skip
    types = dict.fromkeys(("x", "weight", "direct", "given", "other", "out"), element) | {"sums": "*fp32"}
    options = {key: value for key, value in lru_launches.DIRECT_LAUNCH.items() if key != "num_warps"}
    return use(compiled(kernel, types, constants, target, lru_launches.DIRECT_LAUNCH["num_warps"], **options), target)


def tables_case(way: str, target: str) -> Use:
    """S4D's matrices of a block of 64 steps with 32 complex modes, in float64."""
    kernel = getattr(s4d, f"tables_{way}_kernel")
    constants = {"STEPS": 64, "PARTS": 2, "ACC": tl.float64, "MODES": 32}
    types = {name: "*fp64" for name in kernel.arg_names} | {"modes": "i32"}
    types |= dict.fromkeys(("gather", "emit", "grad_gather", "grad_emit"), "*fp32")
    return use(compiled(kernel, types, constants, target, 1), target)


def gate_case(element: str, target: str) -> Use:
    """The gated residual with what backward needs."""
    kernel = gate.gate_forward_kernel
    precision = "ieee" if target.startswith("gfx") else "tf32x3"
    types = {name: element for name in kernel.arg_names} | {"tokens": "i32", "width": "i32"}
    constants = {"KEEP": True, "WIDE": False, "PRECISION": precision, **gate_launches.TILE}
    return use(compiled(kernel, types, constants, target, 8, num_stages=2), target)


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
        for element, suffix in (("*fp32", ""), ("*bf16", ", bfloat16")):
            for backward, way in ((False, "forward"), (True, "backward")):
                rows[f"lru, product and scan, {way}{suffix}", target] = lru_case(backward, 2, element, target)
            rows[f"lru, product and direct path{suffix}", target] = direct_case(element, target)
        for kernel in ("forward", "backward"):
            rows[f"causal_conv, {kernel}", target] = conv_case(kernel, target)
            rows[f"causal_conv with resets, {kernel}", target] = conv_case(kernel, target, resets=True)
            rows[f"s4d, a block with resets, {kernel}", target] = conv_case(kernel, target, 8, False, True)
        for element, name in (("*fp32", "gate"), ("*bf16", "gate, bfloat16")):
            rows[name, target] = gate_case(element, target)
        for way in ("forward", "backward"):
            rows[f"s4d, matrices of a block, {way}", target] = tables_case(way, target)
            rows[f"rnn, 64 states, {way}", target] = rnn_case(way, 64, target)
            rows[f"rnn, 128 states, {way}", target] = rnn_case(way, 128, target)
            for cell in gated_launches.GATES:
                name = "gru in continuous time" if cell == "continuous" else cell
                rows[f"{name}, 64 states, {way}", target] = gated_case(cell, way, target)
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
