"""Pre-training in the manner of torchtitan: a configuration, a device mesh, FSDP2 inside a host, Thinwire across hosts, and checkpoints of
the whole job by torch.distributed.checkpoint.

The network is a small transformer over bytes, and the "hosts" are groups of processes on one machine:

    torchrun --nproc-per-node 4 examples/pretrain.py DIR    # trains, and saves to DIR every 20 steps
    rm -r DIR/step-40                                       # as if it had been killed before
    torchrun --nproc-per-node 4 examples/pretrain.py DIR    # goes on from step 20, and ends with the same bits
"""

import argparse
import os
import pathlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import thinwire


@dataclass
class Job:
    """What torchtitan reads from a TOML file."""

    folder: str
    shards: int = 2  # ranks of one replica: those of a host
    steps: int = 60
    warmup: int = 6
    lr: float = 3e-3
    clip: float = 1.0
    batch: int = 4
    accumulate: int = 2  # backward passes to a step
    context: int = 32
    width: int = 48
    layers: int = 2
    save_every: int = 20


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unsqueeze(1) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        x = x + self.out(functional.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1))
        return x + self.narrow(functional.gelu(self.wide(self.norm_after(x))))


class Transformer(nn.Module):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, job.width), nn.Embedding(job.context, job.width)
        self.blocks = nn.ModuleList(Block(job.width) for _ in range(job.layers))
        self.norm, self.head = nn.LayerNorm(job.width), nn.Linear(job.width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.bytes(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def parallelize(model: Transformer, inside: DeviceMesh) -> None:
    """FSDP2 over the ranks of a host, block by block; it never sees the slow dimension."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=inside, mp_policy=policy)
    fully_shard(model, mesh=inside, mp_policy=policy)


class Batches(Stateful):
    """Every rank's own part of a text, and where it is in it."""

    def __init__(self, job: Job, rank: int) -> None:
        self.text = torch.frombuffer(bytearray(pathlib.Path(__file__).read_bytes()), dtype=torch.uint8).long()
        self.job, self.rank, self.drawn = job, rank, 0

    def next(self) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(1_000_003 * self.rank + self.drawn)
        self.drawn += 1
        starts = torch.randint(len(self.text) - self.job.context - 1, (self.job.batch,), generator=random)
        rows = torch.stack([self.text[start : start + self.job.context + 1] for start in starts.tolist()])
        return rows[:, :-1], rows[:, 1:]

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.drawn = state["drawn"]


class Trainer(Stateful):
    """The job on one rank. Its state is that of the model, the optimizer, the schedule and the data."""

    def __init__(self, job: Job) -> None:
        self.job, self.rank = job, dist.get_rank()
        replicas = dist.get_world_size() // job.shards
        self.mesh = init_device_mesh("cpu", (replicas, job.shards), mesh_dim_names=("across", "inside"))
        torch.manual_seed(0)
        self.model = Transformer(job)
        parallelize(self.model, self.mesh["inside"])
        self.optimizer = thinwire.ZeroOneAdam(
            self.model.parameters(), lr=job.lr, clip=job.clip, process_group=self.mesh["across"],
            freeze=30, variance_gap=4, sync_every=2,  # a run of 60 steps is too short for the defaults
        )  # fmt: skip
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min((step + 1) / job.warmup, 1.0))
        self.batches = Batches(job, self.rank)
        self.step = 0

    def state_dict(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        # Every rank draws its own batches, and a checkpoint keeps one value for each name.
        own = {f"batches of rank {self.rank}": self.batches.state_dict()}
        return {"model": model, "optimizer": optimizer, "schedule": self.schedule.state_dict(), "step": self.step, **own}

    def load_state_dict(self, state: dict) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.batches.load_state_dict(state[f"batches of rank {self.rank}"])
        self.step = state["step"]

    def train_step(self) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for number in range(self.job.accumulate):
            self.model.set_requires_gradient_sync(number == self.job.accumulate - 1)
            tokens, following = self.batches.next()
            loss = functional.cross_entropy(self.model(tokens).float().flatten(0, 1), following.flatten()) / self.job.accumulate
            loss.backward()  # FSDP averages inside the replica
            total += loss.item()
        self.optimizer.step()  # Thinwire averages across replicas, and clips
        self.schedule.step()
        self.step += 1
        return total

    def latest(self) -> str | None:
        """The last checkpoint that was written to its end."""
        found = pathlib.Path(self.job.folder).glob("step-*/.metadata")
        steps = sorted(int(path.parent.name.removeprefix("step-")) for path in found)
        return os.path.join(self.job.folder, f"step-{steps[-1]}") if steps else None

    def train(self) -> None:
        latest = self.latest()
        dist.barrier()  # before anybody writes
        if latest is not None:
            checkpoint.load({"job": self}, checkpoint_id=latest)
        first, losses = self.step, []
        while self.step < self.job.steps:
            losses.append(self.train_step())
            if self.step % self.job.save_every == 0 and self.step < self.job.steps:
                checkpoint.save({"job": self}, checkpoint_id=os.path.join(self.job.folder, f"step-{self.step}"))
        self.optimizer.sync()
        self.report(first, losses)

    def report(self, first: int, losses: list[float]) -> None:
        """Checks what this example shows: replicas are equal, the network learns, and a run that was stopped ends like any other."""
        whole = torch.cat([param.full_tensor().flatten() for param in self.model.parameters()]).detach()
        replicas = [torch.empty_like(whole) for _ in range(self.mesh["across"].size())]
        dist.all_gather(replicas, whole, group=self.mesh["across"].get_group())
        assert all(torch.equal(replica, whole) for replica in replicas)
        assert losses[-1] < 4.2  # 5.5 at the start
        ended = pathlib.Path(self.job.folder, "parameters.pt")
        if first > 0:
            assert torch.equal(torch.load(ended), whole), "the run that was stopped ends elsewhere"
        dist.barrier()
        if self.rank == 0:
            torch.save(whole, ended)
            traffic = self.optimizer.traffic()
            print(f"steps {first} to {self.step}: loss {losses[0]:.2f} to {losses[-1]:.2f}, rounds across hosts {traffic['rounds']}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--shards", type=int, default=2)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Trainer(Job(**vars(parser.parse_args()))).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
