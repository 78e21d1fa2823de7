"""A coarse round of the optimizers over gloo against ``dist.all_reduce`` of the same float32 vector, on one machine.

    python gloo_round.py [--values 25000000] [--ranks 4] [--rounds 7]

The ranks are processes with one thread each, over the loopback device. What is timed is the whole of `step()` in a coarse round of
1-bit Adam: two codings, the messages, and the update of momentum and parameters, against the bare sum of a vector of the same length.
Both are measured by turns in the same processes; each figure is the slowest rank's.
"""

import argparse
import os
import statistics
import time

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
    param.grad = torch.randn(options.values, generator=torch.Generator().manual_seed(rank))
    vector = torch.zeros(options.values)
    optimizer.step()  # the exact one
    optimizer.step()
    dist.all_reduce(vector)
    coarse, exact = [], []
    before = optimizer.traffic()
    for round in range(options.rounds):
        coarse.append(timed(optimizer.step))
        exact.append(timed(lambda: dist.all_reduce(vector)))
        if rank == 0:
            print(f"round {round}: coarse {coarse[-1] * 1e3:6.0f} ms, all_reduce {exact[-1] * 1e3:6.0f} ms", flush=True)
    after = optimizer.traffic()
    assert after["rounds"]["coarse"] - before["rounds"]["coarse"] == options.rounds
    if rank == 0:
        phases = {key: (after["seconds"][key] - value) / options.rounds for key, value in before["seconds"].items()}
        print("rank 0's round, ms by phase:", ", ".join(f"{key} {value * 1e3:.0f}" for key, value in phases.items()))
        sent = (after["bytes_sent"] - before["bytes_sent"]) / options.rounds
        print(f"each rank sent {sent / 1e6:.2f} MB a round, all_reduce about {8e-6 * options.values * (1 - 1 / options.ranks):.0f} MB")
        ratio = [slow / fast for slow, fast in zip(exact, coarse, strict=True)]
        print(
            f"{options.values:,} values, {options.ranks} ranks, medians of {options.rounds}: coarse round "
            f"{statistics.median(coarse) * 1e3:.0f} ms, all_reduce {statistics.median(exact) * 1e3:.0f} ms, "
            f"{statistics.median(ratio):.2f} times faster ({min(ratio):.2f} to {max(ratio):.2f})"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--values", type=int, default=25_000_000)
    arguments.add_argument("--ranks", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--bucket", type=int, default=0)
    arguments.add_argument("--port", type=int, default=29411)
    options = arguments.parse_args()
    processes.spawn(rank, (options,), options.ranks)
