"""0/1 Adam in Lightning, by its ordinary hooks; it saves, stops, and resumes bit for bit.

    torchrun --nproc-per-node 2 examples/lightning_module.py

The processes are started as for DDP, and nothing is wrapped: the optimizer averages. With the callback, checkpoints have the consensus as
their model, and validation sees it. Needs lightning.
"""

import logging
import math
import os
import tempfile

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn import functional

import thinwire
from thinwire.lightning import ThinwireCallback

STEPS, STOP, WARMUP, LR = 80, 70, 8, 1e-2


class Replicas(DDPStrategy):
    """DDP's processes without its averaging."""

    def configure_ddp(self) -> None:
        pass


class Halves(lightning.LightningModule):
    """Which half of a row has the larger sum of squares."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        left, right = rows.square().chunk(2, 1)
        return functional.cross_entropy(self.network(rows), (left.sum(1) < right.sum(1)).long())

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self.loss(batch[0])

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.log("held_out", self.loss(batch[0]), sync_dist=True)

    def configure_optimizers(self):
        schedule = {"peak": LR, "warmup": WARMUP, "decay": "cosine", "steps": STEPS}
        # freeze, sync_longest: by default so short a run has nothing but exact rounds.
        optimizer = thinwire.ZeroOneAdam(self.parameters(), lr=LR, schedule=schedule, freeze=32, sync_longest=16)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: min((t + 1) / WARMUP, 0.5 + 0.5 * math.cos(math.pi * max(0, t - WARMUP) / (STEPS - WARMUP)))
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def rows(count: int, seed: int) -> torch.utils.data.DataLoader:
    values = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(values), batch_size=32)


def fitted(folder: str, steps: int, checkpoint: str | None = None) -> tuple[lightning.Trainer, Halves]:
    lightning.seed_everything(0)  # every rank starts from the same parameters
    module = Halves()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=Replicas(process_group_backend="gloo"),
        max_steps=steps,
        max_epochs=-1,
        callbacks=[ThinwireCallback(), ModelCheckpoint(folder, "{step}", save_top_k=-1)],
        use_distributed_sampler=False,  # every rank has rows of its own; Lightning's sampler shuffles otherwise after a resume
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(module, rows(320, 10 + trainer.global_rank), rows(64, 2), ckpt_path=checkpoint)  # epochs of ten steps
    return trainer, module


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    held_out = next(iter(rows(256, 3)))[0]
    with tempfile.TemporaryDirectory() as folder:
        _, whole = fitted(os.path.join(folder, "whole"), STEPS)
        _, stopped = fitted(os.path.join(folder, "stopped"), STOP)
        shared = [os.path.join(folder, "stopped", f"step={STOP}.ckpt")]
        dist.broadcast_object_list(shared)  # rank 0's, where Lightning saves
        own = bits(stopped)
        with stopped.optimizers().optimizer.consensus():
            assert not torch.equal(own, bits(stopped))  # it is between two syncs
            saved = torch.load(shared[0], weights_only=True)["state_dict"]
            assert all(torch.equal(value, saved[name]) for name, value in stopped.state_dict().items())
        trainer, resumed = fitted(os.path.join(folder, "stopped"), STEPS, shared[0])
    assert torch.equal(bits(whole), bits(resumed))

    resumed.optimizers().optimizer.sync()  # all replicas are now the same bits
    lightning.seed_everything(0)
    before, after = Halves().loss(held_out).item(), resumed.loss(held_out).item()
    totals = [None] * trainer.world_size
    dist.all_gather_object(totals, bits(resumed).double().sum().item())
    assert len(set(totals)) == 1 and after < 0.7 * before
    if trainer.global_rank == 0:
        print(f"Lightning on {trainer.world_size} ranks: loss {before:.2f} -> {after:.2f}; resumed bit for bit")
    dist.destroy_process_group()  # gloo's threads must not outlive Python: a program that leaves them can abort at its end


def bits(module: nn.Module) -> torch.Tensor:
    return torch.cat([param.detach().flatten() for param in module.parameters()])


if __name__ == "__main__":
    main()
