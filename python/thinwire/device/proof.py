"""Does this device give the engine's bits in what one optimizer asks of it? The short form of `python -m thinwire.device`.

The first optimizer of a process asks, before anything is sent: each of its codecs, passes and sources once, on vectors of a few blocks
with ordinary, huge, tiny and zero values, in the block size and the residual that it will use. So the kernels that are compiled here are
those that its steps run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from . import launch, twins

KIND = "mixed"


class Needs(NamedTuple):
    """What an optimizer asks of a device."""

    passes: tuple[str, ...]
    codecs: tuple[str, ...]
    block: int
    residual: str
    groups: int

    @staticmethod
    def of(needs: tuple[Sequence[str], Sequence[str]], config: dict[str, Any]) -> Needs:
        """From the engine's lists of passes and codecs, and its configuration."""
        passes, codecs = needs
        residual = "bf16" if config.get("residual") == "bf16" else "f32"
        return Needs(tuple(passes), tuple(dict.fromkeys(codecs)), config.get("block", 512), residual, max(len(config.get("groups", [])), 1))


_proved: dict[tuple[str, Needs], str] = {}


def problem(device: Any, needs: Needs) -> str:
    """The first thing in which `device` differs from the engine; nothing if all bits are equal. Each is looked at once a process."""
    key = (str(device), needs)
    if key not in _proved:
        _proved[key] = _compare(str(device), needs)
    return _proved[key]


def _compare(device: str, needs: Needs) -> str:
    bench = twins.Bench(device)
    with numpy.errstate(all="ignore"):  # infinities are among the values
        try:
            _run(bench, needs)
        except Exception as error:  # of the compiler, or of the driver: its steps would meet it too
            return f"{type(error).__name__}: {error}"
    wrong = next((outcome for outcome in bench.outcomes if not outcome.equal), None)
    return "" if wrong is None else f"{wrong.name}: {wrong.detail or 'it differs'}"


def _run(bench: twins.Bench, needs: Needs) -> None:
    count = 2 * needs.block + 77
    for codec in needs.codecs:
        remembers = needs.residual if launch.Codec.of(codec).has_scales else "none"
        twins.codec_twins(bench, codec, needs.block, count, KIND, remembers)
        twins.serve_twins(bench, codec, codec, needs.block, count, KIND, remembers, 3)
    coded = needs.codecs[-1]
    for name in needs.passes:
        if name in launch.SOURCES:
            twins.source_twins(bench, name, coded, needs.block, count, KIND, needs.groups)
        else:
            twins.pass_twins(bench, name, count, KIND, needs.groups)
    twins.reduce_twins(bench, 5003, KIND)
