"""One rank's replica of the model, and what all ranks have in common.

Between two syncs of 0/1 Adam the replicas differ, and buffers differ all the time. ``sync()`` makes them equal for good, ``consensus()``
for the length of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ._buffers import Buffers
from ._flat import Flat
from ._sharded import Sharding
from ._worker import Worker

if TYPE_CHECKING:
    from .device.flat import DeviceFlat


class Replica(Optimizer):
    """An optimizer whose parameters, and buffers if it was given them, can be made equal on all ranks."""

    _flat: Flat | DeviceFlat
    _worker: Worker
    _wire: Any  # None for one worker alone
    _inside_wire: Any = None  # to the other shards of this replica; None where it is in one piece
    _buffers: Buffers | None
    _sharding: Sharding | None = None

    _own: Tensor | None = None  # this rank's parameters, while others take their place
    _own_buffers: list[Tensor] | None = None  # its buffers, likewise
    _inside = 0  # how many consensus() blocks

    def sync(self) -> None:
        """Makes all replicas equal: before evaluation or export, and at the end of training. All ranks together.

        With ``buffers=`` the buffers too, by the rule of ``buffer_sync``.
        """
        self._check_own("sync()")
        with torch.no_grad():
            self._flat.take_params()
            self._worker.sync(self._flat.vector)
            self._flat.give_params()
        self._agree_on_buffers()

    def _agree_on_buffers(self) -> None:
        if self._buffers is not None and self._wires():
            self._buffers.check(self._worker.gather(self._buffers.note()))
            for wire in self._wires():
                self._buffers.agree(wire)

    def _wires(self) -> list[Any]:
        """Across replicas and inside this one: the mean over both, one after the other, is the mean of all."""
        return [wire for wire in (self._wire, self._inside_wire) if wire is not None]

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """The mean of all ranks' parameters, for evaluation, and then this rank's own again.

        Unlike :meth:`sync` it leaves the training as it was, to the bit. Between two syncs of 0/1 Adam it averages the parameters,
        32 bits each, which :meth:`traffic` does not count. Local Adam keeps a model that all ranks have in common, its anchor: that takes
        the parameters' place, and nothing is sent. Otherwise they are equal already. All ranks together.

        Inside, :meth:`save` and :meth:`state_dict` are of the training, that is of the rank's own parameters; ``model.state_dict()``
        has those of the consensus. With ``buffers=`` the buffers are equal on all ranks inside, and each rank's own again after it;
        then all ranks exchange them every time. Nothing moves the parameters there: :meth:`step`, :meth:`sync` and
        :meth:`load_state_dict` raise RuntimeError.
        """
        self._inside += 1
        try:
            if self._inside > 1 or not self._wires() and not self._worker._has_own_params:
                yield
                return
            with self._equal_parameters(), self._equal_buffers():
                yield
        finally:
            self._inside -= 1

    @contextmanager
    def _equal_parameters(self) -> Iterator[None]:
        if self._worker.is_synced:
            yield
            return
        with torch.no_grad():
            self._flat.take_params()
            self._worker.gather(b"consensus")  # hears Ctrl-C, and names a rank that does not come
            mean = self._flat.values.to("cpu", copy=True)
            # The model that all ranks have in common, where the optimizer keeps it.
            if not self._worker._anchor(mean.numpy()) and self._wire is not None:
                self._wire.mean(mean)
            self._own = self._flat.values.clone()
            self._flat.values.copy_(mean)
            self._flat.give_params()
        try:
            yield
        finally:
            with torch.no_grad():
                self._flat.values.copy_(self._own)
                self._own = None
                self._flat.give_params()

    @contextmanager
    def _equal_buffers(self) -> Iterator[None]:
        if self._buffers is None:
            yield
            return
        self._own_buffers = self._buffers.values()
        try:
            self._agree_on_buffers()
            yield
        finally:
            self._buffers.give(self._own_buffers)
            self._own_buffers = None

    def _keep_what_was_loaded(self) -> None:
        """Inside :meth:`consensus`, has its end leave parameters and buffers as they are now: the program has loaded others."""
        if self._own is not None:
            with torch.no_grad():
                self._flat.take_params()
                self._own.copy_(self._flat.values)
        if self._own_buffers is not None and self._buffers is not None:
            self._own_buffers = self._buffers.values()

    def _check_own(self, what: str) -> None:
        if self._inside:
            raise RuntimeError(f"{what} inside consensus(): the parameters are not this rank's own there; leave the block first")

    @contextmanager
    def _training(self) -> Iterator[None]:
        """The parameters that training goes on from, also inside :meth:`consensus`."""
        with torch.no_grad():
            if self._own is None:
                self._flat.take_params()
                yield
                return
            mean = self._flat.values.clone()
            self._flat.values.copy_(self._own)
            try:
                yield
            finally:
                self._flat.values.copy_(mean)
