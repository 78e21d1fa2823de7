"""A device of the engine: the vectors of one worker as tensors, and the kernels over them.

The engine decides what is averaged, when, and with whom; it calls this object by name (`python/src/device.rs`). Parameters, gradient,
moments and residuals stay on the device. What crosses to the host is payloads, flags and single numbers, through one buffer of pinned
memory that the engine reads and writes by its address. A call returns when its bytes are there.

All is queued on the device's current stream, in order, and each call waits for it once, before the host looks at the buffer. So no event
can be missed; a side stream, on which copies overlap with kernels, needs a GPU to show that it gains something.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import launch
from .launch import Codec, Groups, Missing

#: The engine's names of vectors that the kernels call otherwise.
NAMES = {"anchor": "a"}

#: No parameter jumped.
NOWHERE = 0x7FFFFFFFFFFFFFFF

SPARE = 16  # bytes after a payload: a kernel loads whole words


def on(device: torch.device) -> Any:
    """Kernels are launched on the current device, which need not be the one that the tensors are on."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class Machine:
    """`length` parameters, and their gradient, on a device."""

    def __init__(self, length: int, device: torch.device, name: str) -> None:
        self.name, self.length, self.device = name, length, device
        self._vectors = {"x": self._zeros(length), "g": self._zeros(length)}
        self._up = self._down = self._zeros(0)
        self._ends: list[int] = []
        self._pinned = device.type != "cpu"
        self._host, self._came, self._made = (self._bytes(0, where) for where in ("cpu", device, device))
        self._bad = torch.zeros(1, dtype=torch.int32, device=device)
        self._jump = torch.zeros(1, dtype=torch.int64, device=device)
        self._last: tuple[Any, Groups | None] = (None, None)

    @property
    def params(self) -> Tensor:
        """x."""
        return self._vectors["x"]

    @property
    def gradient(self) -> Tensor:
        """g of the next step."""
        return self._vectors["g"]

    # ---- called by the engine ----------------------------------------------------------------------

    def has_pass(self, name: str) -> bool:
        return name in launch.PASSES or name in launch.SOURCES

    def has_codec(self, name: str) -> bool:
        try:
            Codec.of(name)
        except Missing:
            return False
        return True

    def reserve(self, vectors: Sequence[str], keeps: bool, up: int, down: int, halves: bool, ends: Sequence[int]) -> None:
        """Makes room for the state, 0 at first."""
        names = [NAMES.get(name, name) for name in vectors] + (["kept"] if keeps else [])
        self._vectors = {name: self._vectors[name] for name in ("x", "g")}
        self._vectors.update((name, self._zeros(self.length)) for name in names)
        kind = torch.int16 if halves else torch.float32
        self._up, self._down = (torch.zeros(count, dtype=kind, device=self.device) for count in (up, down))
        self._ends, self._last = list(ends), (None, None)

    def run(self, name: str, scalars: list[list[float]], given: str | None) -> int | None:
        """A pass on the gradient "g", on the mean that was "kept", or on nothing; the first jump."""
        with self._here():
            self._clear(1)
            vector = None if given is None else self._vectors[given]
            launch.run(name, vector, self._vectors, self._bad, self._jump, self._groups(scalars))
            return self._flags(1)[1]

    def pack(
        self, name: str, scalars: list[list[float]], remembers: bool, codec: str, block: int, start: int, stop: int
    ) -> int | None:  # fmt: skip
        """The address of a payload; None where a value cannot be coded."""
        with self._here():
            self._clear(1)
            size = Codec.of(codec).encoded_len(block, stop - start)
            self._made = self._bytes(size, self.device, self._made)
            residual = self._up[start:stop] if remembers else None
            launch.pack(name, self._cut(start, stop), codec, block, residual, self._made, self._bad, self._groups(scalars), start)
            address = self._to_host(self._made[:size])
            bad, _ = self._flags(1)
            return None if bad[0] else address

    def serve(
        self, messages: tuple[int, int, float], codecs: tuple[str, int, str, int], count: int, feedback: tuple[str, int] | None
    ) -> tuple[int | None, int | None]:
        """The address of the sum of the messages in the buffer, coded; the number of a message that is refused."""
        (several, apart, divisor), (up, block, down, other) = messages, codecs
        if block != other:
            raise Missing(f'blocks of {block} values up and of {other} down have no kernel for this device (device="host" has both)')
        with self._here():
            self._clear(1 + several)
            came = self._to_device(several * apart)
            size = Codec.of(down).encoded_len(block, count)
            self._made = self._bytes(size, self.device, self._made)
            residual = None
            if feedback is not None:
                residual = self._vector(feedback[0])[feedback[1] : feedback[1] + count]
            launch.serve(came, apart, several, divisor, up, down, block, count, residual, self._made, self._bad)
            address = self._to_host(self._made[:size])
            bad, _ = self._flags(1 + several)
            refused = next((number for number, flag in enumerate(bad[1:]) if flag), None)
            return None if bad[0] else address, refused

    def unpack(
        self, name: str, scalars: list[list[float]], compares: bool, codec: str, block: int, start: int, stop: int, size: int
    ) -> tuple[bool, int | None]:
        """A pass on the payload in the buffer: whether it can be, and the first jump."""
        with self._here():
            self._clear(1)
            residual = self._up[start:stop] if compares else None
            groups, came = self._groups(scalars), self._to_device(size)
            launch.run(name, came, self._cut(start, stop), self._bad, self._jump, groups, start, codec, block, residual)
            bad, jump = self._flags(1)
            return not bad[0], jump

    def take_back(self, codec: str, block: int, size: int) -> bool:
        """e takes the payload in the buffer back; whether it can be."""
        with self._here():
            self._clear(1)
            launch.take_back(codec, block, self._to_device(size), self._up, self._bad)
            return not self._flags(1)[0][0]

    def shorten(self, factor: float) -> None:
        """g ← factor·g: it was far longer than those before it."""
        with self._here():
            self.gradient.mul_(factor)

    def not_finite(self) -> float:
        """Whether a value of the gradient is NaN, or larger than 2^62."""
        with self._here():
            self._clear(1)
            launch.note_not_finite(self.gradient, self._bad)
            return float(self._flags(1)[0][0] != 0)

    def tile_sums(self, name: str, squares: bool) -> tuple[int, int]:
        """The address of the sums of all tiles, and how many there are; the engine adds them up, in order."""
        with self._here():
            sums = launch.tile_sums(self._vector(name), squares)
            address = self._to_host(sums.view(torch.uint8))
            self._wait()
            return address, sums.numel()

    def digest(self, start: int, stop: int) -> int:
        with self._here():
            return launch.digest(self.params[start:stop], start)

    def room(self, size: int) -> int:
        """The address of a buffer on the host."""
        self._host = self._bytes(size, "cpu", self._host)
        return self._host.data_ptr()

    def read(self, name: str, start: int, stop: int) -> int:
        """The address of some values of a vector, as they are there."""
        with self._here():
            address = self._to_host(self._vector(name)[start:stop].view(torch.uint8))
            self._wait()
            return address

    def write(self, name: str, start: int, stop: int) -> None:
        """Takes some values of a vector from the buffer."""
        with self._here():
            there = self._vector(name)[start:stop].view(torch.uint8)
            there.copy_(self._host[: there.numel()], non_blocking=True)
            self._wait()

    # ---- inside ------------------------------------------------------------------------------------

    def _vector(self, name: str) -> Tensor:
        if name in ("e", "E"):
            return self._up if name == "e" else self._down
        return self._vectors[NAMES.get(name, name)]

    def _cut(self, start: int, stop: int) -> dict[str, Tensor]:
        return {name: vector[start:stop] for name, vector in self._vectors.items()}

    def _groups(self, scalars: list[list[float]]) -> Groups | None:
        """The scalars on the device. All buckets of a round have the same, so they go there once."""
        if not scalars:  # a sync has none, and its passes need none
            return None
        if self._last[0] != scalars:
            self._last = scalars, Groups.of(scalars, self._ends, self.device)
        return self._last[1]

    def _clear(self, flags: int) -> None:
        if self._bad.numel() < flags:
            self._bad = torch.zeros(flags, dtype=torch.int32, device=self.device)
        self._bad.zero_()
        self._jump.fill_(NOWHERE)

    def _flags(self, count: int) -> tuple[list[int], int | None]:
        """What the kernels found, and the first jump. Waits for all that is under way."""
        found = torch.cat([self._bad[:count].to(torch.int64), self._jump]).tolist()
        return found[:-1], None if found[-1] == NOWHERE else found[-1]

    def _to_host(self, there: Tensor) -> int:
        address = self.room(there.numel())
        self._host[: there.numel()].copy_(there, non_blocking=True)
        return address

    def _to_device(self, size: int) -> Tensor:
        """What the engine has put into the buffer."""
        self._came = self._bytes(size, self.device, self._came)
        self._came[:size].copy_(self._host[:size], non_blocking=True)
        return self._came

    def _bytes(self, size: int, where: Any, now: Tensor | None = None) -> Tensor:
        """Room for so many bytes, which is `now` if that is long enough."""
        if now is not None and now.numel() >= size + SPARE:
            return now
        pinned = self._pinned and torch.device(where).type == "cpu"
        return torch.zeros(size + SPARE, dtype=torch.uint8, device=where, pin_memory=pinned)

    def _zeros(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float32, device=self.device)

    # ---- all that a device is asked for ------------------------------------------------------------

    def _here(self) -> Any:
        return on(self.device)

    def _wait(self) -> None:
        """Until all that was queued is done."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
