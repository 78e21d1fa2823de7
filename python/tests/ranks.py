"""Processes that train together on gloo, for tests.

They are forked from a server that has PyTorch loaded, so that a test with four ranks costs no four imports.
"""

import datetime
import multiprocessing
import traceback

import torch
import torch.distributed as dist

PATIENCE = 120  # seconds before a test that hangs is a test that fails

_processes = multiprocessing.get_context("forkserver")
# PyTorch loads its compiler with the first optimizer of a process, which takes seconds.
_processes.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed", "thinwire.optim", "thinwire._wire"])
_stores = []  # for as long as the ranks that use them


def run(n, work, *arguments, allowed=()):
    """What `work(rank, *arguments)` returns on each of `n` ranks.

    An exception on a rank fails the test, unless it is of a type in `allowed`: then it is what the rank returns. A rank that ends
    without a word returns its exit code.
    """
    return collect(start(n, work, *arguments), allowed)


def start(n, work, *arguments):
    # As under torchrun, the store belongs to none of the ranks.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _stores.append(store)
    ranks = []
    for rank in range(n):
        mine, theirs = _processes.Pipe()
        process = _processes.Process(target=_rank, args=(theirs, rank, n, store.port, work, arguments), daemon=True)
        process.start()
        theirs.close()
        ranks.append((process, mine))
    return ranks


def collect(ranks, allowed=()):
    ends = []
    try:
        for process, pipe in ranks:
            try:
                ends.append(pipe.recv() if pipe.poll(PATIENCE) else ("hangs", None))
            except EOFError:
                process.join(PATIENCE)
                ends.append(("exit", process.exitcode))
    finally:
        for process, _ in ranks:
            process.join(0.5 if any(kind == "hangs" for kind, _ in ends) else PATIENCE)
            process.kill()
    for rank, (kind, value) in enumerate(ends):
        assert kind != "hangs", f"rank {rank} hangs"
        if kind == "error" and not isinstance(value[0], tuple(allowed)):
            raise AssertionError(f"rank {rank}:\n{value[1]}")
    return [value[0] if kind == "error" else value for kind, value in ends]


def _rank(pipe, rank, n, port, work, arguments):
    torch.set_num_threads(1)
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=PATIENCE))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=n)
        pipe.send(("value", work(rank, *arguments)))
    except BaseException as error:
        pipe.send(("error", (error.with_traceback(None), traceback.format_exc())))
    finally:
        pipe.close()
