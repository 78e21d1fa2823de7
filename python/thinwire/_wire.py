"""Messages between the processes of a ``torch.distributed`` group, in order, with a deadline.

Whatever backend the program's group has, messages go over a twin of it on gloo, which takes bytes from the host's memory. So they
never mix with messages of the program's own, and a group on NCCL keeps its devices to itself.

Gloo takes a message that is shorter than the receiver's buffer; the frame says how long it is (see ``src/wire.rs``). Receives are
posted for every worker at all times, so bytes arrive while this worker computes or waits for another. Gloo cannot be asked whether
something has arrived, and its waits end neither for Ctrl-C nor, without harm, at a time limit: so a thread waits there, and the
program waits for the thread. While it waits it looks around: at the deadline, and at the group's store, where whoever finds a worker
gone or silent writes it down for all. The workers also meet there, before gloo connects them.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import _torch_private as private
from ._store import GLANCE, Board, Circle, Meeting

STORE_GLANCE = 0.25  # seconds between two looks at the store
PATIENCE = 1.0  # seconds after which a worker writes down whom it waits for
FAREWELL = 10.0  # seconds at the end for messages to leave
LAST_WORDS = 5.0  # the same after an error: not everyone may be there to hear
FOREVER = timedelta(days=365)
TAG = 0  # nobody else sends on the twin
TAG_OF_STATES = 1
PIECE = 1 << 22  # values of a tensor that travel at once: the deadline is for each


class Wire:
    """One worker's end of the twin of `group`. All workers of the group must make theirs together, for the same parameters."""

    def __init__(self, group: Any, deadline: float, listing: bytes = b"") -> None:
        self.deadline = deadline
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        met = Meeting(Circle.of(group), deadline, listing=listing).hold()
        self.hosts = [met.hosts.index(host) for host in met.hosts]
        self._name = met.name
        _left.pop(self._name, None)
        began = time.monotonic()
        try:
            store = private.prefix_store("gloo", met.store)
            self._gloo = private.gloo_group(store, self.rank, self.size, timedelta(seconds=deadline))
        except RuntimeError as error:
            waited = time.monotonic() - began
            if waited < deadline:
                raise ConnectionError(f"the ranks could not connect to each other: {error}") from error
            raise TimeoutError(f"{self.size} ranks met, but were not connected to each other within {deadline:g} s") from error
        self._board = Board(met.store, self.rank)
        self._waiter = _Waiter()
        self._flights: list[deque[tuple[Any, _Buffer]]] = [deque() for _ in range(self.size)]
        self._lent: list[_Buffer | None] = [None] * self.size
        self._arrivals: list[_Arrival | None] = [None] * self.size
        self._most = 0
        self._frame = 0
        self._farewell = min(deadline, FAREWELL)
        self._failed = False
        _open.add(self)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Rank 0's values for all."""
        try:
            self._gloo.broadcast(tensor, 0).wait()
        except RuntimeError as error:
            raise ConnectionError(f"a rank left while the values of rank 0 were sent to all: {error}") from error

    def mean(self, tensor: torch.Tensor) -> None:
        """The mean over all workers, the same bits everywhere; outside the engine, and uncounted by its meter."""
        try:
            self._gloo.allreduce([tensor]).wait()
        except RuntimeError as error:
            raise ConnectionError(f"a rank left while values were averaged over all: {error}") from error
        tensor /= self.size

    def give(self, to: int, tensors: list[torch.Tensor]) -> None:
        """Sends `tensors` to worker `to`, which takes them; waits until they have left."""
        for piece in _pieces(tensors):
            self._await(self._begin(self._gloo.send, piece, to), to)

    def take(self, tensors: dict[int, list[torch.Tensor]]) -> None:
        """Fills the tensors of each worker with what it gives."""
        works = [(self._begin(self._gloo.recv, piece, source), source) for source in tensors for piece in _pieces(tensors[source])]
        for work, source in works:
            self._await(work, source)

    def _begin(self, how: Any, piece: torch.Tensor, worker: int) -> Any:
        try:
            return how([piece], worker, TAG_OF_STATES)
        except RuntimeError:
            return _Broken()

    # ---- called by the engine ----------------------------------------------------------------------

    def reserve(self, frame: int, under_way: int) -> None:
        """Sets the length of the buffers, and how many messages may be under way to a worker at once."""
        self._frame, self._most = frame, under_way
        for worker in range(self.size):
            if worker != self.rank:
                self._arrivals[worker] = _Arrival(self._gloo, worker, frame)

    def room(self, to: int, during: str, continues: bool) -> int:
        """The address of a buffer for the next frame to worker `to`, of a new message or of one that `continues`."""
        flights, last = self._flights[to], during == "abort"
        if last:
            self._failed, self._farewell = True, min(self.deadline, LAST_WORDS)
        if last or continues or len(flights) < self._most:
            buffer = _Buffer(self._frame)
        else:
            # The protocol has it that so old a message was received: this does not wait.
            work, buffer = flights.popleft()
            with suppress(RuntimeError):
                work.wait(timedelta(seconds=self.deadline))
        self._lent[to] = buffer
        return buffer.address

    def send(self, to: int, length: int) -> None:
        """Sends the first `length` bytes of that buffer; does not wait for the receiver.

        If it is gone, that is for who receives from it to find: it may have said why, and that has arrived.
        """
        buffer = self._lent[to]
        assert buffer is not None
        with suppress(RuntimeError):
            self._flights[to].append((self._gloo.send([buffer.bytes[:length]], to, TAG), buffer))

    def receive(self, source: int, during: str) -> int:
        """Waits for the next frame of worker `source`; returns its address, good until the next."""
        arrival = self._arrivals[source]
        assert arrival is not None
        self._await(arrival.work, source)
        return arrival.take()

    def close(self) -> None:
        """Lets messages leave that are still under way, and ends the threads.

        Connections stay as they are until the workers meet again, or the program ends: what left here may not have arrived, and would
        be lost if the receiver had something to say meanwhile. After an error they are closed: what the thread waits for may never come.
        """
        if self not in _open:
            return
        _open.discard(self)
        give_up = time.monotonic() + self._farewell
        # At its end Python, from 3.12 on, starts no threads: this must do without another.
        leaves = _leaves if self._waiter.is_busy else self._waiter.wait
        all(leaves(work, give_up) for flights in self._flights for work, _ in flights)
        if self._failed or self._waiter.is_busy:
            for arrival in self._arrivals:
                if arrival is not None:
                    arrival.hang_up()
        else:
            _left.setdefault(self._name, []).append((self._gloo, self._flights, self._arrivals))
        self._waiter.end()
        self._board.close()

    # ---- waiting -----------------------------------------------------------------------------------

    def _await(self, work: Any, source: int) -> None:
        self._waiter.start(work)
        since = time.monotonic()
        glance = 0.0
        while (end := self._waiter.poll(GLANCE)) is None:
            now = time.monotonic()
            if now - since >= self.deadline:
                self._failed = True
                raise self._board.silent(source)
            if now - since >= min(PATIENCE, self.deadline / 4) and now >= glance:
                glance = now + STORE_GLANCE
                self._board.waits_for(source)
        self._board.waits_no_more()
        if isinstance(end, BaseException):
            self._failed = True
            raise self._board.gone(source) from end


