"""An optimizer's state cut by parameter, as ``torch.distributed.checkpoint`` keeps it: any number of ranks, and any sharding, can load it.

- A vector that all workers have alike (m, v) becomes a tensor for each parameter; a DTensor placed as the parameter is, if it is sharded.
- A vector that each worker has for itself becomes a :class:`Rows`: a matrix with a row for each worker, of which this rank holds its
  columns of its row. So are the residual e, local progress u, the moments of Efficient-Adam, local Adam and Lion, between two syncs of
  0/1 Adam m, and the parameters where local steps move them.
- What is cut among the workers (the owners' residual E) becomes a :class:`Range`: a vector of which this rank holds a part.
- Numbers are kept with the first parameter, under ``"thinwire"``.

PyTorch's checkpoints put the parts together and cut them anew. With another number of workers a rank reads the rows of several, or of
none; the mean over all workers is kept, which is what error feedback must conserve.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _torch_private as private
from ._sharded import Sharding, local, starts

NUMBERS = "thinwire"  # the key of the numbers, in the state of the first parameter; and of the configuration, in the first group
PARAMS = "params"
MOST = 256  # workers whose rows fewer workers find
OURS = ("workers", "hosts")
MOVES = "m"  # what moves at local steps, and is alike only after a sync
OWN_M = "own_m"
FEEDBACK = {"up_residue": "feedback_up", "down_residue": "feedback_down"}  # what there is only where a loss is remembered
UNSAVED = ("digest", "gradient_norms")  # numbers that are not kept: one is made anew, the others are each rank's own and come again


class _Piece(torch.Tensor):
    """A part of a larger tensor that other ranks hold the rest of, for torch.distributed.checkpoint."""

    size = None  # type: ignore[assignment]  # it is whatever the checkpoint has: the planner asks for none

    _shape: tuple[int, ...]
    _offset: tuple[int, ...]

    @staticmethod
    def __new__(cls, values: Tensor, *_: Any) -> Any:
        return torch.Tensor._make_subclass(cls, values)

    def __create_write_items__(self, fqn: str, _: Any) -> list[Any]:
        from torch.distributed.checkpoint import metadata, planner

        if not self.numel():
            return []
        chunk = metadata.ChunkStorageMetadata(torch.Size(self._offset), torch.Size(self._sizes()))
        properties = metadata.TensorProperties(dtype=self.dtype)
        data = planner.TensorWriteData(chunk, properties, torch.Size(self._shape))
        return [planner.WriteItem(metadata.MetadataIndex(fqn, chunk.offsets), planner.WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(torch.Size(offset), torch.Size(self._sizes())) for offset in self._wanted() if self.numel()]

    def __get_tensor_shard__(self, index: Any) -> Tensor:
        return self._part(tuple(index.offset)).view(self._sizes())

    def _sizes(self) -> tuple[int, ...]:
        return (*(1 for _ in self._shape[1:]), self.numel())

    def _wanted(self) -> list[tuple[int, ...]]:
        return [self._offset]

    def _part(self, offset: tuple[int, ...]) -> Tensor:
        return self._values()

    def _values(self) -> Tensor:
        with private.without_subclasses():
            return private.as_plain(self)

    # What PyTorch does to the tensors of a state on their way to a checkpoint leaves a piece as it is: it is a copy of the state.

    def detach(self) -> Any:
        return self

    def clone(self, *_: Any, **__: Any) -> Any:
        return self

    def to(self, *_: Any, **__: Any) -> Any:
        return self

    def cpu(self, *_: Any, **__: Any) -> Any:
        return self

    def __deepcopy__(self, _: Any) -> Any:
        return self


class Range(_Piece):
    """The values of a vector of length `whole` from `start` on."""

    def __init__(self, values: Tensor, start: int, whole: int) -> None:
        self._shape, self._offset = (whole,), (start,)

    def __reduce_ex__(self, _: Any) -> Any:
        return Range, (self._values().clone(), self._offset[0], self._shape[0])


class Rows(_Piece):
    """Row `worker` of `workers`, columns from `start` on of `whole`; and the rows that were loaded beside it."""

    def __init__(self, values: Tensor, worker: int, workers: int, start: int, whole: int, others: dict[int, Tensor] | None = None) -> None:
        self._shape, self._offset = (workers, whole), (worker, start)
        self._others = {} if others is None else others

    def __reduce_ex__(self, _: Any) -> Any:
        return Rows, (self._values().clone(), self._offset[0], self._shape[0], self._offset[1], self._shape[1], self._others)

    def _wanted(self) -> list[tuple[int, ...]]:
        """This worker's row, and those of workers that are no more: with as many as now they are not there."""
        (worker, start), workers = self._offset, self._shape[0]
        return [(row, start) for row in (worker, *range(worker + workers, MOST, workers))]

    def _part(self, offset: tuple[int, ...]) -> Tensor:
        if offset == self._offset:
            return self._values()
        return self._others.setdefault(offset[0], torch.zeros(self.numel(), dtype=self.dtype))

    def row(self, start: int) -> Tensor:
        """This worker's own."""
        self._check(start)
        return self._values()

    def share(self, start: int, saved: int) -> Tensor:
        """This rank's share in the mean over the `saved` workers that were."""
        self._check(start)
        (worker, _), workers = self._offset, self._shape[0]
        total = torch.zeros(self.numel(), dtype=self.dtype)
        for row in range(worker, saved, workers):
            part = self._values() if row == worker else self._others.get(row)
            if part is None and self.numel():
                raise ValueError(f"the state of worker {row} of {saved} is missing; of more than {MOST} workers fewer cannot go on")
            total += part if part is not None else 0.0
        return total / saved

    def _check(self, start: int) -> None:
        if self._offset[1] != start:
            raise ValueError(
                f"a residual from place {self._offset[1]} on, where {start} belongs: a full state dict has the residuals of one rank "
                "alone. Accepted: a sharded one, as get_optimizer_state_dict gives without full_state_dict"
            )


