"""0/1 Adam in Lightning, by its ordinary hooks.

    torchrun --nproc-per-node 2 examples/lightning_module.py

The processes are started as for DDP, and nothing is wrapped: the optimizer averages. Needs lightning.
"""

import logging
import math
import os

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn import functional

import thinwire

STEPS, WARMUP, LR = 80, 8, 1e-2


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
        optimizer = thinwire.ZeroOneAdam(self.parameters(), lr=LR, learning_rate=schedule)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: min((t + 1) / WARMUP, 0.5 + 0.5 * math.cos(math.pi * max(0, t - WARMUP) / (STEPS - WARMUP)))
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_end(self) -> None:
        self.optimizers().optimizer.sync()  # all replicas are now the same bits


def rows(count: int, seed: int) -> torch.utils.data.DataLoader:
    values = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(values), batch_size=32)


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    lightning.seed_everything(0)  # every rank starts from the same parameters
    module = Halves()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=Replicas(process_group_backend="gloo"),
        max_steps=STEPS,
        max_epochs=-1,
        enable_checkpointing=False,  # Lightning keeps rank 0's state alone; optimizer.save(dir) keeps all
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    before = module.loss(next(iter(rows(256, 3)))[0]).item()
    trainer.fit(module, rows(5120, 1), rows(64, 2))
    after = module.loss(next(iter(rows(256, 3)))[0]).item()
    totals = [None] * trainer.world_size
    dist.all_gather_object(totals, sum(p.detach().double().sum().item() for p in module.parameters()))
    assert len(set(totals)) == 1 and after < 0.7 * before
    if trainer.global_rank == 0:
        print(f"Lightning on {trainer.world_size} ranks: loss {before:.2f} -> {after:.2f}")


if __name__ == "__main__":
    main()
