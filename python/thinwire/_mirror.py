"""Parameters that keep memory of their own, such as those on a GPU or of half precision, beside their float32 master.

The master is a part of the host's flat vector. On the way between the two, parameters of one device are gathered into buckets: one
kernel packs a bucket on the device and casts it, one copy moves it to or from the vector, which is pinned then. All is queued on the
device's current stream, in order, so one buffer there does for all buckets; the host waits once, before it reads or writes the
vector. Parameters in the host's own memory need no buffer.

There was no GPU to try this on: the tests run it with a stand-in for the device, whose copies happen when they are waited for and
not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from . import _torch_private as private
from ._sharded import local

BUCKET = 1 << 24  # bytes of float32 in a bucket, if no single parameter has more


@dataclass
class Bucket:
    """Neighbours in the vector, on one device."""

    device: torch.device
    params: list[Tensor] = field(default_factory=list)
    start: int = 0
    stop: int = 0


class Mirror:
    """The parameters of `params` that are `apart`, each with its place in the host's `values` and `grads`."""

    def __init__(self, params: Sequence[Tensor], apart: Sequence[bool], values: Tensor, grads: Tensor) -> None:
        self._values, self._grads = values, grads
        self.buckets = _buckets(params, apart)
        lengths: dict[torch.device, int] = {}
        for bucket in self.buckets:
            if bucket.device.type != "cpu":
                lengths[bucket.device] = max(lengths.get(bucket.device, 0), bucket.stop - bucket.start)
        self._buffers = {device: self._buffer(length, device) for device, length in lengths.items()}

    def take_grads(self) -> None:
        """Gradients to the host; zeros where a parameter has none."""
        for bucket in self.buckets:
            there = self._room(bucket, self._grads)
            filled = [(part, local(param.grad)) for part, param in zip(cut(there, bucket.params), bucket.params, strict=True)]
            for part, grad in filled:
                if grad is None:
                    part.zero_()
            pairs = [(part, dense(grad)) for part, grad in filled if grad is not None]
            if pairs:
                private.copy_all([part for part, _ in pairs], [grad for _, grad in pairs])
            self._to_host(bucket, self._grads)
        self._wait()

    def give_params(self) -> None:
        """The master's values to the parameters."""
        for bucket in self.buckets:
            there = self._to_device(bucket, self._values)
            private.copy_all([local(param) for param in bucket.params], cut(there, bucket.params))
        self._wait()  # the vector may be written to again

    def take_params(self) -> None:
        """What the program changed in the parameters, to the master; what it did not change keeps its float32 value."""
        for bucket in self.buckets:
            there = self._to_device(bucket, self._values)
            changed = False
            for part, param in zip(cut(there, bucket.params), map(local, bucket.params), strict=True):
                given = part.to(param.dtype)
                if not torch.equal(given, param):
                    part.copy_(torch.where(given == param, part, param.to(part.dtype)))
                    changed = True
            if changed:
                self._to_host(bucket, self._values)
        self._wait()

    def _room(self, bucket: Bucket, vector: Tensor) -> Tensor:
        """Where `bucket` is packed: a buffer on its device, or the vector itself."""
        length = bucket.stop - bucket.start
        return vector[bucket.start : bucket.stop] if bucket.device.type == "cpu" else self._buffers[bucket.device][:length]

    def _to_host(self, bucket: Bucket, vector: Tensor) -> None:
        if bucket.device.type != "cpu":
            self._copy(vector[bucket.start : bucket.stop], self._room(bucket, vector))

    def _to_device(self, bucket: Bucket, vector: Tensor) -> Tensor:
        there = self._room(bucket, vector)
        if bucket.device.type != "cpu":
            self._copy(there, vector[bucket.start : bucket.stop])
        return there

    # ---- all that a device is asked for ------------------------------------------------------------

    def _buffer(self, length: int, device: torch.device) -> Tensor:
        return torch.empty(length, dtype=torch.float32, device=device)

    def _copy(self, to: Tensor, source: Tensor) -> None:
        """Queued behind what the device has to do already."""
        to.copy_(source, non_blocking=True)

    def _wait(self) -> None:
        """Until all that was queued is done."""
        for device in self._buffers:
            torch.accelerator.synchronize(device)


def dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.is_sparse else grad


def cut(vector: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """`vector` in the shapes of this rank's `params`."""
    parts: list[Tensor] = []
    start = 0
    for param in map(local, params):
        parts.append(vector[start : start + param.numel()].view(param.shape))
        start += param.numel()
    return parts


def _buckets(params: Sequence[Tensor], apart: Sequence[bool]) -> list[Bucket]:
    buckets: list[Bucket] = []
    start = 0
    for param, is_apart in zip(params, apart, strict=True):
        stop = start + local(param).numel()
        if is_apart:
            last = buckets[-1] if buckets else None
            if last is None or last.device != param.device or last.stop != start or 4 * (stop - last.start) > BUCKET:
                last = Bucket(param.device, start=start)
                buckets.append(last)
            last.params.append(param)
            last.stop = stop
        start = stop
    return buckets
