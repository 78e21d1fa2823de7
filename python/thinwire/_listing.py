"""Which parameters a rank has, in order: compared between ranks before anything is overwritten.

All ranks train one flat vector. If two of them have put their parameters into it in another order, or have shards of equal length, the
vectors fit each other and the means are nonsense; so the ranks compare names, shapes and types when they meet.

Names that the program gave (``model.named_parameters()``) must be equal. Names that were found by a search (``_modules.py``) may differ
for harmless reasons, such as a wrapper on one rank: they count only where both ranks have the same names in another order.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

REMEDY_LATER = "Shard the model by fully_shard (FSDP2) first, and build the optimizer after that (docs/fsdp.md)"
REMEDY = "give the optimizer of every rank the same parameters in the same order"


class Listing(NamedTuple):
    """The parameters of one rank."""

    given: list[str] | None
    found: list[str | None]
    shapes: list[list[int]]
    types: list[str]

    @staticmethod
    def of(params: Sequence[Tensor], given: list[str] | None, found: Sequence[str | None]) -> Listing:
        return Listing(given, _relative(found), [list(param.shape) for param in params], [str(param.dtype) for param in params])

    def of_shards(self, shapes: list[list[int]], shard: str) -> Listing:
        """The same of this rank's shards, which must be those of its counterparts."""
        return self._replace(shapes=shapes, types=[f"{kind} {shard}" for kind in self.types])

    def to_bytes(self) -> bytes:
        return zlib.compress(json.dumps(self).encode())  # all ranks have theirs at one store

    @staticmethod
    def from_bytes(data: bytes) -> Listing:
        return Listing(*json.loads(zlib.decompress(data)))

    def describe(self, number: int) -> str:
        """One parameter: its name where it is known, its shape and its type."""
        if number >= len(self.shapes):
            return "nothing"
        name = self.given[number] if self.given is not None else self.found[number]
        kind = f"{self.types[number].removeprefix('torch.')}{self.shapes[number]}"
        return kind if name is None else f"{name} {kind}"

    def difference(self, other: Listing) -> int | None:
        """The number of the first parameter in which two ranks differ."""
        for number in range(max(len(self.shapes), len(other.shapes))):
            if self.shapes[number : number + 1] != other.shapes[number : number + 1]:
                return number
            if self.types[number] != other.types[number]:
                return number
        if self.given is not None and other.given is not None:
            return _first_difference(self.given, other.given)
        if None in self.found or sorted(map(str, self.found)) != sorted(map(str, other.found)):
            return None
        return _first_difference(self.found, other.found)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def disagreement(mine: Listing, worker: str, theirs: Listing, other: str) -> str | None:
    """What is wrong if `worker` has `mine` and `other` has `theirs`."""
    number = mine.difference(theirs)
    if number is None:
        return None
    counts = ""
    if len(mine.shapes) != len(theirs.shapes):
        counts = f" ({len(mine.shapes)} and {len(theirs.shapes)} trained parameters)"
    return f"parameter {number}: {worker} has {mine.describe(number)}, {other} has {theirs.describe(number)}{counts}; {REMEDY}"


def sharded_by(param: Tensor) -> str | None:
    """What has cut `param` into shards, if something has."""
    if hasattr(param, "device_mesh"):
        return "DTensor, as FSDP's fully_shard or tensor parallelism make it"
    if getattr(param, "_is_flat_param", False):
        return "FlatParameter of FSDP"
    if getattr(param, "_fsdp_flattened", False):
        return "FSDP with use_orig_params=True"
    return None


def _relative(names: Sequence[str | None]) -> list[str | None]:
    """Without the modules that all have in common, such as a wrapper around the model."""
    known = [name.split(".")[:-1] for name in names if name is not None]
    common = 0
    while known and all(len(path) > common and path[common] == known[0][common] for path in known):
        common += 1
    return [None if name is None else ".".join(name.split(".")[common:]) for name in names]


def _first_difference(ours: Sequence[str | None], theirs: Sequence[str | None]) -> int | None:
    return next((number for number, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
