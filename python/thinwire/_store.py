"""What workers tell each other at the group's store: that they have come, and who is gone or silent.

The store is in some process. If that one is stopped, whoever asks it waits for as long: so a thread of its own asks.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, NamedTuple, cast

import torch.distributed as dist

from . import _torch_private as private
from ._listing import Listing, digest, disagreement

HOST = "THINWIRE_HOST"  # names this worker's host where the machine's name would not do

GLANCE = 0.05  # seconds between two looks around
ANSWER = 1.0  # seconds for the store to answer


class Circle(NamedTuple):
    """Who meets: the workers of a group, or other ranks by their numbers."""

    name: str
    rank: int
    size: int
    ranks: list[int] | None = None

    @staticmethod
    def of(group: Any) -> Circle:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        # With its size, for a store may outlive the groups of one name.
        return Circle(f"{cast(Any, dist.group.WORLD if group is None else group).group_name}/{size}", rank, size)

    def label(self, member: int) -> str:
        return f"worker {member}" if self.ranks is None else f"rank {self.ranks[member]}"


class Met(NamedTuple):
    """What the workers have after a meeting."""

    name: str  # of the group
    hosts: list[str]  # of each
    store: Any  # theirs alone, and of this meeting


class Meeting:
    """The workers of `circle` before they are connected. Each writes to the store that it has come, and waits until all have.

    Gloo would wait too, but would not say for whom, and would not hear Ctrl-C. How a meeting ends is written down once, and counts for
    all: that they met, or why not, which who comes too late learns at once. Then all may try again. A worker with a `problem` comes to
    tell the others. If the workers' parameters, as `listing` has them, are not the same, they have not met.
    """

    MET = "met"
    FAILURES: dict[str, type[Exception]] = {"absent": TimeoutError, "left": ConnectionError, "refused": ValueError}

    def __init__(self, circle: Circle, deadline: float, problem: str | None = None, listing: bytes = b"") -> None:
        self._circle = circle
        self._rank, self._size, self._name = circle.rank, circle.size, circle.name
        self._deadline, self._problem, self._listing = deadline, problem, listing
        self._give_up = time.monotonic() + deadline
        self._number = 0  # of the meeting; none yet
        self._clerk = Clerk()

    def hold(self) -> Met:
        """Returns when all have come."""
        try:
            self._ask(self._come)
            while (end := self._ask(self._look)) is None:
                time.sleep(GLANCE)
            if end == self.MET:
                return cast(Met, self._ask(self._met))
            # The store may end with this process: who has a problem lets all come and hear it, the others those that wait.
            until = self._give_up if self._problem is not None else time.monotonic() + ANSWER
            with suppress(ConnectionError, TimeoutError):  # the store has ended: what it said is known
                while time.monotonic() < until and not self._ask(self._all_heard):
                    time.sleep(GLANCE)
        except BaseException:  # Ctrl-C
            self._clerk.ask(self._leave, None)  # waits: the process may end next
            raise
        finally:
            self._clerk.end()
        kind, text = end.split(" ", 1)
        raise self.FAILURES[kind](text)

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return self._clerk.start(question).result(max(self._give_up - time.monotonic(), 0) + ANSWER)
        except FutureTimeout:
            raise TimeoutError(f"the store of the process group did not answer within {self._deadline:g} s") from None
        except RuntimeError as error:
            raise ConnectionError(f"the ranks could not meet at the store of the process group: {error}") from error

    def _come(self) -> None:
        self._store = _part(f"{self._name}/meetings")
        self._number = self._store.add(f"come/{self._rank}", 1)  # all workers come to all meetings, so they count alike
        if self._problem is not None:
            self._settle(f"refused {self._circle.label(self._rank)} did not build its optimizer: {self._problem}")
        self._store.set(f"host/{self._number}/{self._rank}", os.environ.get(HOST) or socket.gethostname())
        self._store.set(f"listing/{self._number}/{self._rank}", self._listing)
        self._store.set(f"digest/{self._number}/{self._rank}", digest(self._listing))
        self._store.add(f"here/{self._number}", 1)

    def _leave(self) -> None:
        if self._number:
            self._settle(f"left {self._circle.label(self._rank)} left while the ranks met")

    def _look(self) -> str | None:
        """How the meeting has ended; None if some are still to come."""
        end = None
        if self._store.add(f"here/{self._number}", 0) == self._size:
            end = self._end() or self._settle(self._compare())
        elif (settled := self._end()) is not None:
            end = settled
        elif time.monotonic() >= self._give_up:
            end = self._settle(self._reason())
        if end is not None:
            self._store.add(f"heard/{self._number}", 1)
        return end

    def _end(self) -> str | None:
        """The end that counts, if there is one."""
        key = f"end/{self._number}"
        return cast(str, self._store.get(key).decode()) if self._store.check([key]) else None

    def _compare(self) -> str:
        """Now that all have come: whether their parameters are the same, each worker's compared with those of worker 0."""
        digests = [self._store.get(f"digest/{self._number}/{worker}") for worker in range(self._size)]
        for worker in range(1, self._size):
            if digests[worker] != digests[0]:
                first, other = (Listing.from_bytes(self._store.get(f"listing/{self._number}/{who}")) for who in (0, worker))
                problem = disagreement(first, self._circle.label(0), other, self._circle.label(worker))
                if problem is not None:
                    return f"refused {problem}"
        return self.MET

    def _all_heard(self) -> bool:
        return cast(bool, self._store.add(f"heard/{self._number}", 0) == self._size)

    def _met(self) -> Met:
        hosts = [self._store.get(f"host/{self._number}/{worker}").decode() for worker in range(self._size)]
        return Met(self._name, hosts, _part(f"{self._name}/{self._number}"))

    def _reason(self) -> str:
        absent = [worker for worker in range(self._size) if self._store.add(f"come/{worker}", 0) < self._number]
        numbers = absent if self._circle.ranks is None else [self._circle.ranks[worker] for worker in absent]
        who = f"{self._circle.label(0).split()[0]}{'s' * (len(absent) > 1)} {', '.join(map(str, numbers))}"
        return f"absent not all {self._size} ranks built their optimizer within {self._deadline:g} s: {who} did not come"

    def _settle(self, end: str) -> str:
        """The end that counts: the first."""
        return cast(str, self._store.compare_set(f"end/{self._number}", "", end).decode())


