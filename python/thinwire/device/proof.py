"""Does this device give the engine's bits in what one optimizer asks of it? The short form of `python -m thinwire.device`.

The first optimizer of a process asks, before anything is sent: each of its codecs, and its passes and sources with each of them, on
vectors of a few blocks with ordinary, huge, tiny and zero values, in the block size and the residual that it will use. So most of what
its steps run is compiled here, and not while other ranks wait for a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
import torch

from . import launch, twins
from .machine import on

KIND = "mixed"

#: Passes that never run on a mean.
WITHOUT_MEAN = ("anchor", "fold_in", "local")


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
    if key in _proved:
        return _proved[key]
    try:
        _proved[key] = _compare(torch.device(device), needs)
    except torch.OutOfMemoryError as error:  # the next optimizer may find room
        return f"{type(error).__name__}: {error}"
    return _proved[key]


def _compare(device: torch.device, needs: Needs) -> str:
    bench = twins.Bench(str(device))
    with numpy.errstate(all="ignore"), on(device):  # infinities are among the values
        try:
            _run(bench, needs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of the compiler, or of the driver: its steps would meet it too
            return f"{type(error).__name__}: {error}"
    wrong = next((outcome for outcome in bench.outcomes if not outcome.equal), None)
    return "" if wrong is None else f"{wrong.name}: {wrong.detail or 'it differs'}"


def _run(bench: twins.Bench, needs: Needs) -> None:
    count, residual = needs.block + 77, needs.residual
    for codec in needs.codecs:
        kind = "ordinary" if codec == "f16" else KIND  # some of the others are too large for it
        twins.codec_twins(bench, codec, needs.block, count, kind, residual)
        twins.serve_twins(bench, codec, codec, needs.block, count, kind, residual, 3)
        twins.compare_twins(bench, codec, needs.block, count, kind, residual)
        for name in needs.passes:
            if name in launch.SOURCES:
                twins.source_twins(bench, name, codec, needs.block, count, kind, needs.groups, residual)
            elif name not in WITHOUT_MEAN:
                twins.pass_twins(bench, name, count, kind, needs.groups, codec, needs.block)
    for name in needs.passes:
        if name in launch.PASSES:
            twins.pass_twins(bench, name, count, KIND, needs.groups)
    twins.reduce_twins(bench, 5003, KIND)
