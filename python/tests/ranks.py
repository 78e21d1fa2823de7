"""Processes that train together on gloo, for tests.

They are forked from a server that has PyTorch loaded, and serve one test after the other, each with a process group of its own: so a
test with four ranks costs neither four imports nor four starts. A test that a rank may not survive gets processes for itself.
"""

import datetime
import gc
import multiprocessing
import traceback

import torch
import torch.distributed as dist

PATIENCE = 120  # seconds before a test that hangs is a test that fails

_processes = multiprocessing.get_context("forkserver")
# PyTorch loads its compiler with the first optimizer of a process, which takes seconds.
_processes.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "thinwire.optim", "thinwire._wire"]
)
_stores = []  # for as long as the ranks that use them
_pool = []


def run(n, work, *arguments, allowed=()):
    """What `work(rank, *arguments)` returns on each of `n` ranks.

    An exception on a rank fails the test, unless it is of a type in `allowed`: then it is what the rank returns. A rank that ends
    without a word returns its exit code.
    """
    if allowed:
        return collect(start(n, work, *arguments), allowed)
    while len(_pool) < n:
        _pool.append(_spawn())
    ranks = _pool[:n]
    _pool[:n] = []  # back only if all goes well
    ends = _hear(_begin(ranks, True, work, arguments))
    values = _values(ends, ())
    for _, pipe in ranks:
        pipe.send("done")
    _pool[:0] = ranks
    return values


def start(n, work, *arguments):
    """`n` ranks of their own that do `work` and end at once, each by itself; `collect` waits for them."""
    return _begin([_spawn() for _ in range(n)], False, work, arguments)


def collect(ranks, allowed=()):
    ends = []
    try:
        ends = _hear(ranks)
    finally:
        for process, _ in ranks:
            process.join(PATIENCE if ends and not any(kind == "hangs" for kind, _ in ends) else 0.5)
            process.kill()
    return _values(ends, allowed)


def _spawn():
    mine, theirs = _processes.Pipe()
    process = _processes.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, mine


def _begin(ranks, stay, work, arguments):
    # As under torchrun, the store belongs to none of the ranks.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _stores.append(store)
    for rank, (_, pipe) in enumerate(ranks):
        pipe.send((stay, rank, len(ranks), store.port, work, arguments))
    return ranks


def _hear(ranks):
    ends = []
    for process, pipe in ranks:
        try:
            ends.append(pipe.recv() if pipe.poll(PATIENCE) else ("hangs", None))
        except EOFError:
            process.join(PATIENCE)
            ends.append(("exit", process.exitcode))
    return ends


def _values(ends, allowed):
    for rank, (kind, value) in enumerate(ends):
        assert kind != "hangs", f"rank {rank} hangs"
        if kind == "error" and not isinstance(value[0], tuple(allowed)):
            raise AssertionError(f"rank {rank}:\n{value[1]}")
    return [value[0] if kind == "error" else value for kind, value in ends]


def _serve(pipe):
    """A rank's process: one piece of work after the other, until nobody has any."""
    torch.set_num_threads(1)
    try:
        while True:
            stay, rank, n, port, work, arguments = pipe.recv()
            try:
                store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=PATIENCE))
                dist.init_process_group("gloo", store=store, rank=rank, world_size=n)
                pipe.send(("value", work(rank, *arguments)))
            except BaseException as error:
                pipe.send(("error", (error.with_traceback(None), traceback.format_exc())))
            if not stay:
                return
            pipe.recv()  # all are done
            gc.collect()  # optimizers that a scheduler holds in a ring, and their wires
            if dist.is_initialized():
                dist.destroy_process_group()
            del store, work, arguments
    except EOFError:
        pass
