"""`thinwire.plan` answers as the command does."""

import inspect
import json
import re
from pathlib import Path

import command
import numpy
import pytest

import thinwire
from thinwire import _plan

SMALL = {"params": 110e6, "workers": 16, "bandwidth": "1Gb/s", "compute": "300ms", "without_packing": True}


def flags(question):
    """The same question on a command line."""
    for word, value in question.items():
        flag = "--" + word.replace("_", "-")
        if value is not False:
            yield flag
        if isinstance(value, list):
            yield ",".join(value)
        elif not isinstance(value, bool):
            yield value


PROBED = {
    "transport": "mpi",
    "workers": 4,
    "hosts": [0, 0, 1, 1],
    "latency_seconds": 1e-4,
    "bits_per_second": 1e9,
    "pairs": [{"from": 0, "to": 2, "latency_seconds": 1e-4, "seconds_per_message": 3e-6, "bits_per_second": 1e9}],
    "bits_per_second_all_at_once": 8e8,
    "means": [],
}
DEEPSPEED = {"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 200}}, "fp16": {"enabled": True}}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("probe.json").write_text(json.dumps(PROBED))
    Path("ds.json").write_text(json.dumps(DEEPSPEED))


@pytest.mark.parametrize(
    "question",
    [
        SMALL | {"params": "110M"},
        SMALL | {"params": "1G", "hosts": 4, "memory": "24GB", "steps": "50k", "warmup": 100, "decay": "linear", "clip": True},
        SMALL | {"params": "7M", "codecs": ["sign", "uniform4"], "also": ["lion", "diloco"], "latency": "1ms", "sharing": 8, "cores": 2},
        SMALL | {"params": "2M", "simulate": True, "spread": "10%", "slow_host": "2x", "slow_link": 1.5, "jitter": "1ms", "seed": 3},
        {"preset": "bert-large", "bandwidth": "4.1Gb/s", "without_packing": True},
        SMALL | {"params": "2M", "deepspeed": "ds.json"},
        # A GPU packs by arithmetic; what a message costs would be measured, if the file did not say it.
        {"params": "1M", "compute": "10ms", "network": "probe.json", "device": "a100"},
    ],
    ids=["plain", "large", "codecs", "simulated", "preset", "deepspeed", "gpu"],
)
def test_the_answer_is_the_commands(question, files):
    command.need()
    assert thinwire.plan(**question) == json.loads(command.thinwire("plan", *flags(question), "--json", "--quiet"))


def test_packing_is_measured_if_nobody_says():
    answer = thinwire.plan(params="20k", workers=2, bandwidth="1Gb/s", compute="1ms", steps=100)
    assert all(method["pack_seconds_per_step"] > 0 for method in answer["methods"])
    assert any("measured here and now" in note for note in answer["notes"])


def test_numbers_mean_what_texts_with_units_mean(files):
    plain = {"params": 110_000_000, "bandwidth": 1e9, "compute": 0.3}
    assert thinwire.plan(**SMALL) == thinwire.plan(**SMALL | plain)
    assert thinwire.plan(**SMALL) == thinwire.plan(**SMALL | {"params": numpy.int64(110_000_000), "hosts": None})
    memory = [thinwire.plan(**SMALL, memory=size)["device_memory_bytes"] for size in (2.5e9, "2.5GB")]
    assert memory == [2_500_000_000] * 2
    there = {"params": "1M", "compute": 0.01, "without_packing": True}
    assert thinwire.plan(network=Path("probe.json"), **there) == thinwire.plan(network="probe.json", **there)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"worker": 4}, "worker: there is no such word; did you mean 'workers'?"),
        ({"bandwith": 1e9}, "did you mean 'bandwidth'"),
        ({"bandwidth": "1"}, 'invalid bandwidth = "1": the unit is missing; expected bits a second'),
        ({"workers": 0}, "invalid workers = 0: expected a whole number from 1 to 4096"),
        ({"workers": True}, "invalid workers = true: expected a number"),
        ({"hosts": 3}, "invalid hosts = 3: expected a number that divides the 16 workers"),
        ({"preset": "bert-huge"}, "bert-base, bert-large"),
        ({"decay": "never"}, "invalid decay = .*cosine"),
        ({"codecs": ["morse"]}, "invalid codecs = .*morse"),
        ({"spread": 0.1}, "expected simulate beside spread"),
        ({"model": "x.safetensors"}, "expected model without params, found both"),
        ({"bandwidth": None}, 'expected bandwidth, the rate of each host\'s link .for example bandwidth="1Gb/s"'),
        ({"bandwidth": None, "compute": None}, 'expected bandwidth and compute, found none of them .*params="110M"'),
        ({"params": None}, "expected the size of the model"),
    ],
)
def test_what_makes_no_sense_is_refused_in_pythons_words(words, message):
    with pytest.raises(ValueError, match=message) as error:
        thinwire.plan(**SMALL | words)
    assert "--" not in str(error.value).replace("`thinwire probe --json`", "")


def test_a_missing_file_is_pythons_error():
    with pytest.raises(FileNotFoundError, match="network nowhere.json"):
        thinwire.plan(network="nowhere.json", **SMALL)
    with pytest.raises(TypeError):
        thinwire.plan(**SMALL, network=object())


def test_help_has_every_keyword():
    text = inspect.getdoc(thinwire.plan)
    named = {word.strip() for line in re.findall(r"^[a-z][a-z_, ]+$", text, re.M) for word in line.split(",")}
    assert named - {"dict"} == set(_plan.PlanOptions.__annotations__)
    with pytest.raises(ValueError) as error:
        thinwire._thinwire.answer('{"nonsense": 1}')
    assert set(re.findall("`([^`]+)`", str(error.value))) - {"nonsense"} == set(_plan.PlanOptions.__annotations__)
