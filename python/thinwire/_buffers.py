"""Buffers of a model, such as BatchNorm's running statistics: each rank has its own, and the optimizer averages parameters alone.

``sync()`` and ``consensus()`` make them the same on all ranks, by one of two rules:

- ``"mean"``: floating-point buffers become the mean over all ranks, taken in float64, so that equal values stay as they are; all others,
  such as ``num_batches_tracked``, become rank 0's;
- ``"rank0"``: all become rank 0's.

Of a module it is the persistent buffers, those in its ``state_dict``; others are caches that each rank computes for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ._listing import REMEDY, digest

RULES = ("mean", "rank0")
Rule = Literal["mean", "rank0"]


class Buffers:
    """The buffers of `source`: a module, or the buffers themselves."""

    def __init__(self, source: nn.Module | Iterable[Tensor], rule: str) -> None:
        if rule not in RULES:
            raise ValueError(f"invalid buffer_sync = {rule!r}: expected one of {', '.join(map(repr, RULES))}")
        self._source: nn.Module | list[Tensor] = source if isinstance(source, nn.Module) else list(source)
        self._rule = rule
        if isinstance(self._source, list) and not all(isinstance(buffer, Tensor) for buffer in self._source):
            raise TypeError("buffers: expected a module, or an iterable of tensors such as model.buffers()")

    def _list(self) -> list[tuple[str, Tensor]]:
        """Looked up each time: a module may replace its buffers."""
        if isinstance(self._source, list):
            return [(str(number), buffer) for number, buffer in enumerate(self._source)]
        found: dict[int, tuple[str, Tensor]] = {}
        for path, module in self._source.named_modules():
            for key, buffer in module._buffers.items():
                if buffer is not None and key not in module._non_persistent_buffers_set:
                    found.setdefault(id(buffer), (f"{path}.{key}" if path else key, buffer))
        return list(found.values())

    def note(self) -> bytes:
        """What must be the same on all ranks: the rule, the names, shapes and types."""
        listing = [(name, list(buffer.shape), str(buffer.dtype)) for name, buffer in self._list()]
        return digest(f"{self._rule} {listing}".encode()).encode()

    def check(self, notes: list[bytes]) -> None:
        for worker, note in enumerate(notes):
            if note != notes[0]:
                raise ValueError(f"buffers: worker 0 and worker {worker} have different names, shapes, types or buffer_sync; {REMEDY}")

    def tensors(self) -> list[Tensor]:
        return [buffer for _, buffer in self._list()]

    def values(self) -> list[Tensor]:
        """Copies of what this rank has now."""
        return [buffer.detach().clone() for buffer in self.tensors()]

    @torch.no_grad()
    def give(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self.tensors(), values, strict=True):
            buffer.copy_(value)

    @torch.no_grad()
    def agree(self, wire: Any, rule: str | None = None) -> None:
        """The same values for all ranks, by the rule. All ranks together."""
        rule = rule or self._rule
        buffers = self.tensors()
        averaged = [buffer for buffer in buffers if rule == "mean" and (buffer.is_floating_point() or buffer.is_complex())]
        chosen = {id(buffer) for buffer in averaged}
        if averaged:
            flat = torch.cat([_real(buffer).to("cpu", torch.float64).flatten() for buffer in averaged])
            wire.mean(flat)
            for buffer, part in zip(averaged, torch.split(flat, [_real(buffer).numel() for buffer in averaged]), strict=True):
                _real(buffer).copy_(part.view(_real(buffer).shape))
        others = [buffer for buffer in buffers if id(buffer) not in chosen and buffer.numel()]
        if others:
            raw = torch.cat([buffer.detach().cpu().contiguous().flatten().view(torch.uint8) for buffer in others])
            wire.broadcast(raw)
            for buffer, part in zip(others, torch.split(raw, [buffer.numel() * buffer.element_size() for buffer in others]), strict=True):
                # Cloned, because a part may begin anywhere, and the view of another type wants an aligned start.
                buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))


def _real(buffer: Tensor) -> Tensor:
    return torch.view_as_real(buffer) if buffer.is_complex() else buffer
