"""A coarse round over gloo against ``dist.all_reduce`` of the same float32 vector, on one machine.

    python gloo_round.py [--values 25000000] [--ranks 4] [--rounds 9] [--residue bf16]

The ranks are processes with one thread each, over the loopback device. Timed by turns in the same processes, each figure the slowest
rank's, are two pairs:

- the round alone: the coarse mean of a vector, in place, by the optimizers' own exchange, codecs, residues and transport (``Mean``);
  and ``dist.all_reduce``, the sum of the same vector, in place;
- the whole step: ``step()`` of 1-bit Adam with such a round in it; and that all_reduce with what has to follow it, a step of
  ``torch.optim.AdamW(fused=True)``.

The same step is then timed with threads for ranks, where a message changes hands without a copy: what it costs beyond that is the
transport's.
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
from thinwire._thinwire import Mean, wire_group
from thinwire._wire import Wire

DEADLINE = 300.0  # seconds
WARM_UP = 8  # rounds in which connections are made, and every buffer of the transport is used for the first time


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
    words = {"residue": options.residue} | ({"bucket": options.bucket} if options.bucket else {})
    values = torch.randn(options.values, generator=torch.Generator().manual_seed(rank))
    param = torch.nn.Parameter(torch.zeros(options.values))
    optimizer = thinwire.OneBitAdam([param], lr=1e-4, warmup=1, **words)
    (param * values).sum().backward()
    group = wire_group(Wire(dist.group.WORLD, DEADLINE), DEADLINE)
    mean, vector = Mean(options.values, group, **words), values.clone()
    other = torch.nn.Parameter(torch.zeros(options.values))
    other.grad = values.clone()
    adamw = torch.optim.AdamW([other], lr=1e-4, fused=True)

    def coarse_mean():
        mean.take(vector)

    def all_reduce():
        dist.all_reduce(vector)

    def all_reduce_and_step():
        dist.all_reduce(other.grad)
        adamw.step()

    works = {
        "coarse round": coarse_mean,
        "all_reduce": all_reduce,
        "step with a coarse round": optimizer.step,
        "all_reduce and a step of fused AdamW": all_reduce_and_step,
    }
    optimizer.step()  # the exact one
    taken = {what: [] for what in works}
    before = {}
    for round in range(-WARM_UP, options.rounds):
        if round == 0:
            before = {"coarse round": mean.traffic(), "step with a coarse round": optimizer.traffic()}
        for what, work in works.items():
            vector.copy_(values)  # sums of sums would overflow
            other.grad.copy_(values)
            seconds = timed(work)
            if round >= 0:
                taken[what].append(seconds)
        if rank == 0 and round >= 0:
            print(f"round {round}: " + ", ".join(f"{what} {1e3 * times[-1]:.0f} ms" for what, times in taken.items()), flush=True)
    after = {"coarse round": mean.traffic(), "step with a coarse round": optimizer.traffic()}
    for what in after:
        assert after[what]["rounds"]["coarse"] - before[what]["rounds"]["coarse"] == options.rounds
    if rank == 0:
        show(options, taken, before, after)
    dist.destroy_process_group()


def show(options, taken, before, after):
    for what in after:
        phases = {key: (after[what]["seconds"][key] - value) / options.rounds for key, value in before[what]["seconds"].items()}
        print(f"rank 0's {what}, ms by phase:", ", ".join(f"{key} {value * 1e3:.0f}" for key, value in phases.items()))
    sent = (after["coarse round"]["bytes_sent"] - before["coarse round"]["bytes_sent"]) / options.rounds
    print(f"each rank sent {sent / 1e6:.2f} MB a round, all_reduce about {8e-6 * options.values * (1 - 1 / options.ranks):.0f} MB")
    print(f"{options.values:,} values, {options.ranks} ranks on {os.cpu_count()} cores, PyTorch {torch.__version__}")
    print(f"ms, median of {options.rounds}:")
    pairs = [("coarse round", "all_reduce"), ("step with a coarse round", "all_reduce and a step of fused AdamW")]
    for ours, theirs in [*pairs, (pairs[1][0], pairs[0][1])]:
        ratio = [slow / fast for slow, fast in zip(taken[theirs], taken[ours], strict=True)]
        figures = [f"{what} {1e3 * statistics.median(taken[what]):.0f}" for what in (ours, theirs)]
        speed = f"{statistics.median(ratio):.2f} times as fast ({min(ratio):.2f} to {max(ratio):.2f})"
        print(f"  {', '.join(figures)}: {speed}", flush=True)


def on_threads(options):
    """The same steps in one process."""
    barrier, taken = threading.Barrier(options.ranks), []

    def work(end):
        grad = numpy.random.default_rng(end.rank).standard_normal(options.values, dtype=numpy.float32)
        params = numpy.zeros(options.values, numpy.float32)
        worker = thinwire.Worker("one-bit-adam", parameters=params, group=end, warmup=1, residue=options.residue)
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
    print(f"  step with a coarse round on threads {1e3 * statistics.median(taken):.0f}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--values", type=int, default=25_000_000)
    arguments.add_argument("--ranks", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--bucket", type=int, default=0)
    arguments.add_argument("--residue", choices=["f32", "bf16"], default="f32")
    arguments.add_argument("--port", type=int, default=29411)
    options = arguments.parse_args()
    processes.spawn(rank, (options,), options.ranks)
    on_threads(options)
