"""Saves on some ranks, goes on with another number of them. Residues are conserved, nothing starts anew.

Start it, and it saves to DIR; start it again, and it goes on from there:

    torchrun --nproc-per-node 2 examples/resume.py DIR
    torchrun --nproc-per-node 3 examples/resume.py DIR
"""

import os
import sys

import torch
import torch.distributed as dist

import thinwire

folder = sys.argv[1]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
found = os.path.exists(os.path.join(folder, "manifest.json"))
dist.barrier()  # before anybody writes
optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-2, sync_every=4, variance_gap=8, resume=folder if found else None)

for step in range(100):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
    loss = (model(x) - x.prod(1, keepdim=True).tanh()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
optimizer.save(folder)  # between two syncs, if it so happens

with optimizer.consensus():
    total = sum(p.detach().double().sum() for p in model.parameters())
totals = [None] * size
dist.all_gather_object(totals, total.item())
assert len(set(totals)) == 1
if rank == 0:
    print(f"{size} ranks {'went on' if found else 'started'}, and saved; loss {loss.item():.3f}")
dist.destroy_process_group()
