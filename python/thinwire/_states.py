"""The states of all ranks in one, and one rank's out of them.

``state_dict()`` has this rank's state under ``"thinwire"``, with a key that names the rank. After ``consolidate_state_dict()`` rank 0's
also has the others' under ``"thinwire_others"``. Most of a state is the same on all ranks, right after a sync all but the residuals:
ranks compare digests, and send and keep only the tensors that differ from rank 0's.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MINE, OTHERS = "thinwire", "thinwire_others"
VECTORS = ("params", "consensus")  # of a state, beside its "values"


class State(dict[str, Any]):
    """What ``state_dict()`` returns: a dictionary that is saved as a plain one, and knows two things more.

    ``["state"]`` has the state cut by parameter, as other optimizers of PyTorch have it there and as the helpers of
    ``torch.distributed.checkpoint`` read it. It is made when someone asks for it, and not saved: the vectors under ``"thinwire"`` are the
    same values, and a file should not have them twice. ``get`` and ``items`` show what is saved. And a state that is not whole can say so
    when it is pickled, which is when it is saved.
    """

    by_parameter: Callable[[State], dict[Any, Any]] | None = None
    before_pickling: Callable[[], None] | None = None

    _cut: dict[Any, Any] | None = None

    def __getitem__(self, key: str) -> Any:
        if key != "state" or self.by_parameter is None:
            return super().__getitem__(key)
        if self._cut is None:
            self._cut = self.by_parameter(self)
        return self._cut

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "state":
            self.by_parameter = None  # whoever puts one there wants it back
        super().__setitem__(key, value)

    def __copy__(self) -> State:
        return self._with(dict(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        return self._with(copy.deepcopy(dict(self), memo))

    def _with(self, content: dict[str, Any]) -> State:
        other = State(content)
        other.by_parameter, other.before_pickling = self.by_parameter, self.before_pickling
        return other

    def __reduce_ex__(self, _: Any) -> Any:
        if self.before_pickling is not None:
            self.before_pickling()
        return OrderedDict, (), None, None, iter(self.items())  # the one dictionary beside dict that torch.load always accepts


def place(rank: int, size: int) -> str:
    return f"rank-{rank}-of-{size}"


def gathered(mine: dict[str, Any], worker: Any, wire: Any) -> dict[str, Any]:
    """On rank 0 what the other ranks' states have of their own, by place; on the others nothing. All ranks together."""
    entries = _entries(mine)
    notes = [json.loads(note) for note in worker.gather(json.dumps(_described(entries)).encode())]
    differing = [[name for name, note in notes_of.items() if note != notes[0].get(name)] for notes_of in notes]
    if worker.rank > 0:
        wire.give(0, [entries[name] for name in differing[worker.rank] if isinstance(entries[name], Tensor)])
        return {}
    parts = {rank: {name: _room(notes[rank][name]) for name in differing[rank]} for rank in range(1, worker.size)}
    wire.take({rank: [value for value in part.values() if isinstance(value, Tensor)] for rank, part in parts.items()})
    return {place(rank, worker.size): part for rank, part in parts.items()}


def _entries(state: dict[str, Any]) -> dict[str, Any]:
    return {**{f"values.{name}": value for name, value in state["values"].items()}, **{n: state[n] for n in VECTORS if n in state}}


def _described(entries: dict[str, Any]) -> dict[str, Any]:
    """Numbers as they are; of a tensor its type, length and digest."""
    return {name: _note(value) if isinstance(value, Tensor) else value for name, value in entries.items()}


def _note(tensor: Tensor) -> list[Any]:
    digest = hashlib.blake2b(tensor.numpy().data, digest_size=16).hexdigest()
    return ["f8" if tensor.dtype is torch.float64 else "f4", tensor.numel(), digest]


def _room(note: Any) -> Any:
    """A tensor for what was described, or the number itself."""
    return torch.empty(note[1], dtype=torch.float64 if note[0] == "f8" else torch.float32) if isinstance(note, list) else note


def own(state_dict: dict[str, Any], rank: int, size: int) -> dict[str, Any] | None:
    """The state of `rank` among `size`, if it is there."""
    me, first = place(rank, size), place(0, size)
    states, others = state_dict[MINE], state_dict.get(OTHERS, {})
    if me in states:
        return _on_host(states[me])
    if me not in others or first not in states:
        return None
    base, part = states[first], others[me]
    values = {name: part.get(f"values.{name}", value) for name, value in base["values"].items()}
    return _on_host({**base, **{name: part[name] for name in VECTORS if name in part}, "values": values, "rank": rank})


def first(state_dict: dict[str, Any]) -> dict[str, Any] | None:
    """Rank 0's state, of however many ranks, if it is there."""
    found = [state for key, state in state_dict[MINE].items() if key.startswith("rank-0-of-")]
    return _on_host(found[0]) if found else None


def _on_host(state: dict[str, Any]) -> dict[str, Any]:
    """The state in the host's memory: frameworks load a checkpoint straight to their device."""
    moved = {}
    for name, value in state.items():
        if isinstance(value, dict):
            value = _on_host(value)
        moved[name] = value.cpu() if isinstance(value, Tensor) else value
    return moved


def places(state_dict: dict[str, Any]) -> str:
    """Whose states are there, for people."""
    return ", ".join([*state_dict[MINE], *state_dict.get(OTHERS, {})]) or "no rank"