def _part(name: str) -> Any:
    """The part of the program's store under `name`, over a connection of its own."""
    store = private.default_store()
    return private.prefix_store(f"thinwire/{name}", store.clone() if hasattr(store, "clone") else store)


def tell(circle: Circle, problem: str, seconds: float) -> None:
    """Has the other workers of `circle` raise that this one does not come, and why; they have so long to come and hear it."""
    with suppress(ValueError):
        Meeting(circle, seconds, problem).hold()


class Board:
    """The group's store as a notice board: who waits for whom, and who was found to be gone or silent first.

    The store is in some process, and if that one is stopped, whoever asks it waits for as long: so a thread of its own asks.
    """

    def __init__(self, store: Any, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._look: Future[str | None] | None = None  # since this worker waits
        self._clerk = Clerk()

    def waits_for(self, worker: int) -> None:
        """Has it written down whom this worker waits for, and raises what another has found out."""
        if self._look is not None and not self._look.done():
            return
        found = self._clerk.answer(self._look) if self._look is not None else None
        self._look = self._clerk.start(lambda: self._note(worker))
        if found is not None:
            raise _error(found)

    def _note(self, worker: int) -> str | None:
        self._store.set(f"waits/{self._rank}", str(worker))
        return self._store.get("culprit").decode() if self._store.check(["culprit"]) else None

    def waits_no_more(self) -> None:
        if self._look is not None:
            self._look = None
            self._clerk.start(lambda: self._store.set(f"waits/{self._rank}", ""))

    def gone(self, worker: int) -> ConnectionError | TimeoutError:
        return self._blame(f"gone {worker}")

    def silent(self, worker: int) -> ConnectionError | TimeoutError:
        return self._blame(f"silent {self._clerk.ask(lambda: self._end_of_chain(worker), worker)}")

    def _blame(self, found: str) -> ConnectionError | TimeoutError:
        """The error for what was found first, by this worker or another."""
        return _error(self._clerk.ask(lambda: self._store.compare_set("culprit", "", found).decode(), found))

    def _end_of_chain(self, worker: int) -> int:
        """Who waits for nobody, at the end of the chain of waits; `worker` itself if that is a ring."""
        at, seen = worker, {self._rank}
        while at not in seen:
            seen.add(at)
            key = f"waits/{at}"
            note = self._store.get(key).decode() if self._store.check([key]) else ""
            if not note:
                return at
            at = int(note)
        return worker

    def close(self) -> None:
        self._clerk.end()


class Clerk:
    """A thread that asks the store, one thing after the other; nobody need wait for the answer."""

    def __init__(self) -> None:
        self._questions: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # most runs never ask
        self._lost = False  # the store is gone with its process, or stands still with it: the connections will tell

    def start(self, question: Callable[[], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        if not self._lost:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, args=(self._questions,), name="thinwire-board", daemon=True)
                self._thread.start()
            self._questions.put((question, answer))
        return answer

    @staticmethod
    def _run(questions: Any) -> None:
        while (asked := questions.get()) is not None:
            question, answer = asked
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

    def answer(self, answer: Future[Any], otherwise: Any = None) -> Any:
        """What was answered, or `otherwise` if nothing is in time; then nothing is asked any more."""
        try:
            return otherwise if self._lost else answer.result(ANSWER)
        except (RuntimeError, FutureTimeout):
            self._lost = True
            return otherwise

    def ask(self, question: Callable[[], Any], otherwise: Any) -> Any:
        return self.answer(self.start(question), otherwise)

    def end(self) -> None:
        self._questions.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(GLANCE)


def _error(found: str) -> ConnectionError | TimeoutError:
    fault, worker = found.split()
    error = ConnectionError(f"worker {worker} is gone") if fault == "gone" else TimeoutError(f"worker {worker} is silent")
    setattr(error, "worker", int(worker))  # noqa: B010, the engine asks for it
    return error
