"""Ranks that are gone, silent, interrupted, or wrong: the others say who, and soon."""

import gc
import logging
import os
import signal
import threading
import time

import pytest
import ranks
import torch
import torch.distributed as dist
from models import bits, tiny_gpt

import thinwire
from thinwire import _compressed, _store


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


def falls_silent(rank, culprit, others, folder):
    model = tiny_gpt()
    dist.barrier()  # the deadline is for what comes next, not for a slow start
    optimizer = thinwire.AdamW(model.parameters(), deadline=2.0)
    try:
        for step in range(3):
            if (rank, step) == (culprit, 2):
                until(*(folder / str(other) for other in others))  # while they wait, it is there and says nothing
                return None
            step_of(model, optimizer, step)
    finally:
        (folder / str(rank)).touch()


@pytest.mark.parametrize(("n", "culprit"), [(2, 0), (4, 2)])
def test_a_silent_rank_is_named(n, culprit, tmp_path):
    others = [rank for rank in range(n) if rank != culprit]
    ends = ranks.run(n, falls_silent, culprit, others, tmp_path, allowed=[TimeoutError])
    assert ends.pop(culprit) is None
    for error in ends:
        assert isinstance(error, TimeoutError) and f"worker {culprit} did not answer within 2s" in str(error), error


def waits_in_vain(rank):
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters(), deadline=1.0)
    if rank == 0:
        with pytest.raises(TimeoutError):
            step_of(model, optimizer)
    dist.barrier()
    del optimizer
    gc.collect()
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("thinwire")]


def test_no_thread_waits_for_a_rank_that_was_given_up():
    """One that did could meet the end of Python inside gloo, which aborts the process."""
    assert ranks.run(2, waits_in_vain) == [[], []]


def touches_when_called(owner, name, path):
    """From now on `path` is there once this process has called what it calls while it waits."""
    own = getattr(owner, name)

    def call(*arguments):
        path.touch()
        return own(*arguments)

    setattr(owner, name, call)


def waits(rank, folder):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background may have turned it off
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    step_of(model, optimizer)
    if rank == 1:
        until(folder / "interrupted")  # while rank 0 waits
    else:
        touches_when_called(_store.Board, "waits_for", folder / "waiting")
    try:
        step_of(model, optimizer)
    except KeyboardInterrupt:
        (folder / "interrupted").touch()
        with pytest.raises(RuntimeError, match="stopped at an earlier error"):
            optimizer.state_dict()  # of half a step
        return "interrupted"
    except (RuntimeError, ConnectionError) as error:
        return str(error)


def until(*paths):
    give_up = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < give_up, f"{paths}: not within a minute"
        time.sleep(0.02)


def test_ctrl_c_is_heard_during_a_step(tmp_path):
    started = ranks.start(2, waits, tmp_path)
    until(tmp_path / "waiting")
    os.kill(started[0][0].pid, signal.SIGINT)
    first, second = ranks.collect(started)
    assert first == "interrupted"
    # Why, if it listens before rank 0 is gone; else that it is gone.
    assert "worker 0 stopped the run: interrupted by the user" in second or "worker 0 left" in second


def comes_late(rank, culprits, others, folder):
    """What was told, and after how many seconds; then all try again."""
    if rank in culprits:
        until(*(folder / str(other) for other in others))  # too late
    began = time.monotonic()
    with pytest.raises(TimeoutError) as told:
        thinwire.AdamW(tiny_gpt().parameters(), deadline=2.0 if rank not in culprits else 60.0)
    waited = time.monotonic() - began
    (folder / str(rank)).touch()
    thinwire.AdamW(tiny_gpt().parameters())
    return str(told.value), waited


@pytest.mark.parametrize(("n", "culprits", "who"), [(2, [1], "worker 1"), (2, [0], "worker 0"), (4, [0, 2], "workers 0, 2")])
def test_who_does_not_come_to_the_first_meeting_is_named(n, culprits, who, tmp_path):
    others = [rank for rank in range(n) if rank not in culprits]
    for told, waited in ranks.run(n, comes_late, culprits, others, tmp_path):
        assert told == f"not all {n} ranks built their optimizer within 2 s: {who} did not come"
        assert waited < 20, "also if it comes late itself, with a long deadline"


def refuses_and_is_gone(rank, folder):
    _compressed.TELLING = 0.5
    if rank == 1:
        until(folder / "gone")
    began = time.monotonic()
    with pytest.raises(ValueError) as told:
        thinwire.AdamW(tiny_gpt().parameters(), **({"codec": "nonsense"} if rank == 0 else {}))
    (folder / "gone").touch()
    return str(told.value), time.monotonic() - began


