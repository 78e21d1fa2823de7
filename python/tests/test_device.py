"""The kernels for GPUs against the engine's own, bit for bit, on Triton's interpreter; and what is refused.

The interpreter must be chosen before Triton is imported, so the comparisons run in processes of their own.
"""

import json
import os
import subprocess
import sys

import numpy
import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")


def prove(*arguments, **environment):
    command = [sys.executable, "-m", "thinwire.device", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.mark.parametrize("suites", [["sign"], ["levels"], ["owner"], ["sources"], ["casts", "passes", "reductions", "refusals"]])
def test_every_kernel_has_the_engines_bits(suites):
    done = prove("--interpret", "--json", *(word for suite in suites for word in ("--only", suite)))
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["differences"] == []
    assert report["equal"] and done.returncode == 0
    assert [part["name"] for part in report["suites"]] == suites
    assert all(part["comparisons"] >= 40 for part in report["suites"])


def test_the_suites_are_all_there():
    from thinwire.device import __main__, twins

    assert tuple(twins.SUITES) == __main__.SUITES


def test_a_difference_of_one_bit_is_seen():
    from thinwire.device.twins import difference

    x = numpy.array([1.0, -0.0, numpy.nan, 3.0], numpy.float32)
    assert difference(x, x.copy()) == ""
    assert "first at 3" in difference(x, numpy.nextafter(x, numpy.float32(9), where=[False, False, False, True], out=x.copy()))
    assert "first at 1" in difference(x, numpy.array([1.0, 0.0, numpy.nan, 3.0], numpy.float32))
    other_nan = x.copy()
    other_nan.view(numpy.uint32)[2] ^= 1
    assert difference(x, other_nan) == ""


def test_a_changed_formula_is_seen():
    """The comparison fails when a kernel's limit is another than the engine's."""
    program = """
import triton.language as tl, numpy
numpy.seterr(all="ignore")
from thinwire.device import formulas, kernels, twins
formulas.NOISE = tl.constexpr(101.0)
bench = twins.Bench()
twins.pass_twins(bench, "rebase", 500, "ordinary", 1)
print(sum(not outcome.equal for outcome in bench.outcomes))
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_without_a_gpu_it_says_so():
    done = prove("--json", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "--interpret" in json.loads(done.stdout)["error"]


def test_the_measurement_runs_every_kernel():
    """How fast they are says nothing here; that each can be called does."""
    program = """
import json
from thinwire.device import launch, measure
rows = measure.all_kernels("cpu", 4096)
print(json.dumps([row["kernel"] for row in rows]))
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    kernels = json.loads(done.stdout)
    assert kernels[0] == "copy" and len(kernels) == len(set(kernels)) > 30


def test_what_has_no_kernel_is_named():
    from thinwire.device import launch
    from thinwire.device.twins import scalars

    x, bad = torch.zeros(4), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(launch.Missing, match="codec 'power3' has no kernel"):
        launch.pack("gradient", {"g": x}, "power3", 128, None, torch.zeros(64, dtype=torch.uint8), bad)
    with pytest.raises(launch.Missing, match="pass 'newton' has no kernel"):
        launch.run("newton", x, {"x": x}, bad, bad)
    with pytest.raises(launch.Missing, match="source 'hessian' has no kernel"):
        launch.pack("hessian", {"g": x}, "sign", 128, None, torch.zeros(64, dtype=torch.uint8), bad)
    with pytest.raises(launch.Missing, match="expected 1 to 8 on a device, found 9"):
        launch.Groups.of([scalars(0)] * 9, list(range(1, 10)))
    with pytest.raises(ValueError, match="invalid block = 4097"):
        launch.decode("sign", 4097, torch.zeros(64, dtype=torch.uint8), x, bad)
    with pytest.raises(ValueError, match="expected room for 20 bytes, found 8"):
        launch.pack("gradient", {"g": torch.zeros(128)}, "sign", 128, None, torch.zeros(8, dtype=torch.uint8), bad)


def test_every_pass_of_the_engine_has_a_kernel_or_is_known_to_have_none():
    """The names are those that the optimizers' files give their passes."""
    import pathlib
    import re

    from thinwire.device import launch

    source = pathlib.Path(__file__).parents[2] / "crates" / "thinwire" / "src"
    files = [*(source / "optim").glob("*.rs"), source / "machine" / "pass.rs"]
    if not source.is_dir():
        pytest.skip("no checkout of the engine beside the package")
    values = re.findall(r"const NAME: &'static str = ([^;]+);", "".join(file.read_text() for file in files))
    named = [name for value in values for name in re.findall(r'"(\w+)"', value)]
    assert len(named) >= 18
    assert set(named) == set(launch.PASSES) | set(launch.SOURCES) | launch.WITHOUT_KERNEL
    assert not launch.WITHOUT_KERNEL & (set(launch.PASSES) | set(launch.SOURCES))