class Parts:
    """How the state of `worker` is cut by the trained `params`."""

    def __init__(self, worker: Any, params: Sequence[Tensor], sharding: Sharding | None) -> None:
        self._worker, self._params = worker, params
        self._starts = starts(params, sharding)
        self._lengths = [local(param).numel() for param in params]
        remembers = {name: worker.config.get(way, 0.0) > 0.0 for name, way in FEEDBACK.items()}
        layout = {name: (kind, count) for name, kind, count in worker._state_layout()}
        shares = [entry for entry in worker._state_shares() if remembers.get(entry[0], True)]
        self._same = [name for name, how, _ in shares if how == "same" and layout[name][0] == "f4"]
        self._own = [name for name, how, _ in shares if how in ("own", "progress") and layout[name][0] == "f4"]
        # Numbers that each worker has for itself, such as what its steps since the last round weigh.
        self._own_numbers = [name for name, how, _ in shares if how == "own" and layout[name][0] == "f8" and name not in UNSAVED]
        self._cut = [(name, start, layout[name][1]) for name, how, start in shares if how == "cut"]
        self._numbers = [name for name, *_ in shares if layout[name][0] != "f4" and name not in (*UNSAVED, *self._own_numbers)]
        self._moves = any(how == "progress" for _, how, _ in shares)  # m, at local steps, and only a sync makes it common
        self._is_local = self._moves or worker._has_own_params  # between two rounds workers have parameters of their own

    def of(self, values: dict[str, Any], params: Tensor) -> list[dict[str, Any]]:
        """The state of each parameter: `values` are the engine's, `params` the flat vector."""
        own = {name: values[name] for name in self._own}
        if self._moves:
            own[OWN_M] = values[MOVES].clone()  # a checkpoint is loaded into these tensors: no two may share memory
        if self._is_local:
            own[PARAMS] = params
        states: list[dict[str, Any]] = [{} for _ in self._params]
        at = 0
        for state, param, start, length in zip(states, self._params, self._starts, self._lengths, strict=True):
            whole = param.numel()
            for name in self._same:
                state[name] = _placed(values[name][at : at + length], param)
            for name, vector in own.items():
                state[name] = Rows(vector[at : at + length], self._worker.rank, self._worker.size, start, whole)
            for name, first, count in self._cut:
                begin, end = max(at, first), max(min(at + length, first + count), max(at, first))
                state[name] = Range(values[name][begin - first : end - first], start + min(begin - at, length), whole)
            at += length
        for name in self._own_numbers:
            number = torch.as_tensor(values[name])
            states[0][name] = Rows(number, self._worker.rank, self._worker.size, 0, number.numel())
        states[0][NUMBERS] = {**{name: values[name] for name in self._numbers}, "workers": self._worker.size, "hosts": self._hosts()}
        return states

    def names(self) -> list[list[str]]:
        """The keys of the state of each parameter."""
        names = [*self._same, *self._rows(), *(name for name, *_ in self._cut)]
        return [[*names, *self._own_numbers, NUMBERS] if number == 0 else names for number in range(len(self._params))]

    def _rows(self) -> list[str]:
        return [*self._own, *([OWN_M] if self._moves else []), *([PARAMS] if self._is_local else [])]

    def is_regrouped(self, states: Sequence[dict[str, Any]]) -> bool:
        """Whether the states are of another number of workers, or of other hosts."""
        numbers = states[0][NUMBERS]
        return (int(numbers["workers"]), int(numbers["hosts"])) != (self._worker.size, self._hosts())

    def values(self, states: Sequence[dict[str, Any]], wire: Any) -> tuple[dict[str, Any], Tensor | None]:
        """The engine's values and this worker's parameters, if they are there, from the state of each parameter. With other workers, what
        was each one's own is the mean over all of them: all workers together, over `wire`."""
        numbers, regrouped = states[0][NUMBERS], self.is_regrouped(states)
        values: dict[str, Any] = {
            name: number if isinstance(number, Tensor) else int(number) for name, number in numbers.items() if name not in OURS
        }
        for name in self._same:
            # A mesh of GPUs keeps a DTensor there; the engine reads the host's memory.
            values[name] = torch.cat([local(state[name]).flatten().float().cpu() for state in states])
        for name in self._rows():
            if regrouped:
                parts = [state[name].share(start, int(numbers["workers"])) for state, start in zip(states, self._starts, strict=True)]
                vector = torch.cat(parts)
                if wire is not None and vector.numel():
                    wire.mean(vector)
                    vector *= self._worker.size
            else:
                vector = torch.cat([state[name].row(start) for state, start in zip(states, self._starts, strict=True)])
            values[name] = vector
        for name in self._own_numbers:
            if regrouped:
                number = states[0][name].share(0, int(numbers["workers"]))
                if wire is not None and number.numel():
                    narrow = number.float()
                    wire.mean(narrow)
                    number = narrow.double() * self._worker.size
            else:
                number = states[0][name].row(0)
            values[name] = number
        for name, _, _ in self._cut:
            values[name] = torch.cat([state[name]._values() for state in states])
        for name in ("up_residue", "down_residue"):
            values.setdefault(name, torch.zeros(0))
        if self._moves:
            values[MOVES] = values.pop(OWN_M)
        values["digest"] = 0
        return values, values.pop(PARAMS, None)

    def check(self, states: Sequence[dict[str, Any]]) -> None:
        """Refuses states in which something is missing, by this rank alone."""
        for number, (state, param, length, names) in enumerate(zip(states, self._params, self._lengths, self.names(), strict=True)):
            for name in names:
                if name not in state:
                    raise ValueError(f"the state of parameter {number} has no {name}")
            for name in self._same:
                if state[name].shape != param.shape or local(state[name]).numel() != length:
                    raise ValueError(f"parameter {number}: {name} is of shape {list(state[name].shape)}, expected {list(param.shape)}")
        for name in (*self._numbers, *OURS):
            if name not in states[0][NUMBERS]:
                raise ValueError(f"the state has no {name}")

    def _hosts(self) -> int:
        return int(hashlib.sha256(json.dumps(self._worker.hosts).encode()).hexdigest()[:15], 16)


def _placed(values: Tensor, param: Any) -> Tensor:
    """A parameter's part of a vector, in its shape and placed as it is."""
    part = values.view(local(param).shape)
    if part.shape == param.shape and not hasattr(param, "device_mesh"):
        return part
    from torch.distributed.tensor import DTensor

    whole = {"shape": param.shape, "stride": param.stride()}
    return DTensor.from_local(part, param.device_mesh, param.placements, run_check=False, **whole)


def configuration(config: dict[str, Any]) -> str:
    """What must be the same where a state is loaded; the lengths of groups are those of a rank's shards."""
    return json.dumps(config)


def comparable(text: str, mine: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a state, with the groups' lengths as they are here."""
    config: dict[str, Any] = json.loads(text)
    for group, here in zip(config.get("groups", []), mine.get("groups", []), strict=False):
        group["length"] = here["length"]
    return config