def test_why_a_rank_has_no_optimizer_is_told_to_those_that_come_later(tmp_path):
    _, (told, waited) = ranks.collect(ranks.start(2, refuses_and_is_gone, tmp_path))
    assert "worker 0 did not build its optimizer: ValueError: codec" in told and waited < 20


def meets(rank, folder):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if rank == 1:
        until(folder / "interrupted")
    else:
        touches_when_called(_store.Meeting, "_look", folder / "waiting")
    began = time.monotonic()
    try:
        thinwire.AdamW(tiny_gpt().parameters())
    except (KeyboardInterrupt, ConnectionError) as error:
        (folder / "interrupted").touch()
        return f"{type(error).__name__}: {error}", time.monotonic() - began


def test_ctrl_c_is_heard_while_the_ranks_meet(tmp_path):
    started = ranks.start(2, meets, tmp_path)
    until(tmp_path / "waiting")
    os.kill(started[0][0].pid, signal.SIGINT)
    (first, waited), (second, waited_too) = ranks.collect(started)
    assert first == "KeyboardInterrupt: " and second == "ConnectionError: worker 0 left while the ranks met"
    assert waited < 30 and waited_too < 30, "long before the deadline"


def alone_in_consensus(rank, way, folder):
    model = tiny_gpt()
    dist.barrier()  # the deadline is for what comes next, not for a slow start
    optimizer = thinwire.ZeroOneAdam(model.parameters(), sync_every=4, variance_gap=8, deadline=6.0)
    for step in range(10):
        step_of(model, optimizer, 100 * step + rank)
    own = torch.nn.utils.parameters_to_vector(model.parameters()).clone()
    if rank == 1:
        if way == "gone":
            os._exit(7)
        until(folder / "0", folder / "2")
        return None
    try:
        with optimizer.consensus():
            return "there was none"
    finally:
        (folder / str(rank)).touch()
        assert torch.equal(own, torch.nn.utils.parameters_to_vector(model.parameters()))


@pytest.mark.parametrize(("way", "kind"), [("gone", ConnectionError), ("silent", TimeoutError)])
def test_who_does_not_come_to_the_consensus_is_named(way, kind, tmp_path):
    ends = ranks.run(3, alone_in_consensus, way, tmp_path, allowed=[ConnectionError, TimeoutError])
    assert ends.pop(1) == (7 if way == "gone" else None)
    for error in ends:
        assert isinstance(error, kind) and "worker 1" in str(error), error


class StoppedStore:
    """In a process that stands still: it answers nobody."""

    def __getattr__(self, name):
        return lambda *_: threading.Event().wait()


def test_a_store_that_stands_still_stops_nobody(monkeypatch):
    monkeypatch.setattr(_store, "ANSWER", 0.2)
    board = object.__new__(_store.Board)
    board._store, board._rank, board._look, board._clerk = StoppedStore(), 0, None, _store.Clerk()
    began = time.monotonic()
    board.waits_for(1)
    board.waits_for(1)
    board.waits_no_more()
    assert "worker 1 is silent" in str(board.silent(1)) and "worker 2 is gone" in str(board.gone(2))
    board.close()
    assert time.monotonic() - began < 10


def test_the_first_meeting_does_not_wait_for_a_store_that_stands_still(monkeypatch):
    monkeypatch.setattr(_store, "ANSWER", 0.2)
    monkeypatch.setattr(_store, "_part", lambda name: StoppedStore())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="the store of the process group did not answer within 0.5 s"):
            _store.Meeting(_store.Circle.of(None), 0.5).hold()
        assert time.monotonic() - began < 10
    finally:
        dist.destroy_process_group()


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


def goes_on_from_a_checkpoint(rank, bad, folder):
    """Steps that this rank had taken when the others' bad gradient ended its run, the error, and the run's end from a checkpoint on."""

    def run(optimizer, model, first, last):
        for step in range(first, last):
            optimizer.zero_grad()
            loss = model.loss(100 * step + rank)
            (loss * float("nan") if bad and (rank, step) == (1, 14) else loss).backward()
            optimizer.step()

    model = tiny_gpt()
    optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-2, sync_every=4, variance_steps=[0, 1, 2])
    run(optimizer, model, 0, 10)
    optimizer.save(folder)
    told, before = None, None
    try:
        run(optimizer, model, 10, 14)
        before = bits(model)
        run(optimizer, model, 14, 24)
    except FloatingPointError as error:
        told = (optimizer._worker.steps, str(error), bool(torch.equal(before, bits(model))))
        with pytest.raises(RuntimeError, match="stopped at an earlier error"):
            optimizer.state_dict()
        del optimizer
        bad = False
        model = tiny_gpt(seed=rank + 1)
        optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-2, sync_every=4, variance_steps=[0, 1, 2], resume=folder)
        run(optimizer, model, 10, 24)
    return told, bits(model).tolist()


