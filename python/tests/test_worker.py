"""The engine on NumPy arrays."""

import copy
import os
import pickle
import signal
import threading

import numpy
import pytest
from engine import gradient, start, together, train

import thinwire

NAMES = ["adam", "one-bit-adam", "zero-one-adam", "efficient-adam"]
WORDS = {"zero-one-adam": {"sync_every": 4, "variance_gap": 8}, "one-bit-adam": {"warmup": 5}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_replicas_are_equal_after_a_sync(name, n):
    def work(end):
        params, worker = train(end, name, steps=23, **WORDS.get(name, {}))
        worker.sync(params)
        assert worker.is_synced and worker.steps == 23
        return params, worker.traffic()

    ends = together(n, work)
    for params, _ in ends:
        assert (params == ends[0][0]).all()
    assert numpy.abs(ends[0][0]).mean() < 0.5 * numpy.abs(start(1000)).mean()


def test_what_is_planned_is_what_is_sent():
    def work(end):
        params, worker = train(end, "zero-one-adam", steps=40, sync_every=4, variance_gap=8)
        return worker.plan(40), worker.traffic()

    for plan, traffic in together(3, work):
        assert plan["bytes_sent"] == traffic["bytes_sent"] > 0
        assert plan["rounds"] == traffic["rounds"]
        assert traffic["rounds"]["skipped"] > 0


def test_a_plan_for_another_schedule():
    worker = thinwire.Worker("zero-one-adam", parameters=1000)
    short = worker.plan(1000)
    cosine = worker.plan(1000, {"peak": 1e-3, "warmup": 100, "decay": "cosine", "steps": 1000})
    assert short["rounds"] != cosine["rounds"]
    assert cosine["memory"]["total"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_state_goes_on_bit_for_bit(name):
    words = WORDS.get(name, {})

    def first(end):
        params, worker = train(end, name, steps=10, **words)
        return params.copy(), pickle.loads(pickle.dumps(worker.state_dict()))

    halves = together(2, first)

    def second(end):
        params, state = halves[end.rank]
        worker = thinwire.Worker(name, parameters=len(params), group=end, **words)
        worker.load_state_dict(state)
        assert worker.steps == 10
        for step in range(10, 20):
            worker.step(params, gradient(params, worker.rank, step), 0.05)
        return params

    whole = together(2, lambda end: train(end, name, steps=20, **words)[0])
    for expected, resumed in zip(whole, together(2, second), strict=True):
        assert (expected == resumed).all()


def test_a_state_that_does_not_fit_is_refused():
    params, worker = train(thinwire.local_group(1)[0], "adam", d=10, steps=3)
    state = worker.state_dict()
    with pytest.raises(ValueError, match="betas was .* when the state was saved"):
        thinwire.Worker("adam", parameters=10, betas=(0.8, 0.9)).load_state_dict(state)
    with pytest.raises(ValueError, match="m: expected 11 values, found 10"):
        thinwire.Worker("adam", parameters=11).load_state_dict(state)
    with pytest.raises(ValueError, match="worker 0 of 2"):
        worker.load_state_dict({**state, "size": 2})
    with pytest.raises(ValueError, match="no v"):
        worker.load_state_dict({**state, "values": {k: v for k, v in state["values"].items() if k != "v"}})
    with pytest.raises(ValueError, match="not a state"):
        worker.load_state_dict({})


def test_a_checkpoint_goes_on_with_more_workers(tmp_path):
    def save(end):
        params, worker = train(end, "zero-one-adam", steps=10, sync_every=4)
        worker.save(tmp_path, params)

    together(2, save)

    def resume(end):
        params = numpy.zeros(1000, numpy.float32)
        worker = thinwire.Worker("zero-one-adam", parameters=1000, group=end, sync_every=4)
        worker.resume(tmp_path, params)
        assert worker.steps == 10
        for step in range(10, 20):
            worker.step(params, gradient(params, worker.rank, step), 0.05)
        worker.sync(params)
        return params

    ends = together(3, resume)
    assert all((params == ends[0]).all() for params in ends)


def test_rates_of_groups():
    groups = [{"length": 4}, {"length": 6}]
    scaled = [{"length": 4, "lr_scale": 0.5}, {"length": 6}]
    mine, theirs = start(10), start(10)
    by_rates = thinwire.Worker("adam", parameters=10, groups=groups)
    by_scale = thinwire.Worker("adam", parameters=10, groups=scaled)
    for step in range(5):
        by_rates.step(mine, gradient(mine, 0, step), 0.25, rates=[0.125, 0.25])
        by_scale.step(theirs, gradient(theirs, 0, step), 0.25)
    assert (mine == theirs).all()
    with pytest.raises(ValueError, match="one for each of the 2 parameter groups"):
        by_rates.step(mine, gradient(mine, 0, 0), 0.25, rates=[0.1])


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"kappa": 3}, "not an option of adam"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"betas": 0.9}, "betas"),
        ({"colour": "red"}, "colour: there is no such word; accepted: .*betas"),
        ({"weigth_decay": 0.1}, "weigth_decay: there is no such word; did you mean 'weight_decay'"),
        ({"groups": [{"length": 3}]}, "must add up to the 10 parameters"),
    ],
)
def test_words_that_do_not_fit(config, complaint):
    with pytest.raises(ValueError, match=complaint):
        thinwire.Worker("adam", parameters=10, **config)


