"""A coarse round of the optimizers over gloo against ``dist.all_reduce`` of the same float32 vector, on one machine.

    python gloo_round.py [--values 25000000] [--ranks 4] [--rounds 7]

The ranks are processes with one thread each, over the loopback device. Timed by turns in the same processes, each figure the slowest
rank's: the whole of `step()` in a coarse round of 1-bit Adam, which is two codings, the messages, and the update of momentum and
parameters; the bare sum of a vector of the same length; and that sum with what has to follow it, a step of
``torch.optim.AdamW(fused=True)``. The same round is then timed with threads for ranks, where a message changes hands without a copy:
what it costs beyond that is the transport's.
"""

import argparse
import os
import statistics
import threading
import time

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

import thinwire


def slowest(seconds):
    worst = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return worst.item()


def timed(work):
    dist.barrier()
    began = time.perf_counter()
    work()
    return slowest(time.perf_counter() - began)


def rank(rank, options):
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port)}
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.zeros(options.values))
    words = {"bucket": options.bucket} if options.bucket else {}
    optimizer = thinwire.OneBitAdam([param], lr=1e-4, warmup=1, **words)
    (param * torch.randn(options.values, generator=torch.Generator().manual_seed(rank))).sum().backward()
    vector = torch.zeros(options.values)
    optimizer.step()  # the exact one
    optimizer.step()
    other = torch.nn.Parameter(torch.zeros(options.values))
    other.grad = vector
    adamw = torch.optim.AdamW([other], lr=1e-4, fused=True)

    def all_reduce_and_step():
        dist.all_reduce(vector)
        adamw.step()

    all_reduce_and_step()
    coarse, exact, whole = [], [], []
    before = optimizer.traffic()
    for round in range(options.rounds):
        coarse.append(timed(optimizer.step))
        exact.append(timed(lambda: dist.all_reduce(vector)))
        whole.append(timed(all_reduce_and_step))
        if rank == 0:
            times = [f"{1e3 * times[-1]:.0f} ms" for times in (coarse, exact, whole)]
            print(f"round {round}: step with a coarse round {times[0]}, all_reduce {times[1]}, with a step of AdamW {times[2]}", flush=True)
    after = optimizer.traffic()
    assert after["rounds"]["coarse"] - before["rounds"]["coarse"] == options.rounds
    if rank == 0:
        phases = {key: (after["seconds"][key] - value) / options.rounds for key, value in before["seconds"].items()}
        print("rank 0's round, ms by phase:", ", ".join(f"{key} {value * 1e3:.0f}" for key, value in phases.items()))
        sent = (after["bytes_sent"] - before["bytes_sent"]) / options.rounds
        print(f"each rank sent {sent / 1e6:.2f} MB a round, all_reduce about {8e-6 * options.values * (1 - 1 / options.ranks):.0f} MB")
        print(f"{options.values:,} values, {options.ranks} ranks on {os.cpu_count()} cores, medians of {options.rounds}:")
        print(f"  step with a coarse round over gloo      {1e3 * statistics.median(coarse):6.0f} ms")
        for what, times in (("all_reduce alone", exact), ("all_reduce and a step of fused AdamW", whole)):
            ratio = [slow / fast for slow, fast in zip(times, coarse, strict=True)]
            figures = f"{statistics.median(ratio):.2f} times as long ({min(ratio):.2f} to {max(ratio):.2f})"
            print(f"  {what:38s}  {1e3 * statistics.median(times):6.0f} ms, {figures}", flush=True)
    dist.destroy_process_group()


def on_threads(options):
    """The same steps in one process."""
    barrier, taken = threading.Barrier(options.ranks), []

    def work(end):
        grad = numpy.random.default_rng(end.rank).standard_normal(options.values, dtype=numpy.float32)
        params = numpy.zeros(options.values, numpy.float32)
        worker = thinwire.Worker("one-bit-adam", parameters=params, group=end, warmup=1)
        for round in range(options.rounds + 2):
            barrier.wait()
            began = time.perf_counter()
            worker.step(params, grad, 1e-4)
            barrier.wait()
            if end.rank == 0 and round >= 2:
                taken.append(time.perf_counter() - began)

    workers = [threading.Thread(target=work, args=(end,)) for end in thinwire.local_group(options.ranks)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    print(f"  step with a coarse round on threads     {1e3 * statistics.median(taken):6.0f} ms")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--values", type=int, default=25_000_000)
    arguments.add_argument("--ranks", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--bucket", type=int, default=0)
    arguments.add_argument("--port", type=int, default=29411)
    options = arguments.parse_args()
    processes.spawn(rank, (options,), options.ranks)
    on_threads(options)
