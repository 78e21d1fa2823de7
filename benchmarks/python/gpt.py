"""One rank of the comparison in `hosts`: a GPT of 4.9M parameters on Shakespeare's bytes, under one of five methods.

Rank and addresses come from HOST and HOSTS, as `benchmarks/network/hosts each` sets them. Rank 0 prints a line of JSON.
"""

import argparse
import gzip
import json
import math
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional

import thinwire

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/examples"))
from nanogpt import Gpt  # noqa: E402

LENGTH, BATCH, WIDTH, HEADS, LAYERS = 64, 4, 256, 8, 6
POWERSGD_FROM = 20  # before that its steps are DDP's own, as its authors have it


def batch(data: torch.Tensor, random: torch.Generator, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(data) - LENGTH - 1, (rows,), generator=random).tolist()
    tokens = torch.stack([data[start : start + LENGTH + 1] for start in starts])
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def build(method: str, model: nn.Module, lr: float, warmup: int, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """What computes the gradients, and what steps on them."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (0.9, 0.99)
    schedule = {"peak": lr, "warmup": warmup, "decay": "cosine", "steps": steps}
    if method == "ZeroOneAdam":
        return model, thinwire.ZeroOneAdam(groups, lr=lr, betas=betas, learning_rate=schedule)
    if method == "OneBitAdam":
        return model, thinwire.OneBitAdam(groups, lr=lr, betas=betas, warmup=steps // 5)
    # PowerSGD's callbacks start collectives of their own. With several buckets it aborts over gloo: a mismatch, most likely of their order.
    one_bucket = {"bucket_cap_mb": 100} if method == "DDP+AdamW, PowerSGD" else {}
    wrapped = nn.parallel.DistributedDataParallel(model, **one_bucket)
    if method == "DDP+AdamW, fp16 hook":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method == "DDP+AdamW, PowerSGD":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=POWERSGD_FROM)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return wrapped, torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("method")
    arguments.add_argument("--steps", type=int, default=200, help="of the schedule")
    arguments.add_argument("--stop", type=int, help="after so many steps")
    arguments.add_argument("--lr", type=float, default=1e-3)
    options = arguments.parse_args()
    rank, hosts = int(os.environ["HOST"]), os.environ["HOSTS"].split(",")
    warmup, stop = options.steps // 10, options.stop or options.steps

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{hosts[0]}:29400", rank=rank, world_size=len(hosts), timeout=timedelta(minutes=10))
    text = gzip.open(ROOT / "crates/thinwire-models/data/shakespeare.txt.gz").read()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    train, held_out = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]
    torch.manual_seed(0)
    model = Gpt(256, LENGTH, WIDTH, HEADS, LAYERS)
    learner, optimizer = build(options.method, model, options.lr, warmup, options.steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda t: min((t + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * max(0, t - warmup) / (options.steps - warmup))),
    )
    random = torch.Generator().manual_seed(1 + rank)
    times, computing = [], 0.0
    for _ in range(stop):
        began = time.perf_counter()
        tokens, targets = batch(train, random, BATCH)
        optimizer.zero_grad()
        loss_of(learner, tokens, targets).backward()
        computing += time.perf_counter() - began
        optimizer.step()
        scheduler.step()
        times.append(time.perf_counter() - began)
    if isinstance(optimizer, (thinwire.ZeroOneAdam, thinwire.OneBitAdam)):
        optimizer.sync()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        losses = [loss_of(model, *batch(held_out, random, 16)).item() for _ in range(20)]
    dist.barrier()
    if rank == 0:
        found = {
            "method": options.method,
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": stop,
            "seconds": times,
            "forward_and_backward": computing / stop,
            "held_out_loss": sum(losses) / len(losses),
        }
        if hasattr(optimizer, "traffic"):
            found["rounds"] = optimizer.traffic()["rounds"]
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
