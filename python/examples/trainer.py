"""0/1 Adam in Hugging Face's Trainer, by its ordinary hooks; it saves, stops, and resumes bit for bit.

    torchrun --nproc-per-node 2 examples/trainer.py

Trainer wraps the model in DDP by itself; `no_sync` keeps that from averaging what the optimizer averages. The callback completes its
checkpoints: they have the optimizer states of all ranks, and the consensus as the model. Needs transformers and accelerate. The network
is GPT-2, tiny and untrained: nothing is downloaded.
"""

import os
import tempfile

import safetensors.torch
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

import thinwire
from thinwire.transformers import ThinwireCallback

STEPS, STOP, WARMUP, LR = 60, 42, 6, 3e-3


class ThinTrainer(Trainer):
    def create_optimizer(self, model=None):
        if self.optimizer is None:
            schedule = {"peak": LR, "warmup": WARMUP, "decay": "cosine", "steps": STEPS}
            # freeze, sync_longest: by default so short a run has nothing but exact rounds.
            self.optimizer = thinwire.ZeroOneAdam(self.model.parameters(), lr=LR, clip=1.0, schedule=schedule, freeze=24, sync_longest=16)
            self.thin = self.optimizer  # accelerate will put a wrapper around the other
        return self.optimizer

    def training_step(self, model, *arguments, **keywords):
        with model.no_sync():  # each rank's gradient stays its own
            return super().training_step(model, *arguments, **keywords)


class Stop(TrainerCallback):
    """As if the power failed."""

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == STOP


def rows(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Tokens of which each follows from the one before."""
    starts = torch.randint(61, (count, 1), generator=torch.Generator().manual_seed(seed))
    tokens = (starts * torch.tensor([pow(3, i, 61) for i in range(16)])) % 61
    return [{"input_ids": row, "labels": row} for row in tokens]


def trainer_in(folder: str, *callbacks: TrainerCallback, **more) -> ThinTrainer:
    set_seed(0)  # every rank starts from the same parameters
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        learning_rate=LR,
        warmup_steps=WARMUP,
        lr_scheduler_type="cosine",
        per_device_train_batch_size=16,
        max_grad_norm=0,  # `clip` of the optimizer sees the mean
        eval_strategy="steps",
        eval_steps=25,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_steps=STOP,
        dataloader_pin_memory=False,
        **more,
    )
    return ThinTrainer(model, arguments, train_dataset=rows(2000, 1), eval_dataset=rows(64, 2), callbacks=[ThinwireCallback(), *callbacks])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = trainer_in(folder, save_strategy="no")
        before = loss_of(whole.model)
        whole.train()

        shared = [folder]
        dist.broadcast_object_list(shared)  # rank 0's
        stopped = trainer_in(shared[0], Stop(), save_strategy="steps")
        stopped.train()
        checkpoint = os.path.join(shared[0], f"checkpoint-{STOP}")
        own = bits(stopped.model)
        with stopped.thin.consensus():
            assert not torch.equal(own, bits(stopped.model))  # it is between two syncs
            saved = safetensors.torch.load_file(os.path.join(checkpoint, "model.safetensors"))
            now = stopped.model.state_dict()
            assert all(torch.equal(value, now[name]) for name, value in saved.items())

        resumed = trainer_in(shared[0], save_strategy="no")
        resumed.train(resume_from_checkpoint=checkpoint)
        assert torch.equal(bits(whole.model), bits(resumed.model))

        whole.thin.sync()  # all replicas are now the same bits
        after = loss_of(whole.model)
        totals = [None] * dist.get_world_size()
        dist.all_gather_object(totals, bits(whole.model).double().sum().item())
        assert len(set(totals)) == 1 and after < 0.7 * before
    if dist.get_rank() == 0:
        print(f"Trainer on {len(totals)} ranks: loss {before:.2f} -> {after:.2f}; resumed bit for bit")
    dist.destroy_process_group()


def bits(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([param.detach().flatten() for param in model.parameters()])


@torch.no_grad()
def loss_of(model: torch.nn.Module) -> float:
    model.eval()  # no dropout, and no random numbers that training would miss
    tokens = torch.stack([row["input_ids"] for row in rows(64, 3)])
    return model(input_ids=tokens, labels=tokens).loss.item()


if __name__ == "__main__":
    main()
