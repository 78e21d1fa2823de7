"""A character-level GPT in the manner of nanoGPT, trained data-parallel with 0/1 Adam.

    torchrun --nproc-per-node 4 examples/nanogpt.py              # on one machine
    torchrun --nnodes 4 --node-rank I --master-addr HOST examples/nanogpt.py   # on four

Lines marked `-` are what the same program has with DDP and AdamW, lines marked `+` what stands here instead. With `--checkpoint FILE`
rank 0 saves all there is to one file after `--stop` steps, and the next start with that file goes on from it; `--check` does both, and
compares the end with that of a run that was never stopped, bit for bit.
"""

import argparse
import math
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import thinwire  # +

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. " * 20


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.attention(self.first(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.mlp(self.second(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int = 32, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places.weight[: tokens.shape[1]])))


def train(options: argparse.Namespace, checkpoint: str | None = None, stop: int | None = None) -> nn.Module:
    warmup, length, batch = options.steps // 10, 32, 8
    rank, size = dist.get_rank(), dist.get_world_size()
    text = open(options.text).read() if options.text else TEXT
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])

    torch.manual_seed(0)  # every rank starts from the same parameters; the optimizer checks it
    model = Gpt(len(letters), length)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    # - model = nn.parallel.DistributedDataParallel(model)
    # - optimizer = torch.optim.AdamW(groups, lr=options.lr)
    schedule = {"peak": options.lr, "warmup": warmup, "decay": "cosine", "steps": options.steps}  # +
    optimizer = thinwire.ZeroOneAdam(groups, lr=options.lr, schedule=schedule)  # +
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda t: min((t + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * max(0, t - warmup) / (options.steps - warmup))),
    )
    first = 0
    if checkpoint is not None and os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # each rank finds its own part, parameters included
        scheduler.load_state_dict(saved["scheduler"])
        first, stop = saved["step"], None

    losses = []
    for step in range(first, options.steps if stop is None else stop):
        random = torch.Generator().manual_seed(step * size + rank)  # every rank has batches of its own
        starts = torch.randint(len(data) - length - 1, (batch,), generator=random).tolist()
        rows = torch.stack([data[start : start + length + 1] for start in starts])
        loss = functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        # - nn.utils.clip_grad_norm_(model.parameters(), 1.0), or clip=1.0 for the optimizer
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())

    if stop is not None and checkpoint is not None:
        optimizer.consolidate_state_dict()  # + rank 0 now has the states of all ranks
        with optimizer.consensus():  # + the model in the file is the consensus
            if rank == 0:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
                torch.save({**states, "step": stop}, checkpoint)
        dist.barrier()
        return model
    optimizer.sync()  # + all replicas are now the same bits
    sent, adam = optimizer.traffic()["bytes_sent"], 2 * 4 * sum(p.numel() for p in model.parameters()) * len(losses) * (size - 1) // size
    if rank == 0 and losses:
        print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} on {size} ranks, steps {first} to {options.steps}")
        print(f"each sent {sent:,} bytes, AdamW would have sent {adam:,}")
    assert first or losses[-1] < 0.8 * losses[0]
    return model


def check(options: argparse.Namespace) -> None:
    """A run that stops and goes on ends where one does that never stopped."""
    whole = train(options)
    with tempfile.TemporaryDirectory() as folder:
        shared = [os.path.join(folder, "checkpoint.pt")]
        dist.broadcast_object_list(shared)  # rank 0's
        train(options, shared[0], options.stop)
        resumed = train(options, shared[0])
        dist.barrier()
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    if dist.get_rank() == 0:
        print(f"stopped after {options.stop} steps, and resumed bit for bit from rank 0's file")


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--lr", type=float, default=3e-3)
    arguments.add_argument("--text", help="a file to learn from")
    arguments.add_argument("--checkpoint", help="a file to go on from, if it is there")
    arguments.add_argument("--stop", type=int, help="save to it after so many steps")
    arguments.add_argument("--check", action="store_true", help="compare with a run that never stopped")
    options = arguments.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))))
    check(options) if options.check else train(options, options.checkpoint, options.stop)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
