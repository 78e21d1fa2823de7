"""Ranks that are gone, silent, interrupted, or wrong: the others say who, and soon."""

import os
import signal
import threading
import time

import pytest
import ranks
import torch
from models import tiny_gpt

import thinwire
from thinwire import _wire


def step_of(model, optimizer, step=0):
    optimizer.zero_grad()
    model.loss(step).backward()
    optimizer.step()


def leaves(rank, culprit):
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    for step in range(100):
        if (rank, step) == (culprit, 3):
            os._exit(7)
        step_of(model, optimizer, step)


@pytest.mark.parametrize(("n", "culprit"), [(2, 1), (4, 2), (4, 0)])
def test_a_rank_that_dies_is_named(n, culprit):
    began = time.monotonic()
    ends = ranks.run(n, leaves, culprit, allowed=[ConnectionError])
    assert time.monotonic() - began < 60
    assert ends.pop(culprit) == 7
    for error in ends:
        assert isinstance(error, ConnectionError) and f"worker {culprit} left" in str(error), error


def falls_silent(rank, culprit):
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters(), deadline=2.0)
    for step in range(3):
        if (rank, step) == (culprit, 2):
            time.sleep(5)
            return None
        step_of(model, optimizer, step)


@pytest.mark.parametrize(("n", "culprit"), [(2, 0), (4, 2)])
def test_a_silent_rank_is_named(n, culprit):
    ends = ranks.run(n, falls_silent, culprit, allowed=[TimeoutError])
    assert ends.pop(culprit) is None
    for error in ends:
        assert isinstance(error, TimeoutError) and f"worker {culprit} did not answer within 2s" in str(error), error


def waits(rank, folder):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background may have turned it off
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    step_of(model, optimizer)
    if rank == 1:
        until(folder / "interrupted")  # while rank 0 waits
    else:
        (folder / "waiting").touch()
    try:
        step_of(model, optimizer)
    except KeyboardInterrupt:
        (folder / "interrupted").touch()
        with pytest.raises(RuntimeError, match="stopped in the middle"):
            optimizer.state_dict()  # of half a step
        return "interrupted"
    except (RuntimeError, ConnectionError) as error:
        return str(error)


def until(path):
    give_up = time.monotonic() + 60
    while not path.exists() and time.monotonic() < give_up:
        time.sleep(0.02)


def test_ctrl_c_is_heard_during_a_step(tmp_path):
    started = ranks.start(2, waits, tmp_path)
    until(tmp_path / "waiting")
    time.sleep(1)
    os.kill(started[0][0].pid, signal.SIGINT)
    first, second = ranks.collect(started)
    assert first == "interrupted"
    # Why, if it listens before rank 0 is gone; else that it is gone.
    assert "worker 0 stopped the run: interrupted by the user" in second or "worker 0 left" in second


def alone_in_consensus(rank, way):
    model = tiny_gpt()
    optimizer = thinwire.ZeroOneAdam(model.parameters(), sync_every=4, deadline=2.0)
    for step in range(10):
        step_of(model, optimizer, 100 * step + rank)
    own = torch.nn.utils.parameters_to_vector(model.parameters()).clone()
    if rank == 1:
        if way == "gone":
            os._exit(7)
        time.sleep(5)
        return None
    try:
        with optimizer.consensus():
            return "there was none"
    finally:
        assert torch.equal(own, torch.nn.utils.parameters_to_vector(model.parameters()))


@pytest.mark.parametrize(("way", "kind"), [("gone", ConnectionError), ("silent", TimeoutError)])
def test_who_does_not_come_to_the_consensus_is_named(way, kind):
    ends = ranks.run(3, alone_in_consensus, way, allowed=[ConnectionError, TimeoutError])
    assert ends.pop(1) == (7 if way == "gone" else None)
    for error in ends:
        assert isinstance(error, kind) and "worker 1" in str(error), error


class StoppedStore:
    """In a process that stands still: it answers nobody."""

    def __getattr__(self, name):
        return lambda *_: threading.Event().wait()


def test_a_store_that_stands_still_stops_nobody(monkeypatch):
    monkeypatch.setattr(_wire, "ANSWER", 0.2)
    board = object.__new__(_wire._Board)
    board._store, board._rank, board._look, board._clerk = StoppedStore(), 0, None, _wire._Clerk()
    began = time.monotonic()
    board.waits_for(1)
    board.waits_for(1)
    board.waits_no_more()
    assert "worker 1 is silent" in str(board.silent(1)) and "worker 2 is gone" in str(board.gone(2))
    board.close()
    assert time.monotonic() - began < 10


def not_finite(rank):
    model = tiny_gpt()
    optimizer = thinwire.ZeroOneAdam(model.parameters())
    for step in range(5):
        optimizer.zero_grad()
        model.loss(step).backward()
        if (rank, step) == (1, 3):
            model.head.weight.grad[0, 0] = float("inf")
        optimizer.step()


def test_a_gradient_that_is_not_finite_is_named_everywhere():
    for error in ranks.run(4, not_finite, allowed=[FloatingPointError]):
        assert "worker 1 has a gradient that is infinite or NaN at step 3" in str(error)


def ends_at_once(rank):
    """Nobody waits for anybody at the end: the last messages must still arrive."""
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    for step in range(3):
        step_of(model, optimizer, step)
    if rank == 1:
        time.sleep(1)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).sum().item()


def test_a_rank_may_end_before_the_others():
    ends = ranks.collect(ranks.start(4, ends_at_once))
    assert len(set(ends)) == 1


def other_thread(rank):
    """A step lets other threads run: one that counts gets on while this one waits."""
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    if rank == 1:
        time.sleep(1)
    before = counted[0]
    step_of(model, optimizer)
    after = counted[0]
    stop.set()
    counter.join()
    return after - before


def test_other_threads_run_during_a_step():
    assert ranks.run(2, other_thread)[0] > 20
