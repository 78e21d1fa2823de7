"""Compiles the kernels for GPUs that are not here, as `launch` would launch them, and looks at the machine code.

`python device_compile.py TARGET` prints one JSON object for each kernel.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from thinwire.device import launch, measure, twins

TARGETS = {f"sm_{arch}": GPUTarget("cuda", arch, 32) for arch in (80, 90, 100, 120)}
TARGETS |= {"gfx942": GPUTarget("hip", "gfx942", 64), "gfx1100": GPUTarget("hip", "gfx1100", 32)}
POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
FUSED = r"v_(?:pk_)?(?:fma|fmac|mad|mac|fmamk|fmaak|madmk|madak)_(?:legacy_)?f32|v_dual_fmac"
LENGTH = 1 << 16


def launches():
    """A name and a call for every kernel, in every form that has code of its own."""
    yield from ((name, call) for name, _, call in measure.calls("cpu", LENGTH)[1:])
    vectors = {name: torch.zeros(LENGTH) for name in ("g", "m", "v", "u", "a", "x")}
    bad, jump = torch.zeros(9, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    payload, halves = torch.zeros(4 * LENGTH, dtype=torch.uint8), torch.zeros(LENGTH, dtype=torch.int16)
    eight = launch.Groups.of([twins.scalars(g) for g in range(8)], [LENGTH] * 8)
    yield "progress + encode sign, 8 groups", lambda: launch.pack("progress", vectors, "sign", 512, vectors["x"], payload, bad, eight)
    yield "adam, 8 groups", lambda: launch.run("adam", vectors["g"], vectors, bad, jump, eight)
    for block in (100, 4096):
        yield f"encode sign, block {block}", lambda block=block: launch.pack("gradient", vectors, "sign", block, vectors["x"], payload, bad)
    for width in (2, 3, 5, 6, 7, 8):
        yield f"encode uniform{width}", lambda width=width: launch.pack("gradient", vectors, f"uniform{width}", 512, None, payload, bad)
    for codec in ("uniform4", "bf16", "f16", "f32"):
        call = lambda codec=codec: launch.serve(payload, 16, 4, 4.0, codec, codec, 512, LENGTH, vectors["x"], payload, bad)  # noqa: E731
        yield f"serve {codec}", call
    yield "take back sign", lambda: launch.take_back("sign", 512, payload, vectors["x"], bad)
    yield "take back sign, bf16 residual", lambda: launch.take_back("sign", 512, payload, halves, bad)
    yield "replace and compare", lambda: launch.run("replace", payload, vectors, bad, jump, codec="f32", compares=vectors["g"])


def compile_one(call, target: GPUTarget, fusion: bool = False):
    """The kernel that `call` launches, compiled for `target`."""
    caught = []

    def catch(kernel, programs, *arguments, warps, **constants):
        caught.append((kernel, arguments, warps, constants))

    hip = "7.0" if target.warp_size == 64 else None
    with mock.patch.object(launch, "_launch", catch), mock.patch.object(torch.version, "hip", hip):
        call()
    ((kernel, arguments, warps, constants),) = caught
    signature, divisible = {}, {}
    for place, (name, value) in enumerate(zip(kernel.arg_names, arguments, strict=False)):
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32" if value < 1 << 31 else "i64"
        if isinstance(value, torch.Tensor) or isinstance(value, int) and value % 16 == 0:
            divisible[(place,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, {name: signature[name] for name in kernel.arg_names}, constexprs=constants, attrs=divisible)
    return triton.compile(source, target=target, options={"enable_fp_fusion": fusion, "num_warps": warps})


def count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


def look(compiled, target: GPUTarget) -> dict[str, int]:
    """What the interpreter cannot see."""
    if target.backend == "hip":
        asm = compiled.asm["amdgcn"]
        # Those of vector registers: scalar ones are kept in lanes of a vector register, not in memory.
        spills = [int(number) for number in re.findall(r"\.vgpr_spill_count:\s*(\d+)", asm)]
        return {
            # A correctly rounded division is made of five, a square root of two. More of them would be contractions.
            "fused": count(FUSED, asm) - 5 * count(r"v_div_fmas_f32", asm) - 2 * count(r"v_sqrt_f32", asm),
            "divisions": count(r"v_div_fmas_f32|v_sqrt_f32", asm),
            "approximate": count(r"\bafn\b|\barcp\b|\bfast\b", compiled.asm["llir"]),
            "flush": 0 if count(r"\.amdhsa_float_denorm_mode_32 3", asm) else 1,
            "wide": count(r"(?:global|buffer)_(?:load|store)_(?:dwordx4|b128)", asm),
            "spills": sum(spills) if spills else -1,
        }
    ptx = compiled.asm["ptx"]
    return {
        "fused": count(r"\bfma\.rn", ptx) + (0 if count(r"div\.rn|sqrt\.rn", ptx) else count(r"\bFFMA\b", _sass(compiled))),
        "divisions": count(r"div\.rn\.f32|sqrt\.rn\.f32", ptx),
        "approximate": count(r"div\.full|\.approx", ptx),
        "flush": count(r"\.ftz", ptx),
        "wide": count(r"(?:ld|st)\.global[.\w:]*\.v4\.b32", ptx),
        "spills": count(r"\b(?:STL|LDL)\b", _sass(compiled)),  # stores to and loads from a thread's local memory
    }


def _tool(name: str, *arguments: str, cubin: bytes) -> str:
    tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", name)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, *arguments, file.name], capture_output=True, text=True, check=True).stdout


def _sass(compiled) -> str:
    return _tool("nvdisasm", "-c", cubin=compiled.asm["cubin"])


def main(name: str) -> None:
    target = TARGETS[name]
    for kernel, call in launches():
        print(json.dumps({"kernel": kernel, **look(compile_one(call, target), target)}), flush=True)
    for kernel, call in launches():
        if kernel in ("blend + encode sign", "adam, on a vector"):
            found = look(compile_one(call, target, fusion=True), target)
            print(json.dumps({"kernel": kernel, "with_fusion": True, **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
