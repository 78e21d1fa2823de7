"""The kernels compiled for GPUs that are not here: what Triton's interpreter cannot see.

One process for each target, all at once; Triton keeps what it compiled in its cache. THINWIRE_DEEP=1 takes more targets.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("triton")

TARGETS = ["sm_90", "gfx942"]
if os.environ.get("THINWIRE_DEEP"):
    TARGETS += ["sm_80", "sm_100", "sm_120", "gfx1100"]

# Registers saved around the slow path of divisions, in a thread's local memory. Every other kernel has none.
SAVED = {"own_update + encode sign": 8}
# A bf16 residual is eight bytes for four values, and this kernel has no other vector.
NARROW = {"take back sign, bf16 residual"}


@pytest.fixture(scope="module")
def compiled():
    """What was found in each kernel, by target."""
    program = pathlib.Path(__file__).with_name("device_compile.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    started = {
        target: subprocess.Popen(
            [sys.executable, program, target], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for target in TARGETS
    }
    found = {}
    for target, process in started.items():
        out, error = process.communicate()
        assert process.returncode == 0, f"{target}: {error[-2000:]}"
        found[target] = [json.loads(line) for line in out.splitlines()]
    return found


def check(kernel):
    """Fails where the machine code could give other bits than the engine, or moves more memory than it must."""
    name = kernel["kernel"]
    assert kernel["fused"] == 0, f"{name}: {kernel['fused']} fused multiply-adds"
    assert kernel["flush"] == 0, f"{name}: subnormal numbers are flushed to zero"
    assert kernel["approximate"] == 0, f"{name}: {kernel['approximate']} approximate divisions or square roots"
    assert 0 <= kernel["spills"] <= SAVED.get(name, 0), f"{name}: {kernel['spills']} spills"
    assert kernel["wide"] > 0 or name in NARROW, f"{name}: no load or store of 16 bytes"


@pytest.mark.parametrize("target", TARGETS)
def test_the_machine_code_keeps_the_bits(compiled, target):
    kernels = [kernel for kernel in compiled[target] if "with_fusion" not in kernel]
    assert len(kernels) > 50
    for kernel in kernels:
        check(kernel)
    divides = {kernel["kernel"] for kernel in kernels if kernel["divisions"]}
    assert "adam, on a vector" in divides and "encode sign" not in divides


@pytest.mark.parametrize("target", TARGETS)
def test_the_check_fails_with_fusion(compiled, target):
    fused = [kernel for kernel in compiled[target] if "with_fusion" in kernel]
    assert len(fused) == 2
    for kernel in fused:
        with pytest.raises(AssertionError, match="fused multiply-adds"):
            check(kernel)
