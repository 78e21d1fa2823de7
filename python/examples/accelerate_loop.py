"""0/1 Adam in a training loop of Accelerate; it saves, stops, and resumes bit for bit.

    torchrun --nproc-per-node 2 examples/accelerate_loop.py

The model is prepared without DDP (`evaluation_mode=True`): the optimizer averages. `thinwire.accelerate.register` completes what
`save_state` writes: the optimizer states of all ranks, and the consensus as the model. Needs accelerate.
"""

import os
import tempfile

import safetensors.torch
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

import thinwire.accelerate

STEPS, STOP, WARMUP, LR = 60, 42, 6, 1e-2


class Run:
    """A model and what trains it, from the start or from a checkpoint."""

    def __init__(self, checkpoint: str | None = None) -> None:
        self.accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
        torch.manual_seed(0)  # every rank starts from the same parameters
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
        torch.manual_seed(1 + self.accelerator.process_index)  # every rank drops units of its own
        self.thin = thinwire.ZeroOneAdam(model.parameters(), lr=LR, sync_every=4, variance_gap=8)
        schedule = torch.optim.lr_scheduler.LambdaLR(self.thin, lambda t: min((t + 1) / WARMUP, 1 - t / STEPS))
        self.model = self.accelerator.prepare_model(model, evaluation_mode=True)
        self.optimizer, self.scheduler = self.accelerator.prepare(self.thin, schedule)
        thinwire.accelerate.register(self.accelerator, self.optimizer)  # before save_state
        if checkpoint is not None:
            self.accelerator.load_state(checkpoint)

    def train(self, until: int) -> float:
        """The last loss."""
        for step in range(self.scheduler.scheduler.last_epoch, until):
            random = torch.Generator().manual_seed(1000 * step + self.accelerator.process_index)
            inputs = torch.randn(32, 8, generator=random)
            loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
        return loss.item()

    def bits(self) -> torch.Tensor:
        return torch.cat([param.detach().flatten() for param in self.model.parameters()])


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        whole = Run()
        before, after = whole.train(1), whole.train(STEPS)

        shared = [folder]
        dist.broadcast_object_list(shared)  # rank 0's
        stopped = Run()
        stopped.train(STOP)
        stopped.accelerator.save_state(shared[0])
        stopped.accelerator.wait_for_everyone()
        own = stopped.bits()
        with stopped.thin.consensus():
            assert not torch.equal(own, stopped.bits())  # it is between two syncs
            saved = safetensors.torch.load_file(os.path.join(shared[0], "model.safetensors"))
            now = stopped.model.state_dict()
            assert saved.keys() == now.keys() and all(torch.equal(saved[name], now[name]) for name in now)

        resumed = Run(shared[0])
        resumed.train(STEPS)
        assert torch.equal(whole.bits(), resumed.bits())
        whole.thin.sync()  # all replicas are now the same bits
    assert after < 0.7 * before
    if whole.accelerator.is_main_process:
        print(f"Accelerate on {whole.accelerator.num_processes} ranks: loss {before:.2f} -> {after:.2f}; resumed bit for bit")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
