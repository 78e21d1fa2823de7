"""FSDP2 inside a host, Thinwire across hosts: each rank holds a part of the model, and trains it with its counterparts on other hosts.

Here the "hosts" are groups of processes on one machine. Start it, and it saves to DIR by torch.distributed.checkpoint; start it again,
sharded otherwise, and it goes on from there:

    torchrun --nproc-per-node 4 examples/fsdp2.py DIR --shards 2
    torchrun --nproc-per-node 4 examples/fsdp2.py DIR --shards 4
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire

STEPS = 60
LOSS_AT_FIRST = 0.8  # about, of the network as it is built: a run that goes on must begin below


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--shards", type=int, default=2, help="ranks that hold one replica of the model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    found = os.path.exists(os.path.join(arguments.folder, ".metadata"))
    dist.barrier()  # before anybody writes

    # Two dimensions: a replica is cut over "inside", and FSDP never sees "across", where the slow network is.
    mesh = init_device_mesh("cpu", (size // arguments.shards, arguments.shards), mesh_dim_names=("across", "inside"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 5))
    for layer in model:
        fully_shard(layer, mesh=mesh["inside"])
    fully_shard(model, mesh=mesh["inside"])
    optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=3e-3, process_group=mesh["across"], sync_every=2, variance_gap=4, clip=5.0)

    if found:
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        checkpoint.load(state, checkpoint_id=arguments.folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    first = optimizer.state_dict()["state"][0]["thinwire"]["step"]
    assert first == (STEPS if found else 0)
    truth = torch.randn(20, 5, generator=torch.Generator().manual_seed(7))
    losses = []
    for step in range(first, first + STEPS):
        x = torch.randn(32, 20, generator=torch.Generator().manual_seed(1000 * step + rank))  # every rank has data of its own
        loss = torch.nn.functional.mse_loss(model(x), torch.tanh(x @ truth))
        optimizer.zero_grad()
        loss.backward()  # FSDP averages inside the replica
        optimizer.step()  # Thinwire averages across replicas
        losses.append(loss.item())
    optimizer.sync()

    if not found:
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        checkpoint.save(state, checkpoint_id=arguments.folder)

    # The replicas are equal to the bit, and each rank has sent what belongs to its own part.
    whole = torch.cat([param.full_tensor().flatten() for param in model.parameters()]).detach()
    replicas = [torch.empty_like(whole) for _ in range(mesh["across"].size())]
    dist.all_gather(replicas, whole, group=mesh["across"].get_group())
    assert all(torch.equal(replica, whole) for replica in replicas)
    mine = sum(param.to_local().numel() for param in model.parameters())
    assert mine <= whole.numel() / arguments.shards * 1.2
    assert losses[-1] < 0.5 * LOSS_AT_FIRST
    assert not found or losses[0] < 0.5 * LOSS_AT_FIRST
    rounds = optimizer.traffic()["rounds"]
    if rank == 0:
        print(
            f"{'went on' if found else 'started'} with {mesh['across'].size()} replicas of {arguments.shards} shards: {mine} of "
            f"{whole.numel()} parameters here, loss {losses[0]:.3f} to {losses[-1]:.3f}, rounds {rounds}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
