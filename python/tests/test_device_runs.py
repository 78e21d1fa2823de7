"""Optimizers whose vectors are on a device give the bits of those on the host: whole runs, on Triton's interpreter."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

HERE = pathlib.Path(__file__).parent
RUNS = [
    ["adam", "adam_clipped_alone", "adam_clipped", "adam_skips", "zero_one_alone"],
    ["one_bit", "one_bit_halves", "one_bit_skips", "one_bit_levels"],
    ["zero_one", "zero_one_groups", "zero_one_skips"],
    ["efficient", "efficient_skips", "efficient_casts"],
]


def program(name, *arguments):
    return subprocess.run([sys.executable, HERE / name, *arguments], capture_output=True, text=True, timeout=1000)


def check(done):
    """The program printed nothing but that it is done."""
    assert done.returncode == 0 and done.stdout == "done\n", f"{done.stdout}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("cases", RUNS, ids=lambda cases: cases[-1])
def test_a_run_on_devices_is_the_run_on_hosts(cases):
    check(program("device_runs.py", "run", *cases))


def test_every_case_is_run():
    listed = program("device_runs.py", "list").stdout.split()
    assert sorted(listed) == sorted(case for cases in RUNS for case in cases)


@pytest.mark.parametrize("case", ["one_bit", "zero_one", "efficient"])
def test_a_resumed_run_is_the_run(case):
    check(program("device_runs.py", "resume", case))


@pytest.mark.parametrize("part", ["alone", "halves", "states", "follows", "refuses", "ranks", "sharded"])
def test_an_optimizer_on_a_device_is_the_one_on_the_host(part):
    done = program("device_optimizers.py", part)
    assert done.returncode == 0 and done.stdout == f"{part} is equal\n", f"{done.stdout}\n{done.stderr[-3000:]}"


def test_where_a_device_cannot_be_had_it_says_why():
    import thinwire

    params = [torch.nn.Parameter(torch.zeros(3))]
    with pytest.raises(ValueError, match='invalid device = "gpu": expected parameters on an NVIDIA or AMD GPU, found cpu'):
        thinwire.AdamW(params, device="gpu")
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        thinwire.AdamW(params, device="interpret")
    with pytest.raises(ValueError, match="invalid device = 'cuda': expected one of auto, host, gpu, interpret"):
        thinwire.AdamW(params, device="cuda")


def test_a_device_with_other_bits_is_left_for_the_host(monkeypatch, caplog):
    """What a user whose GPU fails its proof gets: a warning that names it, and the host."""
    from thinwire import _place
    from thinwire.device import proof

    gpu = _place.Place(torch.device("cpu"), "cuda:0")
    monkeypatch.setattr(_place, "_find", lambda *_: (gpu, ""))
    monkeypatch.setattr(proof, "problem", lambda *_: "encode sign: 1 of 9 differ")
    params = [torch.zeros(3, device="meta")]
    needs = ["gradient", "adam"], ["f32"]
    assert _place.choose("auto", params, needs, {}) is None
    assert "cuda:0 does not give the engine's bits: encode sign: 1 of 9 differ" in caplog.text
    assert 'device="host"' in caplog.text
    with pytest.raises(ValueError, match="does not give the engine's bits"):
        _place.choose("gpu", params, needs, {})
    monkeypatch.setattr(proof, "problem", lambda *_: "")
    assert _place.choose("auto", params, needs, {}) == gpu