def test_what_a_bad_gradients_error_says_is_true_and_its_remedy_works(tmp_path):
    healthy = ranks.run(2, goes_on_from_a_checkpoint, False, str(tmp_path / "a"))
    ends = ranks.run(2, goes_on_from_a_checkpoint, True, str(tmp_path / "b"))
    (here, text, unmoved), (there, same_text, worker_1_unmoved) = ends[0][0], ends[1][0]
    assert text == same_text and "others may have packed their gradients for it or taken local steps since" in text
    assert "resume=DIR" in text and 'non_finite="skip"' in text and "nothing has moved" not in text
    assert here > there == 14 and not unmoved and worker_1_unmoved
    assert [end[1] for end in ends] == [end[1] for end in healthy]


def steps_later(rank, folder):
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    optimizer.zero_grad()
    model.loss(0).backward()
    if rank == 1:
        model.head.weight.grad[0, 0] = float("nan")
    else:
        until(folder / "gone")
    try:
        optimizer.step()
    except FloatingPointError as error:
        del optimizer
        gc.collect()
        (folder / "gone").touch()
        return str(error)


def test_who_comes_when_a_rank_has_gone_hears_why(tmp_path):
    first, second = ranks.run(2, steps_later, tmp_path)
    assert first == second and "worker 1 has a gradient that is infinite or NaN" in first


def left_out(rank):
    """What is logged on this rank."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("thinwire").addHandler(handler)
    try:
        model = tiny_gpt()
        optimizer = thinwire.ZeroOneAdam(model.parameters(), non_finite="skip")
        for step in range(14):
            optimizer.zero_grad()
            (model.loss(step) * (float("nan") if rank == 1 and step >= 3 else 1.0)).backward()
            optimizer.step()
    finally:
        logging.getLogger("thinwire").removeHandler(handler)
    return lines


def test_a_rank_that_is_left_out_says_so_at_the_first_and_the_tenth_time():
    one, two = ranks.run(2, left_out)
    gradient = "the gradient of worker 1 is infinite or NaN and is left out of the mean; so far in"
    assert one == [] and two == [f"step 3: {gradient} 1 of its steps", f"step 12: {gradient} 10 of its steps"]


def spikes(rank, rule):
    """What is logged on this rank, and what it counts."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("thinwire").addHandler(handler)
    try:
        param = torch.nn.Parameter(torch.zeros(8))
        optimizer = thinwire.AdamW([param], lr=1e-3, outlier=rule)
        for step in range(30):
            param.grad = torch.full((8,), 1e6 if rank == 1 and step in (20, 25) else 1.0)
            optimizer.step()
    finally:
        logging.getLogger("thinwire").removeHandler(handler)
    traffic = optimizer.traffic()
    return lines, traffic["outliers"], traffic["first_outlier"]


@pytest.mark.parametrize("rule, done", [("clip", "clipped"), ("skip", "left out of the mean")])
def test_an_outlier_is_counted_and_told_once_by_its_rank(rule, done):
    one, two = ranks.run(2, spikes, rule)
    assert one == ([], 0, None)
    lines, count, first = two
    assert count == 2 and first["step"] == 20 and first["norm"] == pytest.approx(8**0.5 * 1e6)
    assert first["limit"] == pytest.approx(8**0.5 * 100)
    (line,) = lines
    assert line.startswith(f"step 20: the gradient of worker 1 is an outlier and is {done}: its norm is")
    assert "100 times the median" in line


def ends_at_once(rank):
    """Nobody waits for anybody at the end: the last messages must still arrive."""
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    for step in range(3):
        step_of(model, optimizer, step)
    if rank == 1:
        time.sleep(1)  # it is slower than the others
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
        time.sleep(1)  # the other's step takes that long
    before = counted[0]
    step_of(model, optimizer)
    after = counted[0]
    stop.set()
    counter.join()
    return after - before


def test_other_threads_run_during_a_step():
    assert ranks.run(2, other_thread)[0] > 20
