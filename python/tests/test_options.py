"""The typed keywords, what an optimizer shows of itself, and the package without PyTorch."""

import re
import subprocess
import sys
import typing

import pytest
import ranks
from models import tiny_gpt

import thinwire
from thinwire import _options, _thinwire, _words

NAMES = {
    "AdamW": "adam",
    "OneBitAdam": "one-bit-adam",
    "ZeroOneAdam": "zero-one-adam",
    "EfficientAdam": "efficient-adam",
    "LocalAdam": "local-adam",
    "Lion": "lion",
    "Birder": "birder",
    "OneBitLamb": "one-bit-lamb",
}
SAID_OTHERWISE = {"betas", "eps", "weight_decay", "name", "groups"}  # arguments of their own, or PyTorch's parameter groups
VALUES = [1, 1.0, "f32", "sign", "paper", "auto", "flat", "sharded", "skip", "never", "every", "constant", True, [0], {"peak": 1.0}]


def refusal(words):
    try:
        _thinwire.resolve(words)
    except ValueError as error:
        return str(error)
    return ""


def known_to(name):
    """The options of the engine that an optimizer has, by asking the engine."""
    words = set(re.findall("`([^`]+)`", refusal({"name": name, "nonsense": 1}))) - {"nonsense"}
    foreign = {word for word in words if any("not an option of" in refusal({"name": name, word: value}) for value in VALUES)}
    return words - foreign


def keys(options):
    return set(options.__annotations__)


@pytest.mark.parametrize("kind", NAMES)
def test_the_typed_keywords_are_the_engines(kind):
    typed = keys(getattr(_options, f"{kind}Options"))
    assert typed - keys(_options.Ours) - keys(_options.Torch) == known_to(NAMES[kind]) - SAID_OTHERWISE


def test_the_workers_keywords_are_the_engines():
    everything = set().union(*map(known_to, NAMES.values()))
    assert keys(_options.WorkerOptions) - {"schedule", "steps"} == everything - {"name"}
    assert keys(_options.Ours) | {"lr"} == set(_words.OURS)
    assert keys(_options.Torch) == _words.SPEED | _words.THEIRS
    with pytest.raises(ValueError) as error:
        _thinwire.rates({"peak": 1.0, "nonsense": 1}, [0])
    assert keys(_options.Schedule) == set(re.findall("`([^`]+)`", str(error.value))) - {"nonsense"}


PRESETS = {
    "lean": "zero-one-adam",
    "loco": "adam",
    "fedavg": "local-adam",
    "slowmo": "local-adam",
    "diloco": "local-adam",
    "dsm": "local-adam",
    "co2": "local-adam",
    "streaming-diloco": "local-adam",
    "sparseloco": "local-adam",
    "distributed-lion": "lion",
    "lion-cub": "lion",
}

CHOICES = {
    "preset": "zero-one-adam",
    "outer": "local-adam",
    "variance": "zero-one-adam",
    "topology": "adam",
    "hierarchy": "adam",
    "host_codec": "adam",
    "non_finite": "adam",
    "outlier": "adam",
    "exact_codec": "adam",
    "residual": "one-bit-adam",
    "residue": "one-bit-adam",
    "sync": "zero-one-adam",
    "theta": "efficient-adam",
}


@pytest.mark.parametrize("word", CHOICES)
def test_the_typed_choices_are_accepted(word):
    """A choice that the engine does not know would be completed by an editor, and refused."""
    hints = typing.get_type_hints(_options.WorkerOptions)
    for choice in typing.get_args(hints[word]):
        name = PRESETS.get(choice, CHOICES[word]) if word == "preset" else CHOICES[word]
        words = {"name": name, word: choice, "learning_rate": {"peak": 1.0}}
        words |= {"sync_steps": [0]} if choice == "custom" else {}
        assert refusal(words) == ""


def shown(rank):
    model = tiny_gpt()
    optimizer = thinwire.ZeroOneAdam(model.parameters(), sync_every=4, variance_steps=[0, 1])
    for step in range(6):
        optimizer.zero_grad()
        model.loss(step).backward()
        optimizer.step()
    return repr(optimizer)


def test_an_optimizer_shows_its_place_and_its_rounds():
    for rank, text in enumerate(ranks.run(2, shown)):
        first, second, *_ = text.splitlines()
        assert first == f"ZeroOneAdam (worker {rank} of 2, codec sign, 6 steps; rounds: 2 exact, 1 coarse, 3 skipped"
        assert second == "Parameter Group 0"
    optimizer = thinwire.OneBitAdam(tiny_gpt().parameters(), codec_up="sign", codec_down="uniform4")
    assert "worker 0 of 1, codec sign and uniform4, 0 steps" in repr(optimizer)
    assert "codec f32, 0 steps" in repr(thinwire.AdamW(tiny_gpt().parameters()))


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as where it is not installed
import numpy, pydoc, thinwire
text = pydoc.plain(pydoc.render_doc(thinwire))
assert "one line changes" in text and "class ZeroOneAdam" in text and "class Worker" in text, text
assert "pip install torch" in pydoc.plain(pydoc.render_doc(thinwire.ZeroOneAdam))
for name in ("AdamW", "OneBitAdam", "ZeroOneAdam", "EfficientAdam", "LocalAdam", "Lion", "Birder", "OneBitLamb"):
    try:
        getattr(thinwire, name)([], lr=1e-3)
    except ImportError as error:
        assert str(error).startswith(f"thinwire.{name} needs PyTorch 2.6 or newer") and error.name == "torch", error
    else:
        raise AssertionError(name)
assert not hasattr(thinwire, "Nonsense")
worker = thinwire.Worker("adam", parameters=4, schedule=lambda step: 1e-3, steps=10)
worker.step(numpy.ones(4, numpy.float32), numpy.ones(4, numpy.float32), 1e-3)
"""


def test_the_package_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=ranks.PATIENCE)
    assert done.returncode == 0, done.stderr