def test_arrays_that_do_not_fit():
    worker = thinwire.Worker("adam", parameters=10)
    good, grad = numpy.zeros(10, numpy.float32), numpy.ones(10, numpy.float32)
    locked = good.copy()
    locked.flags.writeable = False
    unaligned = numpy.zeros(41, numpy.uint8)[1:].view(numpy.float32)
    for params, complaint in [
        (numpy.zeros(10), "must be float32, not float64"),
        (numpy.zeros(20, numpy.float32)[::2], "contiguous"),
        (numpy.zeros(9, numpy.float32), "params: expected 10 values, found 9"),
        (locked, "read-only"),
        (unaligned, "aligned"),
        (grad, "share memory"),
        (good.astype(">f4"), "must be float32"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            worker.step(params, grad, 0.1)
    with pytest.raises(TypeError, match="NumPy array"):
        worker.step([0.0] * 10, grad, 0.1)
    with pytest.raises(ValueError, match="lr = NaN"):
        worker.step(good, grad, float("nan"))
    worker.step(good, locked, 0.1)  # a gradient may be read-only
    assert worker.steps == 1 and (good == 0).all()


def test_empty_vectors_are_ordinary():
    worker = thinwire.Worker("zero-one-adam", parameters=0)
    worker.step(numpy.zeros(0, numpy.float32), numpy.zeros(0, numpy.float32), 0.1)
    assert worker.steps == 1


def test_a_gradient_that_is_not_finite():
    params, grad = start(10), numpy.full(10, numpy.nan, numpy.float32)
    with pytest.raises(FloatingPointError, match="worker 0 .* step 0"):
        thinwire.Worker("adam", parameters=10).step(params, grad, 0.1)
    skipping = thinwire.Worker("adam", parameters=10, non_finite="skip")
    skipping.step(params, grad, 0.1)
    assert skipping.traffic()["left_out"] == 1 and (params == start(10)).all()


def test_a_silent_worker_is_named():
    def work(end):
        if end.rank == 2:
            threading.Event().wait(1.5)
            return None
        with pytest.raises(TimeoutError, match="worker 2 did not answer within"):
            train(end, "adam", steps=1)

    together(3, work, deadline=0.5)


def test_a_worker_that_left_is_named():
    def work(end):
        worker = thinwire.Worker("adam", parameters=start(10), group=end)
        if worker.rank == 1:
            return  # and is dropped
        params = start(10)
        with pytest.raises(ConnectionError, match="worker 1 left"):
            worker.step(params, params.copy(), 0.1)

    ends = thinwire.local_group(2)
    threads = [threading.Thread(target=work, args=(end,)) for end in ends]
    [thread.start() for thread in threads]
    del ends
    [thread.join() for thread in threads]


def test_ctrl_c_is_heard_while_the_main_thread_waits():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background may have turned it off
    mine, theirs = thinwire.local_group(2)
    heard, interrupted = [], threading.Event()

    def other():
        worker = thinwire.Worker("adam", parameters=start(10), group=theirs)
        interrupted.wait(60)
        with pytest.raises((ConnectionError, RuntimeError)) as error:
            worker.step(start(10), start(10), 0.1)
        heard.append(str(error.value))

    thread = threading.Thread(target=other)
    thread.start()
    try:
        worker = thinwire.Worker("adam", parameters=start(10), group=mine)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            worker.step(start(10), start(10), 0.1)
    finally:
        interrupted.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert "worker 0 stopped the run: interrupted by the user" in heard[0]


def test_parameters_that_differ_are_found():
    def work(end):
        with pytest.raises((ValueError, RuntimeError), match="the parameters to start from"):
            thinwire.Worker("adam", parameters=start(10) + end.rank, group=end)

    together(2, work)


def test_the_interpreter_is_free_during_a_step():
    """A worker that waits for another lets Python go on; were it not so, this would wait for ever."""
    together(2, lambda end: train(end, "adam", d=10, steps=3))


def test_what_cannot_be_copied_says_so():
    worker = thinwire.Worker("adam", parameters=10)
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            way(worker)


def test_an_end_is_for_one_worker():
    end = thinwire.local_group(1)[0]
    thinwire.Worker("adam", parameters=1, group=end)
    with pytest.raises(RuntimeError, match="has a worker already"):
        thinwire.Worker("adam", parameters=1, group=end)
    with pytest.raises(ValueError, match="at least 1"):
        thinwire.local_group(0)
    with pytest.raises(ValueError, match="deadline"):
        thinwire.local_group(1, deadline=-1)


def test_a_worker_built_for_a_number_has_no_state_yet():
    with pytest.raises(RuntimeError, match="no state before its first step"):
        thinwire.Worker("adam", parameters=10).state_dict()


class Claims:
    """An object that claims memory, as whoever writes `__array_interface__` by hand may."""

    def __init__(self, address, shape):
        self.__array_interface__ = {"version": 3, "typestr": "<f4", "data": (address, False), "shape": shape}


@pytest.mark.parametrize(
    ("address", "shape"),
    [(0, (4,)), (4096, (2**32, 2**32)), (4096, (2**63, 2)), (4096, (2**62,)), (2**64 - 8, (16,))],
)
def test_memory_that_cannot_be_is_refused_before_it_is_read(address, shape):
    with pytest.raises(ValueError, match="no memory of the size"):
        thinwire._thinwire.Vector(Claims(address, shape))


def test_nothing_may_lie_anywhere():
    assert len(thinwire._thinwire.Vector(Claims(0, (0, 2**63, 2**63)))) == 0