def _pieces(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [piece for tensor in tensors if tensor.numel() for piece in torch.split(tensor, PIECE)]


class _Buffer:
    def __init__(self, length: int) -> None:
        self.bytes = torch.empty(length, dtype=torch.uint8, device="cpu")
        self.address = self.bytes.data_ptr()


class _Arrival:
    """What comes from one worker: two frames are posted while a third is read.

    Two, because a worker that stops says why in a message of its own behind the one that is under way.
    """

    def __init__(self, gloo: Any, source: int, frame: int) -> None:
        self._gloo, self._source = gloo, source
        self._posted: deque[tuple[Any, _Buffer]] = deque()
        self._read = _Buffer(frame)
        for _ in range(2):
            self._post(_Buffer(frame))

    def _post(self, buffer: _Buffer) -> None:
        work: Any
        try:
            work = self._gloo.recv([buffer.bytes], self._source, TAG)
        except RuntimeError:
            work = _Broken()  # what has arrived is still good
        self._posted.append((work, buffer))

    @property
    def work(self) -> Any:
        """The receive of the next frame."""
        return self._posted[0][0]

    def take(self) -> int:
        """The address of the frame that has arrived; another is posted."""
        _, arrived = self._posted.popleft()
        self._post(self._read)
        self._read = arrived
        return arrived.address

    def hang_up(self) -> None:
        """Closes the connections, as gloo does when a wait ends too late; nothing else ends the waits of other threads."""
        for work, _ in self._posted:
            with suppress(RuntimeError):
                work.wait(timedelta(milliseconds=1))


class _Broken:
    """A receive that could not be posted: whoever waits for it learns that the sender is gone."""

    def wait(self, timeout: Any) -> None:
        raise RuntimeError("the connection is broken")


class _Waiter:
    """A thread that waits for one thing at a time, so that the program need not."""

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waits = False
        self._thread = threading.Thread(target=self._run, args=(self._works, self._ends), name="thinwire", daemon=True)
        self._thread.start()

    @staticmethod
    def _run(works: Any, ends: Any) -> None:
        while (work := works.get()) is not None:
            try:
                work.wait(FOREVER)
                ends.put(True)
            except BaseException as error:
                ends.put(error)

    @property
    def is_busy(self) -> bool:
        """Whether it waits for something, or for whoever asks."""
        return self._waits or self._thread is threading.current_thread()  # where a wire may be collected

    def start(self, work: Any) -> None:
        self._waits = True
        self._works.put(work)

    def poll(self, seconds: float) -> Any:
        """True, or why it failed, once it has ended; None if it has not after so many seconds. Ctrl-C is heard here."""
        try:
            end = self._ends.get(timeout=seconds)
        except queue.Empty:
            return None
        self._waits = False
        return end

    def wait(self, work: Any, give_up: float) -> bool:
        """Whether `work` ended before `give_up`."""
        self.start(work)
        return self.poll(max(give_up - time.monotonic(), 0.001)) is not None

    def end(self) -> None:
        """Ends the thread: Python's end must not meet it on its way out."""
        self._works.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(FAREWELL)


def _leaves(work: Any, give_up: float) -> bool:
    """Whether `work` ended before `give_up`, where the thread waits for something else."""
    try:
        work.wait(timedelta(seconds=max(give_up - time.monotonic(), 0.001)))
    except RuntimeError:  # gone, or too late
        pass
    return time.monotonic() < give_up


_open: weakref.WeakSet[Wire] = weakref.WeakSet()
_left: dict[str, list[Any]] = {}  # of each group, what was closed since its workers met last
_inherited: list[Any] = []


@atexit.register
def _close_all() -> None:
    """The last messages of a run must leave before its process does."""
    for wire in list(_open):
        wire.close()


def _leave_to_the_parent() -> None:
    """A process that was forked, as for a DataLoader, has its parent's connections: to close them here would break them there."""
    _inherited.extend([*_open, *_left.values()])
    _open.clear()
    _left.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
